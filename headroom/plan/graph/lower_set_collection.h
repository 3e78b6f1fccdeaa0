#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/graph/forward_graph.h"

namespace headroom {

/// Sets of forward vertices that hold all predecessors of their members, fewest members first: from the empty set to
/// all. For a set L, B(L) is its boundary: the members that a vertex outside reads.
struct LowerSets {
  int vertices = 0;
  size_t words = 0;                        ///< of 64 bits for one set
  std::vector<uint64_t> bits;              ///< set after set
  std::vector<int64_t> size_bytes;         ///< M(L): sum over L
  std::vector<int64_t> time_ns;            ///< T(L): sum over L
  std::vector<int64_t> outside_bytes;      ///< of the readers of L outside, plus that of what else they read outside
  std::vector<std::vector<int>> boundary;  ///< B(L)

  int count() const { return static_cast<int>(size_bytes.size()); }
  bool contains(int set, int vertex) const {
    const auto word = static_cast<size_t>(set) * words + static_cast<size_t>(vertex) / 64;
    return (bits[word] >> (vertex % 64) & 1) != 0;
  }
};

/// All lower sets (`exact`), or the empty one, all, and for each vertex itself with its ancestors. At most `limit`
/// sets, else NotApplicable. O(vertices * sets).
LowerSets lower_sets(const ForwardGraph& forward, bool exact, int64_t limit);

/// The empty set, all, and the base order up to at most `parts` places evenly along it, each moved up to where the fewest
/// bytes are kept. Throws NotApplicable where sizes are too large to add up. O(vertices * parts).
LowerSets prefix_lower_sets(const ForwardGraph& forward, int parts);

}  // namespace headroom
