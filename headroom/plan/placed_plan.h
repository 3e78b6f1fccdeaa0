#pragma once

#include <cstdint>
#include <optional>

#include "headroom/plan/place/place.h"
#include "headroom/plan/planners.h"

namespace headroom::internal {

/// A plan with addresses for its copies and workspaces.
struct PlacedPlan {
  Plan plan;                           ///< Without a schedule where no plan's arena was found to fit.
  std::optional<Placement> placement;  ///< None without a schedule.
};

/// Returns the plan of a planner whose resident values and arena together are within the budget, and its addresses.
/// plan.smallest_budget_bytes counts the arena too, where it is computed.
///
/// `auto` walks its front from the fastest plan within the budget down to the first whose arena fits. Between that plan
/// and the next faster one of the front, which needs more, more plans are made by bisection, and none of them is taken
/// that is faster than the next larger one: more memory is never slower. The status is kOptimal where the time meets the
/// lower bound, and kInfeasible only where no schedule fits, wherever its copies lie.
///
/// Other planners plan for the budget, and where the arena does not fit, for a budget that is smaller by the excess, at
/// most kMaxReplans times.
///
/// Throws as make_plan() and place() do.
PlacedPlan make_placed_plan(const Planner& planner, const Problem& problem, const PlanRequest& request,
                            const PlannerOptions& options, int64_t alignment);

constexpr int kMaxReplans = 8;

}  // namespace headroom::internal
