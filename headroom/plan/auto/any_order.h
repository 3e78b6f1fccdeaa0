#pragma once

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/judged_runs.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// Returns whether schedules in any order differ from those that keep the base order: whether the order of some ops that
/// every schedule must run does not follow from what they read.
bool has_order_freedom(const Graph& graph);

/// Finds levels of memory for the plans of a front, and plans in any order for them and for smaller peaks. The plans start
/// from those of the front, from the cut of the bound for all orders, and from store-all in an order with a smaller peak.
/// Returns the front of all plans.
Front search_any_order(const FlatGraph& flat, const Front& kept, const PlanLimits& limits,
                       const SearchParameters& parameters);

/// Returns the front of plans that polish with moves makes of another one.
Front polish_any_order(const FlatGraph& flat, const Front& front, const PlanLimits& limits,
                       const SearchParameters& parameters);

}  // namespace headroom::internal
