#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/between.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// A peak that no schedule is below, in any order: what is resident, and the most of what each op that must run needs by
/// itself (its inputs, outputs and workspace; of alternatives the least) and the step's outputs after the last run (less
/// what that may give back while it runs).
int64_t peak_lower_bound_bytes(const FlatGraph& flat);

/// The peaks that plans are sought for, largest first: every fortieth of `most_bytes` that is above `least_bytes`.
std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes);

/// What a search starts from besides plain training, as runs. All of these plans are in its front.
struct SearchStarts {
  std::vector<std::vector<int32_t>> plans;
  /// Plans that a level starts from only where they are clearly faster than all others.
  std::vector<std::vector<int32_t>> coarse;
  /// Whether `plans` are near the best for their peaks: the search then only brings them to its levels.
  bool are_polished = false;
};

/// Plans for all budgets, by the search that plan_auto() describes: its front, the last, and those that it had at lower
/// efforts and before its last step. Plans between neighbours of each count, so that no step makes a budget worse.
std::vector<Front> search_fronts(const FlatGraph& flat, const SearchStarts& starts, const PlanLimits& limits);

}  // namespace headroom
