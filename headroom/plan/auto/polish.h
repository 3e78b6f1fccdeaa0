#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/context.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {

/// Polishes every level once, with the plans that all levels have before the round. Each level tries the plans of its
/// neighbours, and then perturbs its own plans, brings them below the target again and prunes them, for `work` events.
/// The better of the old and the new plan is kept.
void polish_levels(const SearchContext& context, int round, int64_t work, std::vector<Level>& levels);

/// Adds a level just above the smallest peak of some levels and starts, where a few more bytes save the most time,
/// polishes it alone, and returns its best plan. `round` is the number of rounds so far.
JudgedRuns polish_lowest(const SearchContext& context, const MemoryBounds& bounds,
                         const std::vector<JudgedRuns>& starts, int round, std::vector<Level>& levels);

}  // namespace headroom::internal
