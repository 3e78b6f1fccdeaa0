#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom::internal {

/// A forward op of store-all.
///
/// Memory and time that no choice can change count as 0: an op that may not run again (`recompute` is false) has no
/// bytes and no time, and an output of the step has no bytes, because both stay live whatever is decided.
struct ForwardVertex {
  OpId op{};
  int64_t size_bytes = 0;  ///< Bytes of its outputs that other ops read.
  int64_t kept_bytes = 0;  ///< Bytes of `kept`.
  int64_t time_ns = 0;     ///< Time of running it again.
  /// The values that stay live if this vertex is kept: all its outputs that other ops read; or only those that forward
  /// ops read, where another op writes just these from the same inputs with fewer bytes.
  std::vector<ValueId> kept;
};

/// The forward part of a training step, for planners of arbitrary graphs: a vertex for every forward op of base_ops(),
/// in that order, and an edge u -> v where v reads an output of u. Lists are ascending, without repeats.
struct ForwardGraph {
  std::vector<OpId> base;  ///< The ops of base_ops().
  std::vector<ForwardVertex> vertices;
  std::vector<std::vector<int>> predecessors;
  std::vector<std::vector<int>> successors;

  int size() const { return static_cast<int>(vertices.size()); }
  const ForwardVertex& vertex(int v) const { return vertices[static_cast<size_t>(v)]; }
};

/// Returns the forward graph of a training step. Takes O(size of the graph). Throws NotApplicable, naming `planner`,
/// where store-all has no forward or no backward op.
ForwardGraph forward_graph(const Graph& graph, std::string_view planner);

/// Returns the op with the fewest output bytes that writes all of `wanted` (some outputs of `op`, not empty) and reads
/// nothing that `op` does not. Ties: the least time, then the earliest op. Ops that may not run again are left out,
/// except `op`.
OpId leanest_producer(const Graph& graph, OpId op, std::span<const ValueId> wanted);

}  // namespace headroom::internal
