#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/chain/needs.h"

namespace headroom::internal {

/// Computes the `chain` recurrence as it is usually written, for comparison: on one core, in double precision, with loops
/// over length, start, memory and split, an array with the layout [i][l][m], and without a schedule. Returns the minimum
/// extra time of the whole chain within `capacity` slots, or infinity if there is no plan.
double plain_chain(const ChainNeeds& needs, int64_t capacity, const std::vector<int64_t>& forward_ns);

}  // namespace headroom::internal
