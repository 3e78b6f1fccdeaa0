#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

/// One forward op of plain training.
///
/// What no choice can change costs nothing here: an op that may not run again (`recompute` false) has no bytes and no
/// time, and an output of the step has no bytes, because both stay in memory whatever is decided.
struct ForwardVertex {
  OpId op{};
  int64_t size_bytes = 0;  ///< of its outputs that other ops read
  int64_t kept_bytes = 0;  ///< of `kept`
  int64_t time_ns = 0;     ///< of running it again
  /// What keeping this vertex means: all its outputs that other ops read; or those that forward ops read, where another
  /// op makes just these from the same inputs with fewer bytes.
  std::vector<ValueId> kept;
};

/// The forward part of a training step, as planners for arbitrary graphs see it: a vertex for every forward op of
/// base_ops(), in that order, and an edge u -> v where v reads an output of u. Lists are ascending, without repeats.
struct ForwardGraph {
  std::vector<OpId> base;  ///< base_ops()
  std::vector<ForwardVertex> vertices;
  std::vector<std::vector<int>> predecessors;
  std::vector<std::vector<int>> successors;

  int size() const { return static_cast<int>(vertices.size()); }
  const ForwardVertex& vertex(int v) const { return vertices[static_cast<size_t>(v)]; }
};

/// O(size of the graph). Throws NotApplicable, naming `planner`, where plain training has no forward or no backward op.
ForwardGraph forward_graph(const Graph& graph, std::string_view planner);

/// Of the ops that make all of `wanted` (some outputs of `op`, not empty) and read nothing that `op` does not, the one
/// with the fewest output bytes; ties: the least time, then the earliest. Ops that may not run again do not count, `op`
/// excepted.
OpId leanest_producer(const Graph& graph, OpId op, std::span<const ValueId> wanted);

}  // namespace headroom
