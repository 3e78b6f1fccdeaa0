#pragma once

#include <cstdint>

#include "headroom/core/placement.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

struct PlaceOptions {
  int64_t alignment = 1;            ///< At least 1.
  Effort effort = Effort::kNormal;  ///< High effort does about fifty times the work of normal effort.
};

struct PlaceResult {
  Placement placement;
  int64_t lower_bound_bytes = 0;  ///< It is proved that no arena for the schedule is smaller.
  bool is_optimal() const { return placement.arena_bytes == lower_bound_bytes; }
};

/// Returns addresses for a valid schedule, in an arena as small as solve_placement() finds. The result is the same on
/// every machine. Throws TooLarge where the sizes of all copies, rounded up to the alignment, do not add up within 64
/// bits.
PlaceResult place(const Graph& graph, const Schedule& schedule, const PlaceOptions& options = {});

}  // namespace headroom::internal
