#include "headroom/plan/auto/auto.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "headroom/core/simulate.h"
#include "headroom/plan/auto/blocks.h"
#include "headroom/plan/auto/front.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/chain/chain.h"
#include "headroom/plan/chain/peak_cubic.h"
#include "headroom/plan/chain/peak_linear.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/graph/division_tree.h"
#include "headroom/plan/graph/lower_sets.h"

namespace headroom::internal {
namespace {

/// Maximum number of states of the first exact search, before the search for plans.
constexpr int64_t kMaxFirstStates = 10'000;
/// Largest number of ops for which all plans of `lower-sets` are starts, which takes little time up to there.
constexpr int64_t kMaxLowerSetOps = 200;
/// The same limit at high effort.
constexpr int64_t kMaxLowerSetOpsAtHighEffort = 2'000;
constexpr int64_t kMinFoldedGraphOps = 1'000;  ///< Number of ops from which equal blocks are planned together.
constexpr int32_t kMinEqualBlocks = 32;        ///< Number of equal blocks from which they are planned together.
constexpr int32_t kFoldedBlocks = 12;          ///< Number of equal blocks that stay in the folded graph.
/// Percent of blocks by which successive mixtures of two plans differ.
constexpr int kMixturePercent = 25;
/// Work to follow a table of `chain`, in decisions; divided by length^2 it limits the number of plans.
constexpr int64_t kChainWork = 100'000'000;

/// Returns the maximum number of states of the exact searches for the least time that follow the search for plans.
int64_t max_time_states(const Graph& graph, const PlanLimits& limits) {
  const auto values = std::ranges::count_if(graph.values(), [](const Value& value) { return !value.resident; });
  const bool is_large = values > AutoLimits::kMostValuesInFull && limits.effort != Effort::kHigh;
  return is_large ? std::min(limits.max_states, AutoLimits::kMostStatesIfLarger) : limits.max_states;
}

/// Returns the number of slots for a table of `chain` that is about as fine as `chain` at any budget, but takes a
/// limited time.
int64_t slots_for(int length) {
  constexpr double kWork = 4e9;
  const double cube = static_cast<double>(length) * length * length;
  return std::clamp<int64_t>(static_cast<int64_t>(kWork / cube), length <= 512 ? 500 : 50, 4000);
}

std::vector<int32_t> runs_of(const Schedule& schedule) {
  std::vector<int32_t> runs;
  for (const Step& step : schedule.steps)
    if (step.is_run()) runs.push_back(static_cast<int32_t>(step.op()));
  return runs;
}

/// Returns the plans of the folded graph, and mixtures of neighbouring ones, as runs of the whole graph.
std::vector<std::vector<int32_t>> unfolded_plans(const Folding& folding, PlanLimits limits) {
  const Problem few(folding.graph);
  // The folded graph takes little time, so low effort searches it at normal effort too.
  limits.effort = Effort::kNormal;
  const Front front = search_front(few, FlatGraph(few.graph), limits);
  std::vector<std::vector<int32_t>> plans;
  for (size_t i = 0; i + 1 < front.size(); ++i)
    for (int percent = 100; percent > 0; percent -= kMixturePercent)
      plans.push_back(unfold(folding, front[i].runs, front[i + 1].runs, percent));
  plans.push_back(unfold(folding, front.back().runs, front.back().runs, 100));
  return plans;
}

/// Returns plans of `chain` from two tables: one up to store-all's peak, and one up to a third of it, whose slots are
/// smaller.
std::vector<Schedule> chain_plans(const Problem& problem, const PlanLimits& limits) {
  std::vector<Schedule> plans;
  if (!problem.chain) return plans;
  const int64_t length = problem.chain->length();
  const int64_t resident_bytes = problem.graph.resident_bytes();
  for (const int64_t part : {1, 3}) {
    const int64_t most_bytes = resident_bytes + (problem.base_peak_bytes - resident_bytes) / part;
    try {
      std::ranges::move(plan_chain_front(*problem.chain, most_bytes, slots_for(problem.chain->length()),
                                         kChainWork / (length * length), limits.threads),
                        std::back_inserter(plans));
    } catch (const NotApplicable&) {
      return plans;
    } catch (const TooLarge&) {
      return plans;
    }
  }
  return plans;
}

/// Returns the plans of `peak-cubic` and `peak-linear` on a chain, else that of `division-tree`, where they apply.
std::vector<Schedule> least_peak_plans(const Problem& problem, const PlanLimits& limits) {
  const PlanRequest request{std::nullopt, limits};
  std::vector<Schedule> plans;
  const auto add = [&](const auto& plan) {
    try {
      PlanResult result = plan();
      HEADROOM_ASSERT(result.schedule && !simulate(problem.graph, *result.schedule).error);
      plans.push_back(std::move(*result.schedule));
    } catch (const NotApplicable&) {
      // This planner does not take the problem; the search has other starts.
    } catch (const TooLarge&) {
      // The sums of this plan do not fit int64.
    }
  };
  if (!problem.chain) {
    add([&] { return plan_division_tree(problem.graph, request); });
    return plans;
  }
  add([&] { return plan_peak_cubic(*problem.chain, request); });
  add([&] { return plan_peak_linear(*problem.chain, request); });
  return plans;
}

}  // namespace

std::vector<Front> search_fronts(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits) {
  const bool is_high = limits.effort == Effort::kHigh;
  std::vector<Front> fronts;
  SearchStarts starts;
  if (is_high) {
    PlanLimits normal = limits;
    normal.effort = Effort::kNormal;
    fronts = search_fronts(problem, flat, normal);
    for (const JudgedRuns& plan : fronts.back()) starts.plans.push_back(plan.runs);
  }
  const bool may_fold = !is_high && std::ssize(problem.graph.ops()) >= kMinFoldedGraphOps;
  const std::optional<Folding> folding = may_fold ? fold(problem.graph, kFoldedBlocks, kMinEqualBlocks) : std::nullopt;
  std::vector<Schedule> plans = chain_plans(problem, limits);
  const bool has_few = std::ssize(problem.graph.ops()) <= (is_high ? kMaxLowerSetOpsAtHighEffort : kMaxLowerSetOps);
  try {
    std::vector<Schedule> found =
        has_few ? lower_set_plans(problem.graph, limits) : coarse_lower_set_plans(problem.graph);
    if (has_few) {
      std::ranges::move(found, std::back_inserter(plans));
    } else {
      std::ranges::transform(found, std::back_inserter(starts.coarse), runs_of);
    }
  } catch (const NotApplicable&) {
    // `lower-sets` does not take the graph; the search has other starts.
  } catch (const TooLarge&) {
    // The sums of these plans do not fit int64; the search has other starts.
  }
  std::ranges::move(least_peak_plans(problem, limits), std::back_inserter(plans));
  if (folding) starts.plans = unfolded_plans(*folding, limits);
  starts.are_polished = folding.has_value();
  std::ranges::transform(plans, std::back_inserter(starts.plans), runs_of);
  std::ranges::move(search_fronts(flat, starts, limits), std::back_inserter(fronts));
  return fronts;
}

Front search_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits) {
  return search_fronts(problem, flat, limits).back();
}

namespace {

JudgedRuns judge(const FlatGraph& flat, const Schedule& schedule) {
  Timeline timeline(flat);
  timeline.assign(runs_of(schedule));
  return {timeline.runs(), timeline.peak_bytes(), timeline.time_ns()};
}

/// Returns the plan of a front for a budget, or the front's end where there is none.
Front::const_iterator find_within(const Front& front, int64_t budget_bytes) {
  const auto above =
      std::ranges::partition_point(front, [&](const JudgedRuns& plan) { return plan.peak_bytes <= budget_bytes; });
  return above == front.begin() ? front.end() : std::prev(above);
}

/// Makes plans of a front optimal by a search over all schedules: first for the smallest peak, then for the time at one
/// budget after the other, from the largest down. Both have a limit of states. The search for one budget may take half
/// of the states that are left, so that smaller budgets, which have fewer schedules, are searched too.
void make_exact(const FlatGraph& flat, int64_t max_peak_states, int64_t max_time_states, AutoFront& front) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  ExhaustiveSearch exhaustive(flat.graph);
  const auto add = [&](const Schedule& schedule) {
    front.plans.push_back(judge(flat, schedule));
    const int64_t peak_bytes = front.plans.back().peak_bytes;
    front.plans = undominated(std::move(front.plans));
    return peak_bytes;
  };
  front.limit_reached = false;
  int64_t least_bytes = peak_lower_bound_bytes(flat);
  if (front.smallest_bytes() > least_bytes && MemoryBounds(flat.graph).within(front.smallest_bytes() - 1).is_feasible) {
    const std::optional<Schedule> smaller = exhaustive.find_smaller(front.smallest_bytes(), max_peak_states);
    if (smaller) add(*smaller);
    front.limit_reached = exhaustive.limit_reached();
  }
  if (!front.limit_reached) least_bytes = front.smallest_bytes();
  front.proved.push_back({std::numeric_limits<int64_t>::min(), least_bytes - 1});
  int64_t states_left = max_time_states;
  for (int64_t budget_bytes = kNoLimit; budget_bytes >= least_bytes;) {
    const auto known = find_within(front.plans, budget_bytes);
    const bool is_known = known != front.plans.end();
    const int64_t known_bytes = is_known ? known->peak_bytes : least_bytes;
    const std::optional<Schedule> faster =
        exhaustive.find_faster(budget_bytes, is_known ? known->time_ns : kNoLimit, states_left - states_left / 2);
    states_left -= exhaustive.state_count();
    if (exhaustive.limit_reached()) {
      front.limit_reached = true;
      if (!is_known || states_left <= 0) break;
      budget_bytes = std::min(known_bytes, budget_bytes - 1);
      continue;
    }
    const int64_t reached_bytes = faster ? add(*faster) : known_bytes;
    HEADROOM_ASSERT(reached_bytes <= budget_bytes);
    front.proved.push_back({reached_bytes, budget_bytes});
    budget_bytes = reached_bytes - 1;
  }
}

}  // namespace

AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits) {
  AutoFront front;
  const bool is_small = is_exhaustible(problem.graph);
  if (is_small && limits.effort == Effort::kHigh) {
    PlanLimits normal = limits;
    normal.effort = Effort::kNormal;
    front = make_auto_front(problem, flat, normal);
    if (!front.limit_reached) return front;
  } else if (is_small) {
    // The smallest graphs are proved by the exact search alone.
    front.plans.push_back(judge(flat, store_all(problem.graph)));
    const int64_t max_states = std::min(limits.max_states, kMaxFirstStates);
    make_exact(flat, max_states, max_states, front);
    if (!front.limit_reached) return front;
  }
  const Front exact_plans = std::move(front.plans);
  front.lower = search_fronts(problem, flat, limits);
  front.targets = level_targets(problem.base_peak_bytes, 0);
  front.plans = front.lower.back();
  // On small graphs the search's own front stays in `lower`, so that plans between its plans are used beside those of
  // `exhaustive`.
  if (!is_small) front.lower.pop_back();
  std::ranges::copy(exact_plans, std::back_inserter(front.plans));
  front.plans = undominated(std::move(front.plans));
  if (is_small && limits.effort != Effort::kLow)
    make_exact(flat, limits.max_states, max_time_states(problem.graph, limits), front);
  return front;
}

std::shared_ptr<const AutoFront> AutoFronts::get(const Problem& problem, const FlatGraph& flat,
                                                 const PlanLimits& limits) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<const AutoFront>& front = fronts_[{limits.effort, limits.max_states}];
  if (!front) front = std::make_shared<const AutoFront>(make_auto_front(problem, flat, limits));
  return front;
}

Schedule store_all_in_place(const Graph& graph) {
  const FlatGraph flat(graph);
  Timeline timeline(flat);
  timeline.assign(runs_of(store_all(graph)));
  return timeline.schedule();
}

bool AutoFront::is_proved(int64_t budget_bytes) const {
  return std::ranges::any_of(proved, [&](const BudgetRange& range) {
    return range.least_bytes <= budget_bytes && budget_bytes <= range.most_bytes;
  });
}

namespace {

/// Returns whether two fronts have the same plans on both sides of a budget, and therefore the same plan for it.
bool are_same_around(const Front& one, const Front& other, int64_t budget_bytes) {
  const auto is_same = [](const JudgedRuns& a, const JudgedRuns& b) { return a.runs == b.runs; };
  const auto below = find_within(one, budget_bytes);
  const auto other_below = find_within(other, budget_bytes);
  if (below == one.end() || other_below == other.end() || !is_same(*below, *other_below)) return false;
  const auto above = std::next(below);
  const auto other_above = std::next(other_below);
  if (above == one.end() || other_above == other.end()) return above == one.end() && other_above == other.end();
  return is_same(*above, *other_above);
}

}  // namespace

std::optional<JudgedRuns> pick_within(const FlatGraph& flat, const AutoFront& front, int64_t budget_bytes) {
  if (front.is_proved(budget_bytes)) {
    const auto within = find_within(front.plans, budget_bytes);
    return within == front.plans.end() ? std::nullopt : std::optional(*within);
  }
  std::optional<JudgedRuns> best = plan_within(flat, front.plans, budget_bytes, front.targets);
  for (const Front& lower : front.lower) {
    if (are_same_around(lower, front.plans, budget_bytes)) continue;
    std::optional<JudgedRuns> plan = plan_within(flat, lower, budget_bytes, front.targets);
    if (plan && (!best || plan->time_ns < best->time_ns)) best = std::move(plan);
  }
  return best;
}

int64_t AutoFront::smallest_bytes() const {
  int64_t bytes = plans.front().peak_bytes;
  for (const Front& front : lower) bytes = std::min(bytes, front.front().peak_bytes);
  return bytes;
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
  const MemoryBound bound = memory_bound(problem.graph, budget_bytes);
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
  for (const int64_t budget_bytes : level_targets(problem.base_peak_bytes, front.smallest_bytes()))
    plans.push_back(*pick_within(flat, front, budget_bytes));
  std::vector<CurvePoint> points;
  for (const JudgedRuns& plan : undominated(std::move(plans))) points.push_back({plan.peak_bytes, plan.time_ns});
  return points;
}

}  // namespace headroom::internal
