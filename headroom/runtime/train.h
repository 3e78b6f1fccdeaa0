#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/executor.h"
#include "headroom/runtime/measure.h"

namespace headroom {

/// A training step that has been measured on a sample batch, ready to be planned for any budget. Bytes named _peak_bytes
/// and _budget_bytes below are of the whole device, as torch and Meter report them.
struct MeasuredStep {
  MeasuredNetwork measured;
  StepGraph step;
  Problem problem;
  Tensors sample;
  int64_t before_bytes = 0;  ///< on the device before a step: the sample, weights, and whatever else is there
};

/// Make a Meter before the network and the sample, or on the CPU `before_bytes` will lack what it has not seen.
MeasuredStep measure_step(const Network& network, const Tensors& sample, const MeasureOptions& options = {});

struct TrainOptions {
  std::string planner = "auto";
  PlannerOptions planner_options;
  PlanLimits limits;
  int64_t later_bytes = 0;  ///< what will be on the device during steps and is not yet: an optimizer's state
  /// Whether to run a step on the sample, and to plan again with less if its peak is above the budget, which a GPU's
  /// allocator can cause.
  bool tries = true;
};

struct PlannedStep {
  TrainingStep step;
  Plan plan;  ///< in the terms of the graph
  int64_t predicted_peak_bytes = 0;
  std::optional<int64_t> tried_peak_bytes;  ///< of the step on the sample, if there was one
};

/// No plan keeps to a budget.
class BudgetTooSmall : public InvalidInput {
 public:
  BudgetTooSmall(const std::string& network, int64_t budget_bytes, int64_t smallest_bytes);
  int64_t smallest_budget_bytes() const { return smallest_budget_bytes_; }  ///< 0: the planner does not know

 private:
  int64_t smallest_budget_bytes_;
};

/// A step by this schedule as the simulator sees it, in bytes of the whole device: what is there before it, and the step's
/// own, TrainingStep::beside_bytes() included from the beginning to the end.
Simulation predict(const MeasuredStep& measured, const TrainingStep& step);

/// The fastest step that the planner finds whose peak, predicted and tried, is at most the budget; none: no limit. Throws
/// BudgetTooSmall, or what make_plan() throws.
PlannedStep plan_step(const MeasuredStep& measured, std::optional<int64_t> budget_bytes,
                      const TrainOptions& options = {});

/// Runs one step on the sample and says its peak. Random numbers, buffers and gradients are as they were afterwards.
int64_t try_step(const MeasuredStep& measured, const TrainingStep& step);

/// In one call: a network, a sample batch and a number of bytes.
///
///     const headroom::TrainingStep step = headroom::train_within(network, batch, headroom::parse_bytes("8GiB"));
///     ...
///     optimizer.zero_grad();
///     step(batch).backward();
///     optimizer.step();
TrainingStep train_within(const Network& network, const Tensors& sample, int64_t budget_bytes,
                          const TrainOptions& options = {});

}  // namespace headroom
