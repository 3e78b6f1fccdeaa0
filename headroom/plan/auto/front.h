#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/judged_runs.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// The starts of a search besides store-all, as sequences of runs. All of these plans are in the search's front.
struct SearchStarts {
  std::vector<std::vector<int32_t>> plans = {};
  /// Whether `plans` are near the best for their peaks: the search then only brings them to its levels.
  bool are_polished = false;
};

/// Returns the fronts of the search that plan_auto() describes, whose plans keep the base order: the search's own front last, before it those of lower
/// efforts and earlier steps. Callers also use the plans between neighbours of the earlier fronts, so that no later
/// step makes any budget slower.
std::vector<Front> search_fronts(const FlatGraph& flat, const SearchStarts& starts, const PlanLimits& limits,
                                 const SearchParameters& parameters);

}  // namespace headroom::internal
