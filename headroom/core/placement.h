#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// The address of one copy of a value, or of the workspace of a run.
struct PlacedBuffer {
  size_t step = 0;               ///< The step of the schedule that writes the copy or needs the workspace.
  std::optional<ValueId> value;  ///< None for the workspace of the step.
  int64_t offset = 0;            ///< In bytes from the start of the arena.
  bool operator==(const PlacedBuffer&) const = default;
};

/// Addresses for a schedule, in one arena that has everything but the resident values. There is one entry for each copy
/// that a run writes and for each workspace above 0. Values of 0 bytes have none, and neither has the first output of a
/// run in place, which has the address of what it overwrites.
struct Placement {
  int64_t alignment = 1;  ///< Every offset is a multiple of it.
  int64_t arena_bytes = 0;
  std::vector<PlacedBuffer> offsets;
  bool operator==(const Placement&) const = default;
};

/// Returns what is wrong with a placement for a schedule, or none: an invalid schedule, an entry that is missing, given
/// twice or for something that the schedule does not place, an offset that is negative or no multiple of the alignment, a
/// buffer that ends above the arena, and two buffers that overlap and are live during the same step. The message names
/// the entries, by their position, step and value.
///
/// The rules of docs/formats.md are read literally here. Apart from verify() on the schedule, this shares no code with
/// find_buffers() and with what makes placements. Takes O(steps * (live copies + what they hold)).
std::optional<std::string> verify_placement(const Graph& graph, const Schedule& schedule, const Placement& placement);

}  // namespace headroom
