#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/between.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// Returns a lower bound on the peak of every schedule, in any order. It is the resident bytes plus the largest of two
/// numbers: the bytes that an op which must run needs for its inputs, outputs and workspace (of alternatives, the one
/// with the fewest), and the bytes of the step's outputs, less the memory that the last run may give back.
int64_t peak_lower_bound_bytes(const FlatGraph& flat);

/// Returns the peaks for which the search looks for plans, largest first: every fortieth of `most_bytes` that is above
/// `least_bytes`.
std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes);

/// The starts of a search besides store-all, as sequences of runs. All of these plans are in the search's front.
struct SearchStarts {
  std::vector<std::vector<int32_t>> plans;
  /// Plans from which a level starts only where they are clearly faster than all others.
  std::vector<std::vector<int32_t>> coarse;
  /// Whether `plans` are near the best for their peaks: the search then only brings them to its levels.
  bool are_polished = false;
};

/// Returns the fronts of the search that plan_auto() describes: the search's own front last, before it those of lower
/// efforts and earlier steps. Callers also use the plans between neighbours of the earlier fronts, so that no later
/// step makes any budget slower.
std::vector<Front> search_fronts(const FlatGraph& flat, const SearchStarts& starts, const PlanLimits& limits);

}  // namespace headroom::internal
