#include "headroom/runtime/train.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "headroom/core/quote.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/kernels.h"
#include "headroom/runtime/state.h"

namespace headroom {
using namespace internal;
namespace {

/// Returns an upper bound on the bytes of a step beside the values of its graph: the loss, its gradient, and two copies
/// of every buffer that changes.
int64_t most_beside_bytes(const MeasuredStep& measured) {
  const std::vector<NodeCosts>& costs = measured.measured.costs.nodes;
  int64_t bytes = 2 * costs.back().output_bytes;
  for (const Tensors& buffers : replayed_buffers(measured.measured))
    for (const torch::Tensor& buffer : buffers)
      bytes += 2 * allocated_bytes(static_cast<int64_t>(buffer.storage().nbytes()), buffer.device());
  return bytes;
}

}  // namespace

BudgetTooSmall::BudgetTooSmall(const std::string& network, int64_t budget_bytes, int64_t smallest_bytes)
    : InvalidInput("network " + quote(network) + " cannot be trained in " + std::to_string(budget_bytes) + " bytes" +
                   (smallest_bytes > 0 ? "; the smallest budget is " + std::to_string(smallest_bytes) + " bytes"
                                       : " by this planner")),
      smallest_budget_bytes_(smallest_bytes) {}

MeasuredStep measure_step(const Network& network, const Tensors& sample, const MeasureOptions& options) {
  network.check_inputs(sample);
  const Meter meter(sample[0].device());
  MeasuredNetwork measured = measure(network, sample, options);
  release_cached_memory(sample[0].device());
  StepGraph step = make_step_graph(measured);
  Problem problem = make_problem(step);
  return {std::move(measured), std::move(step), std::move(problem), sample, meter.current_bytes()};
}

TrainingStep make_training_step(const MeasuredStep& measured, Schedule schedule) {
  return {measured.measured, measured.step, std::move(schedule)};
}

Simulation predict(const MeasuredStep& measured, const TrainingStep& step) {
  const Graph graph = step_for(measured.step, measured.measured.costs, step.schedule()).graph;
  Simulation simulation = simulate(graph, step.schedule());
  const int64_t outside_bytes = measured.before_bytes - graph.resident_bytes() + step.beside_bytes();
  simulation.peak_bytes += outside_bytes;
  for (int64_t& bytes : simulation.moment_bytes) bytes += outside_bytes;
  for (int64_t& bytes : simulation.after_bytes) bytes += outside_bytes;
  return simulation;
}

PlannedStep plan_step(const MeasuredStep& measured, std::optional<int64_t> budget_bytes, const TrainOptions& options) {
  const Planner& planner = get_planner(options.planner);
  const int64_t outside_bytes = measured.before_bytes + options.later_bytes - measured.step.graph.resident_bytes();
  const int64_t most_beside = most_beside_bytes(measured);
  int64_t reserve_bytes = 0;  // Bytes of the budget that are reserved for memory that the graph does not include.
  constexpr int kTries = 8;
  for (int i = 0;; ++i) {
    PlanRequest request{std::nullopt, options.limits};
    if (budget_bytes) request.budget_bytes = std::max<int64_t>(*budget_bytes - outside_bytes - reserve_bytes, 0);
    Plan plan = make_plan(planner, measured.problem, request, options.planner_options);
    if (!plan.result.schedule || i == kTries) {
      const int64_t smallest_bytes = plan.result.smallest_budget_bytes;
      throw BudgetTooSmall(
          measured.measured.network.name(), budget_bytes.value_or(0),
          smallest_bytes > 0 ? smallest_bytes + outside_bytes + std::max(reserve_bytes, most_beside) : 0);
    }
    TrainingStep step = make_training_step(measured, *plan.result.schedule);
    if (options.arena) step.use_arena(measured.sample[0].device());
    PlannedStep planned{step, std::move(plan), 0, std::nullopt};
    planned.predicted_peak_bytes = predict(measured, step).peak_bytes + options.later_bytes;
    int64_t peak_bytes = planned.predicted_peak_bytes;
    if ((options.tries || options.arena) && (!budget_bytes || peak_bytes <= *budget_bytes)) {
      if (options.arena)
        for (int run = 0; run < 2; ++run) try_step(measured, step);
      planned.tried_peak_bytes = try_step(measured, step) + options.later_bytes;
      peak_bytes = std::max(peak_bytes, *planned.tried_peak_bytes);
      if (options.arena) planned.predicted_peak_bytes = *planned.tried_peak_bytes;
    }
    if (!budget_bytes || peak_bytes <= *budget_bytes) return planned;
    reserve_bytes += peak_bytes - *budget_bytes;
    // Each plan may need a little more beside the graph than the one before; the upper bound ends the series.
    if (i + 2 == kTries) reserve_bytes = std::max(reserve_bytes, most_beside);
  }
}

int64_t smallest_budget_bytes(const MeasuredStep& measured, const TrainOptions& options) {
  try {
    return plan_step(measured, 0, options).predicted_peak_bytes;
  } catch (const BudgetTooSmall& error) {
    return error.smallest_budget_bytes();
  }
}

int64_t try_step(const MeasuredStep& measured, const TrainingStep& step) {
  const Network& network = step.network();
  const KeptState state(network.buffers(), measured.sample[0].device(), network.generators());
  Meter meter(measured.sample[0].device());
  const int64_t more_bytes = meter.current_bytes() - measured.before_bytes;
  const torch::Tensor result = step(measured.sample);  // The loss, or what a loss outside of the network is made of.
  torch::autograd::grad({result}, network.parameters(), {torch::ones_like(result)}, /*retain_graph=*/false,
                        /*create_graph=*/false, /*allow_unused=*/true);
  const int64_t peak_bytes = meter.peak_bytes() - more_bytes;
  release_cached_memory(meter.device());
  return peak_bytes;
}

TrainingStep train_within(const Network& network, const Tensors& sample, int64_t budget_bytes,
                          const TrainOptions& options) {
  return plan_step(measure_step(network, sample), budget_bytes, options).step;
}

}  // namespace headroom
