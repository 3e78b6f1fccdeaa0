#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/timeline.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom {

/// Plain training with faster producers where values have several: each is tried in the place of a slower one, and stays
/// where all that the step then needs, at the places that the ops have in the base order, takes less time. `base` are the
/// runs of plain training. Empty where there is none.
std::vector<int32_t> faster_base(const FlatGraph& flat, const std::vector<int32_t>& base);

/// Plain training up to the moment that memory_bound() finds the hardest; of what was made before only what it keeps
/// is there then, and the rest is made again where it is read. Empty where that is no plan.
std::vector<int32_t> runs_around_cut(const FlatGraph& flat, const std::vector<int32_t>& base, const MemoryBound& bound);

}  // namespace headroom
