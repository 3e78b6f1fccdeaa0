#include "headroom/plan/auto/auto.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "headroom/plan/auto/any_order.h"
#include "headroom/plan/auto/blocks.h"
#include "headroom/plan/auto/exact.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/auto/planner_starts.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/exact/exhaustive.h"

namespace headroom::internal {
namespace {

PlanLimits at_normal_effort(PlanLimits limits) {
  limits.effort = Effort::kNormal;
  return limits;
}

/// Returns the maximum number of states of the exact searches for the least time that follow the search for plans.
int64_t max_time_states(const Graph& graph, const PlanLimits& limits, const ExactParameters& parameters) {
  const auto values = std::ranges::count_if(graph.values(), [](const Value& value) { return !value.resident; });
  const bool is_large = values > parameters.max_values_in_full && limits.effort != Effort::kHigh;
  return is_large ? std::min(limits.max_states, parameters.max_states_if_larger) : limits.max_states;
}

/// Returns the graph of a deep network without most of its equal blocks, or none where it has too few.
std::optional<Folding> find_folding(const Graph& graph, const FoldingParameters& parameters) {
  if (parameters.min_equal_blocks == 0 || std::ssize(graph.ops()) < parameters.min_ops) return std::nullopt;
  return fold(graph, parameters.kept_blocks, parameters.min_equal_blocks);
}

/// Returns the plans of the folded graph, and mixtures of neighbouring ones, as runs of the whole graph.
std::vector<std::vector<int32_t>> unfolded_plans(const Folding& folding, const PlanLimits& limits,
                                                 const SearchParameters& parameters) {
  const Problem few(folding.graph);
  // The folded graph takes little time, so low effort searches it at normal effort too.
  const Front front = search_front(few, FlatGraph(few.graph), at_normal_effort(limits), parameters);
  std::vector<std::vector<int32_t>> plans;
  for (size_t i = 0; i + 1 < front.size(); ++i)
    for (int percent = 100; percent > 0; percent -= parameters.folding.mixture_percent)
      plans.push_back(unfold(folding, front[i].runs, front[i + 1].runs, percent));
  plans.push_back(unfold(folding, front.back().runs, front.back().runs, 100));
  return plans;
}

}  // namespace

std::vector<Front> search_fronts(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                                 const SearchParameters& parameters) {
  std::vector<Front> fronts;
  SearchStarts starts;
  if (limits.effort == Effort::kHigh) {
    fronts = search_fronts(problem, flat, at_normal_effort(limits), parameters);
    for (const JudgedRuns& plan : fronts.back()) starts.plans.push_back(plan.runs);
  } else if (const std::optional<Folding> folding = find_folding(problem.graph, parameters.folding)) {
    starts.plans = unfolded_plans(*folding, limits, parameters);
    starts.are_polished = true;
  }
  SearchStarts others = planner_starts(problem, limits, parameters);
  std::ranges::move(others.plans, std::back_inserter(starts.plans));
  std::ranges::move(search_fronts(flat, starts, limits, parameters), std::back_inserter(fronts));
  return fronts;
}

Front search_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                   const SearchParameters& parameters) {
  return search_fronts(problem, flat, limits, parameters).back();
}

namespace {

/// Returns the front of plans that keep the base order.
AutoFront make_kept_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                          const SearchParameters& parameters) {
  AutoFront front;
  const ExactParameters& exact = parameters.exact;
  const bool is_small = is_exhaustible(problem.graph) && (exact.max_first_states > 0 || exact.after_search);
  if (is_small && limits.effort == Effort::kHigh) {
    front = make_kept_front(problem, flat, at_normal_effort(limits), parameters);
    if (!front.limit_reached) return front;
  } else if (is_small && exact.max_first_states > 0) {
    // The smallest graphs are proved by the exact search alone.
    front.plans.push_back(judge(flat, runs_of(store_all(problem.graph))));
    const int64_t max_states = std::min(limits.max_states, exact.max_first_states);
    make_exact(flat, true, max_states, max_states, front);
    front.low = front.plans;
    if (!front.limit_reached) return front;
  }
  const Front exact_plans = std::move(front.plans);
  front.lower = search_fronts(problem, flat, limits, parameters);
  front.targets = level_targets(problem.base_peak_bytes, 0, parameters.level);
  front.plans = front.lower.back();
  // On small graphs the search's own front stays in `lower`, so that plans between its plans are used beside those of
  // `exhaustive`.
  if (!is_small) front.lower.pop_back();
  std::ranges::copy(exact_plans, std::back_inserter(front.plans));
  front.plans = undominated(std::move(front.plans));
  front.low = front.lower.empty() ? front.plans : front.lower.front();
  if (is_small && exact.after_search && limits.effort != Effort::kLow)
    make_exact(flat, true, limits.max_states, max_time_states(problem.graph, limits, exact), front);
  return front;
}

/// Proves the plans for a small graph in any order with few states. Returns none where that does not suffice.
std::optional<AutoFront> prove_any_order(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                                         const ExactParameters& exact) {
  if (!is_exhaustible(problem.graph) || exact.max_first_states == 0) return std::nullopt;
  AutoFront front;
  front.plans.push_back(judge(flat, runs_of(store_all(problem.graph))));
  const int64_t max_states = std::min(limits.max_states, exact.max_first_states);
  make_exact(flat, false, max_states, max_states, front);
  return front.limit_reached ? std::nullopt : std::optional(std::move(front));
}

}  // namespace

AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                          const SearchParameters& parameters) {
  const bool may_move = !limits.keep_order && parameters.order.any_order && has_order_freedom(problem.graph);
  if (!may_move) return make_kept_front(problem, flat, limits, parameters);
  if (std::optional<AutoFront> proved = prove_any_order(problem, flat, limits, parameters.exact)) return *proved;
  AutoFront front = make_kept_front(problem, flat, limits, parameters);
  front.proved.clear();
  // The plans with the order kept stay, so that no budget is slower than with keep_order.
  front.lower.push_back(front.plans);
  Front found;
  if (limits.effort == Effort::kHigh) {
    AutoFront normal = make_auto_front(problem, flat, at_normal_effort(limits), parameters);
    found = std::move(normal.plans);
    std::ranges::move(normal.lower, std::back_inserter(front.lower));
  } else {
    found = search_any_order(flat, front.low, limits, parameters);
  }
  front.lower.push_back(found);
  std::ranges::copy(found, std::back_inserter(front.plans));
  front.plans = undominated(std::move(front.plans));
  if (limits.effort != Effort::kLow) front.plans = polish_any_order(flat, front.plans, limits, parameters);
  if (is_exhaustible(problem.graph) && parameters.exact.after_search && limits.effort != Effort::kLow)
    make_exact(flat, false, limits.max_states, max_time_states(problem.graph, limits, parameters.exact), front);
  return front;
}

std::shared_ptr<const AutoFront> AutoFronts::get(const Problem& problem, const FlatGraph& flat,
                                                 const PlanLimits& limits) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<const AutoFront>& front = fronts_[{limits.keep_order, limits.effort, limits.max_states}];
  if (!front) front = std::make_shared<const AutoFront>(make_auto_front(problem, flat, limits));
  return front;
}

Schedule store_all_in_place(const Graph& graph) {
  const FlatGraph flat(graph);
  Timeline timeline(flat);
  timeline.assign(runs_of(store_all(graph)));
  return timeline.schedule();
}

PlanResult plan_auto(const Problem& problem, const PlanRequest& request) {
  const int64_t budget_bytes = *request.budget_bytes;
  const FlatGraph flat(problem.graph);
  const std::shared_ptr<const AutoFront> made = problem.cache->get<AutoFronts>().get(problem, flat, request.limits);
  const AutoFront& front = *made;
  const bool is_exact = front.is_proved(budget_bytes);
  const PlanStatus open = front.limit_reached ? PlanStatus::kTimeout : PlanStatus::kNotFound;
  PlanResult result;
  result.smallest_budget_bytes = front.smallest_bytes();
  const MemoryBound bound = memory_bound(problem.graph, budget_bytes, {.keep_order = request.limits.keep_order});
  result.lower_bound_ns = bound.time_ns;
  const std::optional<JudgedRuns> within = pick_within(flat, front, budget_bytes);
  if (!within) {
    const bool is_proved = is_exact || budget_bytes < peak_lower_bound_bytes(flat) || !bound.is_feasible;
    result.status = is_proved ? PlanStatus::kInfeasible : open;
    return result;
  }
  Timeline best(flat);
  best.assign(within->runs);
  if (is_exact) result.lower_bound_ns = best.time_ns();
  result.schedule = best.schedule();
  result.status = front.limit_reached && !is_exact ? PlanStatus::kTimeout : PlanStatus::kFeasible;
  return result;
}

std::vector<CurvePoint> auto_curve(const Problem& problem, const PlanLimits& limits) {
  const FlatGraph flat(problem.graph);
  const std::shared_ptr<const AutoFront> made = problem.cache->get<AutoFronts>().get(problem, flat, limits);
  const AutoFront& front = *made;
  std::vector<JudgedRuns> plans = front.plans;
  for (const Front& lower : front.lower) std::ranges::copy(lower, std::back_inserter(plans));
  for (const int64_t budget_bytes : level_targets(problem.base_peak_bytes, front.smallest_bytes(), LevelParameters{}))
    plans.push_back(*pick_within(flat, front, budget_bytes));
  std::vector<CurvePoint> points;
  for (const JudgedRuns& plan : undominated(std::move(plans))) points.push_back({plan.peak_bytes, plan.time_ns});
  return points;
}

}  // namespace headroom::internal
