#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "headroom/plan/auto/front.h"
#include "headroom/plan/plan.h"
#include "headroom/plan/problem.h"

namespace headroom {

/// The planner people get when they name none: least time within a budget, for any graph.
///
/// One front of plans for a graph and an effort, whatever the budget: a plan is picked from it, so that more memory is
/// never slower, and `curve` is that front. A problem keeps it for the next budget (AutoFronts). How it comes about:
/// 1. *Levels.* Targets for the peak: every fortieth of plain training's (every twentieth for more than 200 runs), down
///    to where no plan is found; then by halves towards what the largest op needs at least.
/// 2. *Starts.* For each level: the cut that memory_bound() finds around the hardest moment, carried out; plain
///    training (with the fastest of several producers), and the plan of the level above, brought down to it
///    (RunSearch::descend); the plans of least peak of `division-tree` and `peak-linear`, on chains one of `chain` for
///    every time that its tables have, and on graphs of at most 200 ops (2,000 at high effort) all of `lower-sets`, where
///    they fit; on larger ones plans of few lower sets where all else is clearly slower. All of these are in the front too.
/// 3. *Polish.* For each level, by turns with its neighbours' plans: some reruns are taken away, the peak is brought
///    back below the target with other choices, what is not needed is taken away; the better of before and after stays.
///    On more than 200 runs levels whose plan is within a ten-thousandth of the bound are left as they are, but at high
///    effort.
///    On at most 200 runs one more level, a fiftieth above the smallest peak, has some work of its own.
/// 4. *Small graphs*, of at most 40 runs: every plan of the front becomes a level of its own, just below the peak of the
///    next, until nothing more is found; changes then add any runs anywhere too.
/// 5. *In place.* Ops run over an input that dies there wherever they may: that is in all peaks above (Timeline).
/// 6. *Exact where small.* On graphs that `exhaustive` takes it first finds the smallest peak, then goes through all
///    budgets, from the largest down: before everything else with few states, which often proves all budgets, and, but at
///    low effort, after the search, whose plans make it shorter. It has limits.max_states states for the smallest peak,
///    as the planner `exhaustive` has, and for all budgets together as many again, on graphs of more than
///    AutoLimits::kMostValuesInFull values AutoLimits::kMostStatesIfLarger below high effort.
/// 7. *Deep networks*, of at least 1,000 ops and 32 equal blocks, but at high effort: 12 of the blocks stay (blocks.h), 1
///    to 6 are done for that graph, and its plans, and mixtures of neighbours, are those of the whole: every block does
///    as one of the 12. Where that is more than a hundredth above the bound, and below the least of them, 2 follows.
/// 8. *Between* two plans of the front there are more, made on the way to a budget that is asked for, and to the levels
///    between the same two, which are points of the curve: plan_within().
/// 9. *Effort.* Low effort stops after one round of 3; high effort does everything that normal effort does, and starts
///    from its plans. What a lower effort finds at any budget, a higher one has too.
///
/// Several runs of an op, keeping for part of the time and recomputing inside what is recomputed are all in its reach;
/// first runs keep the base order (--keep-order has no other choice yet). Not optimal among anything, but proved close by the bound, which is
/// memory_bound().
///
/// Deterministic, whatever the number of threads: levels are improved apart from each other in rounds, and work is
/// counted in events looked at. Time about linear in the graph at a given effort but for the starts, which are a little
/// worse, and for equal blocks, which cost little; memory linear in the graph times the number of levels.
///
/// What is proved is proved among schedules that keep the base order of first runs (exhaustive.h), as the plans do.
/// kOptimal where the lower bound is met; kInfeasible where memory_bound() or `exhaustive` proved it or the budget is
/// below what some op needs by itself; kTimeout, with the best plan found if any, where `exhaustive` was asked and
/// proved nothing for the budget within its limit; else kFeasible or kNotFound. Needs a budget. More memory is never slower.
struct AutoLimits {
  static constexpr int64_t kMostValuesInFull = 20;  ///< Values up to which `exhaustive` has limits.max_states states.
  static constexpr int64_t kMostStatesIfLarger = 100'000;  ///< States on larger graphs, below high effort.
};
PlanResult plan_auto(const Problem& problem, const PlanRequest& request);

/// Both ends included.
struct BudgetRange {
  int64_t least_bytes;
  int64_t most_bytes;
};

struct AutoFront {
  Front plans;
  /// Fronts of lower efforts and earlier steps: what is between two of their plans counts too.
  std::vector<Front> lower = {};
  /// level_targets(): plans for these are made between neighbours as well.
  std::vector<int64_t> targets = {};
  /// Budgets for which `exhaustive` has proved the plan of `plans` optimal, or that there is no plan.
  std::vector<BudgetRange> proved = {};
  bool limit_reached = false;  ///< whether `exhaustive` was asked and could not prove all budgets

  bool is_proved(int64_t budget_bytes) const;
  int64_t smallest_bytes() const;
};

/// What plan_auto() picks from. `flat` is the problem's graph.
AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

/// The fronts of one problem, each made when it is first asked for, in the problem's cache. Threads may ask at once; they
/// take turns.
class AutoFronts {
 public:
  /// Returns make_auto_front() of the problem that this belongs to. The number of threads changes no front.
  std::shared_ptr<const AutoFront> get(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

 private:
  std::mutex mutex_;
  std::map<std::pair<Effort, int64_t>, std::shared_ptr<const AutoFront>> fronts_;  ///< by effort and max_states
};

/// Returns the schedule that runs every op of store_all() once, in place wherever it may.
Schedule store_all_in_place(const Graph& graph);

/// plan_auto()'s plan: plan_within(), or the front's own where that is proved optimal.
std::optional<JudgedRuns> pick_within(const FlatGraph& flat, const AutoFront& front, int64_t budget_bytes);

/// make_auto_front() without `exhaustive`: the fronts of all efforts up to the one that limits have, lowest
/// first, as the other search_fronts() has them.
std::vector<Front> search_fronts(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

/// The last of search_fronts().
Front search_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

/// make_auto_front() and pick_within() budgets evenly apart as points, smallest peak first.
std::vector<CurvePoint> auto_curve(const Problem& problem, const PlanLimits& limits);

}  // namespace headroom
