#pragma once

#include <vector>

#include "headroom/plan/auto/context.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {

/// Makes every plan of the front of a tiny graph a level just below the peak of the next plan and looks for a faster
/// plan there, in several passes. Each pass first looks for smaller peaks. `round` is the number of rounds of polish so
/// far. Plans of earlier levels become starts.
void refine(const SearchContext& context, const MemoryBounds& bounds, int round, StartPlans& starts,
            std::vector<Level>& levels);

}  // namespace headroom::internal
