#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto_front.h"
#include "headroom/plan/planners.h"

namespace headroom {

/// The planner people get when they name none: least time within a budget, for any graph.
///
/// One front of plans for a graph and an effort, whatever the budget: a plan is picked from it, so that more memory is
/// never slower, and `curve` is the front itself. How it comes about:
/// 1. *Levels.* Targets for the peak, every fortieth of plain training's, down to where no plan is found; then by halves
///    towards what the largest op needs at least.
/// 2. *Starts.* For each level plain training brought down to it (RunSearch::descend), the plan of the level above brought
///    down further, and on chains the optimum of `chain`.
/// 3. *Polish.* For each level, by turns with its neighbours' plans: some reruns are taken away, the peak brought back
///    below the target with other choices, what is not needed taken away; the better of before and after stays.
/// 4. Ops run in place wherever their input dies there (Timeline), which is in all peaks above.
/// On chains every plan of `chain`'s table with at least kChainSlots slots is in the front too, and graphs of at most
/// kMostExhaustiveValues values that are not resident (kMostAtHighEffort) are asked of `exhaustive` first, which is then
/// the answer unless it reaches a limit.
///
/// Deterministic, whatever the number of threads: levels are improved apart from each other in rounds, and work is
/// counted in events looked at. O(work) time; memory linear in the graph times the number of levels.
///
/// kOptimal where the lower bound is met; kInfeasible where the budget is below what some op needs by itself or
/// `exhaustive` proved it; else kNotFound. Needs a budget.
struct AutoLimits {
  static constexpr int64_t kMostExhaustiveValues = 20;
  static constexpr int64_t kMostAtHighEffort = 28;
};
PlanResult plan_auto(const Problem& problem, const PlanRequest& request, const PlannerOptions& options = {});

/// The front that plan_auto() picks from, but for `exhaustive`. `flat` is the problem's graph.
AutoFront make_auto_front(const Problem& problem, const FlatGraph& flat, const PlanLimits& limits);

/// The same as points, smallest peak first.
std::vector<CurvePoint> auto_curve(const Problem& problem, const PlanLimits& limits);

}  // namespace headroom
