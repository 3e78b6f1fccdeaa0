#pragma once

#include "headroom/plan/auto/front.h"
#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/problem.h"

namespace headroom::internal {

/// Returns the plans of other planners that the search starts from: on chains those of two tables of `chain`, and the
/// plans with the smallest peak of `peak-cubic` and `peak-linear`; on graphs those of `lower-sets`, and the plan with
/// the smallest peak of `division-tree`. Planners that do not take the problem are left out, and
/// `lower-sets` on large graphs.
SearchStarts planner_starts(const Problem& problem, const PlanLimits& limits, const SearchParameters& parameters);

}  // namespace headroom::internal
