#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/graph/forward_graph.h"

namespace headroom::internal {

/// Sets of forward vertices that contain all predecessors of their members, ordered by size, from the empty set to the
/// whole set. The boundary B(L) of a set L consists of the members that a vertex outside reads.
struct LowerSets {
  int vertices = 0;
  size_t words = 0;                 ///< Number of 64-bit words for one set.
  std::vector<uint64_t> bits;       ///< Bits of one set after the other.
  std::vector<int64_t> size_bytes;  ///< M(L): sum of the bytes over L.
  std::vector<int64_t> time_ns;     ///< T(L): sum of the times over L.
  /// outside(L): bytes of the readers of L outside, plus bytes of what else these read outside.
  std::vector<int64_t> outside_bytes;
  std::vector<std::vector<int>> boundary;  ///< B(L)

  int count() const { return static_cast<int>(size_bytes.size()); }
  bool contains(int set, int vertex) const {
    const auto word = static_cast<size_t>(set) * words + static_cast<size_t>(vertex) / 64;
    return (bits[word] >> (vertex % 64) & 1) != 0;
  }
};

/// Returns all lower sets (`exact`), or the empty set, the whole set, and each vertex with its ancestors. Throws
/// NotApplicable where there are more than `limit` sets. Takes O(vertices * sets).
LowerSets lower_sets(const ForwardGraph& forward, bool exact, int64_t limit);

}  // namespace headroom::internal
