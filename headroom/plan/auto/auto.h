#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "headroom/plan/auto/auto_front.h"
#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/plan.h"
#include "headroom/plan/problem.h"

namespace headroom::internal {

/// The default planner: the least time within a budget, for any graph.
///
/// It makes one front of plans for a graph and an effort, which does not depend on the budget, and picks a plan
/// from it. Therefore more memory is never slower, and `curve` is that front. A problem keeps its fronts for the
/// next budget (AutoFronts). All parameters are in SearchParameters. A front is made in these steps (front.h):
/// 1. *Levels* (levels.h). These are targets for the peak: every fortieth of store-all's peak (every twentieth for
///    more than 200 runs), down to where no plan is found. Below that, levels are found by bisection towards
///    peak_lower_bound_bytes().
/// 2. *Starts* (starts.h, planner_starts.h). For each level: the cut that memory_bound() finds around the moment
///    with the largest bound, turned into a plan; store-all (with the fastest of several producers) and the plan of
///    the level above, both brought down to the level (Descent); the plans of smallest peak of `division-tree` and
///    `peak-linear`; on chains, a plan of `chain` for every time in its tables; on graphs of at most 200 ops (2,000
///    at high effort), all plans of `lower-sets`, where they fit. All of these plans are in the front too.
/// 3. *Polish* (polish.h). For each level, with the plans of its neighbours in turn: some reruns are removed, the
///    peak is brought back below the target with other choices, and reruns that are not needed are removed. The
///    better of the old and the new plan is kept. On at most 200 runs, one more level, a fiftieth above the
///    smallest peak, has work of its own.
/// 4. *Small graphs* (refinement.h), of at most 40 runs: every plan of the front becomes a level of its own, just
///    below the peak of the next plan, until no more plans are found. Changes then also insert any runs anywhere.
/// 5. *In place.* Ops run in place wherever they may and their input dies there. All peaks above include that
///    (Timeline).
/// 6. *Exact search* (exact.h). On graphs that `exhaustive` takes, it first finds the smallest peak and then
///    searches all budgets, from the largest down. This happens before everything else with few states, which often
///    proves all budgets, and, except at low effort, again after the search, whose plans shorten it. It has
///    limits.max_states states for the smallest peak, as the planner `exhaustive` has, and as many again for all
///    budgets together; on graphs of more than ExactParameters::max_values_in_full values and below high effort,
///    max_states_if_larger.
/// 7. *Deep networks* (blocks.h), of at least 1,000 ops and 32 equal blocks, except at high effort: 12 of the equal
///    blocks stay, and steps 1 to 6 plan that graph. Its plans, and mixtures of neighbours, become plans of the
///    whole graph, in which every block does what one of the 12 does. Where these plans are more than a hundredth
///    above the bound, and below the smallest of their peaks, step 2 follows.
/// 8. *Between* (between.h) two plans of the front, more plans are made for the budget that is asked for, and for
///    the levels between the same two plans, which are points of the curve (plan_within()).
/// 9. *Any order* (any_order.h), unless limits.keep_order. Steps 1 to 7 keep the base order of first runs. Their plans
///    stay in the front, so that no budget is slower than with keep_order. Where the dependencies of the graph leave
///    some freedom, plans in which first runs move are searched with about a third of their work, and graphs that
///    `exhaustive` takes are searched exactly in any order.
/// 10. *Effort.* Low effort stops after one round of step 3. High effort does everything that normal effort does,
///    and starts from its plans. At every budget, a higher effort has the plans of the lower ones.
///
/// Plans may run an op several times, keep a value for part of the time, and recompute values for a recomputation. The
/// plans are not optimal in any class, but memory_bound() bounds their distance from the optimum.
///
/// The result is deterministic for any number of threads: in each round, levels are improved independently of each
/// other, and work is counted in events looked at. At a given effort, time is about linear in the graph except for the
/// starts, which grow a little faster, and for equal blocks, which cost little. Memory is linear in the graph times the
/// number of levels.
///
/// What is proved is proved among all schedules, or with limits.keep_order among those that keep the base order of first
/// runs. The status is kOptimal where the lower bound is met; kInfeasible where memory_bound() or `exhaustive` proved
/// it, or the budget is below what some op needs by itself; kTimeout, with the best plan found if any, where
/// `exhaustive` was used and proved nothing for the budget within its limit; else kFeasible or kNotFound. A budget is
/// required.
PlanResult plan_auto(const Problem& problem, const PlanRequest& request);

/// Makes the front from which plan_auto() picks. `flat` is the problem's graph.
AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                          const SearchParameters& parameters = {});

/// The fronts of one problem, in the problem's cache. Each is made when it is first asked for. Threads may ask at once;
/// they take turns.
class AutoFronts {
 public:
  /// Returns make_auto_front() of the problem that this belongs to. The number of threads changes no front.
  std::shared_ptr<const AutoFront> get(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

 private:
  std::mutex mutex_;
  /// By keep_order, effort and max_states.
  std::map<std::tuple<bool, Effort, int64_t>, std::shared_ptr<const AutoFront>> fronts_;
};

/// Returns the schedule that runs every op of store_all() once, in place wherever it may.
Schedule store_all_in_place(const Graph& graph);

/// Returns make_auto_front() without `exhaustive`: the fronts of all efforts up to that of `limits`, lowest first, each
/// with its earlier steps.
std::vector<Front> search_fronts(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                                 const SearchParameters& parameters = {});

/// Returns the last front of search_fronts().
Front search_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits,
                   const SearchParameters& parameters = {});

/// Returns the plans of make_auto_front() and those that pick_within() returns for evenly spaced budgets as points,
/// smallest peak first.
std::vector<CurvePoint> auto_curve(const Problem& problem, const PlanLimits& limits);

}  // namespace headroom::internal
