#include "headroom/plan/auto.h"

#include <algorithm>
#include <limits>

#include "headroom/plan/auto_front.h"
#include "headroom/plan/chain.h"
#include "headroom/plan/memory_bound.h"

namespace headroom {
namespace {

bool is_small(const Graph& graph, Effort effort) {
  const auto is_resident = [](const Value& value) { return value.resident; };
  const auto values = std::ssize(graph.values()) - std::ranges::count_if(graph.values(), is_resident);
  return values <= (effort == Effort::kHigh ? AutoLimits::kMostAtHighEffort : AutoLimits::kMostExhaustiveValues);
}

/// About as fine as `chain` at any budget, in a time that stays small.
int64_t slots_for(int length) {
  constexpr double kWork = 4e9;
  const double cube = static_cast<double>(length) * length * length;
  return std::clamp<int64_t>(static_cast<int64_t>(kWork / cube), length <= 512 ? 500 : 50, 4000);
}

/// `chain`'s plans within each budget: of tables for plain training's peak and for less, which are finer.
std::vector<Schedule> chain_plans(const Problem& problem, const std::vector<int64_t>& budgets_bytes,
                                  const PlanLimits& limits) {
  std::vector<Schedule> plans;
  if (!problem.chain) return plans;
  const int64_t resident_bytes = problem.graph.resident_bytes();
  for (const int64_t part : {1, 3}) {
    const int64_t most_bytes = resident_bytes + (problem.base_peak_bytes - resident_bytes) / part;
    try {
      for (std::optional<Schedule>& schedule : plan_chain_budgets(*problem.chain, most_bytes, budgets_bytes,
                                                                  slots_for(problem.chain->length()), limits.threads))
        if (schedule) plans.push_back(std::move(*schedule));
    } catch (const NotApplicable&) {
      return plans;
    }
  }
  return plans;
}

int64_t least_chain_bytes(const Problem& problem) {
  if (!problem.chain) return 0;
  try {
    return plan_chain(*problem.chain, {0, {}}).smallest_budget_bytes;
  } catch (const NotApplicable&) {
    return 0;
  }
}

}  // namespace

AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits) {
  std::vector<int64_t> targets = level_targets(problem.base_peak_bytes, peak_lower_bound_bytes(flat));
  targets.push_back(least_chain_bytes(problem));
  std::vector<Schedule> starts = chain_plans(problem, targets, limits);
  // For the least memory.
  for (const char* name : {"division-tree", "peak-linear"}) {
    try {
      Plan plan = make_plan(get_planner(name), problem, {std::nullopt, limits});
      starts.push_back(std::move(*plan.result.schedule));
    } catch (const NotApplicable&) {
      continue;
    }
  }
  return make_auto_front(flat, starts, limits);
}

namespace {

std::vector<int32_t> runs_of(const Schedule& schedule) {
  std::vector<int32_t> runs;
  for (const Step& step : schedule.steps)
    if (step.is_run()) runs.push_back(static_cast<int32_t>(step.op()));
  return runs;
}

}  // namespace

PlanResult plan_auto(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  const int64_t budget_bytes = *request.budget_bytes;
  PlanResult result;
  bool limit_reached = false;
  if (is_small(problem.graph, request.limits.effort)) {
    try {
      const Plan plan = make_plan(get_planner("exhaustive"), problem, request, options);
      if (plan.result.status != PlanStatus::kTimeout) return plan.result;
      limit_reached = true;
    } catch (const NotApplicable&) {
      // Holders that are held: the search goes on without.
    }
  }
  const FlatGraph flat(problem.graph);
  const AutoFront front = make_auto_front(problem, flat, request.limits);
  result.smallest_budget_bytes = front.plans.front().peak_bytes;
  const MemoryBound bound = memory_bound(problem.graph, budget_bytes);
  result.lower_bound_ns = bound.time_ns;
  const auto above = std::ranges::partition_point(
      front.plans, [&](const JudgedRuns& plan) { return plan.peak_bytes <= budget_bytes; });
  if (above == front.plans.begin()) {
    const bool is_proved = budget_bytes < peak_lower_bound_bytes(flat) || !bound.is_feasible;
    const PlanStatus open = limit_reached ? PlanStatus::kTimeout : PlanStatus::kNotFound;
    result.status = is_proved ? PlanStatus::kInfeasible : open;
    return result;
  }
  Timeline best(flat);
  best.assign(std::prev(above)->runs);
  // Between the levels of the front, `chain` has a plan for every budget.
  for (const Schedule& schedule : chain_plans(problem, {budget_bytes}, request.limits)) {
    Timeline other(flat);
    other.assign(runs_of(schedule));
    if (other.peak_bytes() <= budget_bytes && other.time_ns() < best.time_ns()) best = std::move(other);
  }
  result.schedule = best.schedule();
  result.status = limit_reached ? PlanStatus::kTimeout : PlanStatus::kFeasible;
  return result;
}

std::vector<CurvePoint> auto_curve(const Problem& problem, const PlanLimits& limits) {
  const FlatGraph flat(problem.graph);
  std::vector<CurvePoint> points;
  for (const JudgedRuns& plan : make_auto_front(problem, flat, limits).plans)
    points.push_back({plan.peak_bytes, plan.time_ns});
  return points;
}

}  // namespace headroom
