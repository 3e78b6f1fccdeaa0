#pragma once

#include "headroom/plan/planners.h"

namespace headroom {

/// The fastest simulated plan, then the one of least peak, among all planners that take the problem. Needs a budget.
/// kOptimal where the lower bound is met; kInfeasible only where `exhaustive` proved it; else kNotFound. `exhaustive`
/// is asked for graphs of at most kMostExhaustiveValues values that are not resident.
struct AutoLimits {
  static constexpr int64_t kMostExhaustiveValues = 24;
};
PlanResult plan_auto(const Problem& problem, const PlanRequest& request, const PlannerOptions& options = {});

}  // namespace headroom
