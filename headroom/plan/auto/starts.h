#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/search/timeline.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {

/// Returns store-all with faster producers of values that have several. Each producer is tried instead of a slower one,
/// and kept where all ops that the step then needs, in base order, take less time. `base` are the runs of store-all.
/// Returns nothing where no other producers are faster. Visits about `max_work` ops.
std::vector<int32_t> faster_base(const FlatGraph& flat, const std::vector<int32_t>& base, int64_t max_work);

/// Returns the runs of `base` in an order that a list scheduler makes: of the runs whose inputs are there, always the one
/// that adds the fewest bytes, with what it frees subtracted; of equal ones the one that comes first in `base`. With
/// `backwards` it is made from the end: of the runs whose outputs all readers have been placed, the one that adds the fewest
/// bytes before it.
std::vector<int32_t> greedy_order(const FlatGraph& flat, const std::vector<int32_t>& base, bool backwards);

/// Returns a plan made from the cut of memory_bound(): store-all up to the bound's moment, at which only the kept
/// values of those produced before are live, and the others are recomputed where they are read. Returns nothing where
/// that is no valid plan.
std::vector<int32_t> runs_around_cut(const FlatGraph& flat, const std::vector<int32_t>& base, const MemoryBound& bound);

/// Returns runs_around_cut() of the runs of `base` in the order in which the bound for all orders has them: what runs
/// before its moment, the moment's op, and what it postpones, each in base order.
std::vector<int32_t> cut_start(const FlatGraph& flat, const std::vector<int32_t>& base, const MemoryBound& bound);

}  // namespace headroom::internal
