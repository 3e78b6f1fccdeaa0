#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/judged_runs.h"

namespace headroom::internal {

/// Returns the plan of a front for a budget, or none where the budget is below the front's smallest peak.
///
/// Between two neighbours of the front, more plans are made by bisection: one for the budget in the middle, made from
/// both neighbours, then one in the middle of each half, and so on. Only the plans on the way to `budget_bytes`, and to
/// the `targets` between the same neighbours, are made. The fastest of them within the budget is returned, so it is no
/// slower than the plan for any smaller target. A plan that is faster than the next larger one is not taken, so that
/// more memory is never slower.
std::optional<JudgedRuns> plan_within(const FlatGraph& flat, const Front& front, int64_t budget_bytes,
                                      std::span<const int64_t> targets, const SearchParameters& parameters);

}  // namespace headroom::internal
