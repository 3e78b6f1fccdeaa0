#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/chain/needs.h"

namespace headroom {

/// The `chain` recurrence as it is usually written, for comparison: one core, double precision, loops over length,
/// start, memory and split, an array laid out [i][l][m], values only. Returns the least extra time of the whole chain
/// within `capacity` slots, infinity where there is none.
double plain_chain(const ChainNeeds& needs, int64_t capacity, const std::vector<int64_t>& forward_ns);

}  // namespace headroom
