#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom::internal {

/// The groups of ops that every schedule must run. Ops that share an output are *alternatives* (a stage run with or
/// without recording its tape); they form a group. Groups are numbered in base order of their first ops. A group is
/// needed if some value that only it writes is an output of the step, or is read by every op of a needed group.
struct NeededGroups {
  std::vector<int> group_of_op;        ///< By op.
  std::vector<std::vector<OpId>> ops;  ///< By group, ascending.
  std::vector<uint8_t> needed;         ///< By group.
};
NeededGroups find_needed_groups(const Graph& graph);

/// Returns the time of the fastest of some ops, of which there must be at least one.
int64_t fastest_ns(const Graph& graph, std::span<const OpId> ops);

/// Returns a lower bound on the time of every valid schedule, for any budget and order: the sum over all needed groups
/// of their fastest op. Takes O(size of the graph).
int64_t time_lower_bound_ns(const Graph& graph);

}  // namespace headroom::internal
