#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/network/executor.h"
#include "headroom/runtime/network/measure.h"

namespace headroom {

/// A training step that has been measured on a sample batch and can be planned for any budget. In names below,
/// _peak_bytes and _budget_bytes are bytes of the whole device, as torch and Meter report them.
struct MeasuredStep {
  MeasuredNetwork measured;
  StepGraph step;
  Problem problem;
  Tensors sample;
  int64_t before_bytes = 0;  ///< Bytes on the device before a step: the sample, the weights, and all else.
};

/// Measures a network on a sample. Make a Meter before the network and the sample; otherwise `before_bytes` on the CPU
/// lacks what was allocated before the first Meter.
MeasuredStep measure_step(const Network& network, const Tensors& sample, const MeasureOptions& options = {});

/// Returns the step that runs by a schedule of the measured step's graph.
TrainingStep make_training_step(const MeasuredStep& measured, Schedule schedule);

struct TrainOptions {
  std::string planner = "auto";
  PlannerOptions planner_options;
  PlanLimits limits;
  /// Bytes that will be on the device during steps but are not yet, such as an optimizer's state.
  int64_t later_bytes = 0;
  /// Whether to run a step on the sample, and to plan again with less if its peak is above the budget, which a GPU's
  /// allocator can cause.
  bool tries = true;
  /// Whether the step runs in one block of memory, see TrainingStep::use_arena(). Three steps are then run on the
  /// sample, two that record and one that shows the peak.
  bool arena = false;
};

struct PlannedStep {
  TrainingStep step;
  Plan plan;  ///< Its bytes are those of the graph.
  int64_t predicted_peak_bytes = 0;
  std::optional<int64_t> tried_peak_bytes;  ///< Measured peak of the step on the sample, if it was run.
};

/// Thrown where no plan fits a budget.
class BudgetTooSmall : public InvalidInput {
 public:
  BudgetTooSmall(const std::string& network, int64_t budget_bytes, int64_t smallest_bytes);
  int64_t smallest_budget_bytes() const { return smallest_budget_bytes_; }  ///< 0 if the planner does not compute it.

 private:
  int64_t smallest_budget_bytes_;
};

/// Returns the simulation of a step in bytes of the whole device: the bytes live before the step, and the step's own,
/// with TrainingStep::beside_bytes() from the beginning to the end.
Simulation predict(const MeasuredStep& measured, const TrainingStep& step);

/// Returns the fastest step that the planner finds whose peak, predicted and measured, is at most the budget; no budget
/// means no limit. Throws BudgetTooSmall, or what make_plan() throws.
PlannedStep plan_step(const MeasuredStep& measured, std::optional<int64_t> budget_bytes,
                      const TrainOptions& options = {});

/// Returns the smallest budget for which plan_step() finds a step; 0 if the planner does not compute it.
int64_t smallest_budget_bytes(const MeasuredStep& measured, const TrainOptions& options = {});

/// Runs one step on the sample and returns its peak in bytes. Restores random numbers, buffers and gradients.
int64_t try_step(const MeasuredStep& measured, const TrainingStep& step);

/// Measures a network on a sample batch, plans it within a budget, and returns the step:
///
///     const headroom::TrainingStep step = headroom::train_within(network, batch, headroom::parse_bytes("8GiB"));
///     ...
///     optimizer.zero_grad();
///     step(batch).backward();
///     optimizer.step();
TrainingStep train_within(const Network& network, const Tensors& sample, int64_t budget_bytes,
                          const TrainOptions& options = {});

}  // namespace headroom
