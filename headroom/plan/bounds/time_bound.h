#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

/// Which ops every schedule must run. Ops that share an output are *alternatives* (a stage run with or without
/// recording its tape): they form a group, numbered by its first op in base order. A group is needed when some value
/// that only it writes is a step's output, or is read by every op of a needed group.
struct NeededGroups {
  std::vector<int> group_of_op;
  std::vector<std::vector<OpId>> ops;  ///< by group, ascending
  std::vector<uint8_t> needed;         ///< by group
};
NeededGroups find_needed_groups(const Graph& graph);

/// The time of the fastest of some ops, of which there is at least one.
int64_t fastest_ns(const Graph& graph, std::span<const OpId> ops);

/// A time that no valid schedule is below, whatever the budget and the order: the fastest op of every needed group. O(size of the
/// graph).
int64_t time_lower_bound_ns(const Graph& graph);

}  // namespace headroom
