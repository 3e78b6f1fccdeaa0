#pragma once

#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::internal {

/// The memory of a schedule that runs in an arena, as far as the graph shows it.
struct ArenaPeak {
  int64_t arena_bytes = 0;
  /// Largest sum of the arena, what is live beside it, and the resident values.
  int64_t peak_bytes = 0;
};

/// Returns the memory of a schedule in whose arena everything lies that the step both writes and frees: not what is left
/// at the end, such as gradients and outputs, and not what ops write that are outside of the step (`is_outside`, by op).
/// The arena is there until the last op of the step, so ops after that, such as the accumulation of gradients, run
/// without it. Workspaces below 0 count as 0. Throws as place() does.
ArenaPeak find_arena_peak(const Graph& graph, const Schedule& schedule, const std::vector<bool>& is_outside,
                          int64_t alignment);

}  // namespace headroom::internal
