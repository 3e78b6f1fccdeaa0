#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/plan/auto_search.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// A peak that no schedule is below, in any order: what is resident, and the most of what each op that must run needs by
/// itself (its inputs, outputs and workspace; of alternatives the least) and the step's outputs after the last run (less
/// what that may give back while it runs).
int64_t peak_lower_bound_bytes(const FlatGraph& flat);

/// The peaks that plans are sought for, largest first: every fortieth of `most_bytes` that is above `least_bytes`.
std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes);

/// Plans of which none beats another: smallest peak first, faster and faster.
using Front = std::vector<JudgedRuns>;

/// Those of some plans that no other beats.
Front undominated(std::vector<JudgedRuns> plans);

/// The plan of a front for a budget; none where its first takes more.
///
/// Between two neighbours of the front there are more plans: one for the budget in the middle, made from both, then one
/// in the middle of each half, and so on. Only those on the way to `budget_bytes` are made. One that is faster than the
/// next above is not taken, so that more memory is never slower.
std::optional<JudgedRuns> plan_within(const FlatGraph& flat, const Front& front, int64_t budget_bytes);

/// Plans for all budgets, by the search that plan_auto() describes, from plain training and `starts`, which are runs.
/// Where these are polished, near the best for their peaks, it only brings them to its levels.
Front search_front(const FlatGraph& flat, const std::vector<std::vector<int32_t>>& starts, bool are_polished,
                   const PlanLimits& limits);

}  // namespace headroom
