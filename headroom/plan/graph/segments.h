#pragma once

#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/plan/graph/forward_graph.h"

namespace headroom::internal {

/// The forward vertices divided into segments, each of which is recomputed as a whole, and the vertices that are kept.
/// Every choice gives a valid schedule.
struct Segments {
  std::vector<int> segment;   ///< By vertex: its segment, from 0.
  std::vector<uint8_t> keep;  ///< By vertex: 1 if its `kept` values stay live from forward until their last use.
  int last = 0;               ///< The segment that backward reaches first; all its values stay live.
};

/// Returns a segment for each set of vertices that are connected without the kept vertices and the `target`. The last
/// segment is the one with the latest vertex, and the target belongs to it.
Segments connected_segments(const ForwardGraph& forward, const std::vector<int>& kept, int target);

/// Returns the choice as a sequence of runs, with first runs in base order. If all values that other segments read are
/// kept, no forward op runs more than twice.
///
/// Forward runs what forward ops, kept vertices, the last segment and the step's outputs need. Other ops that every
/// schedule must run (time_bound.h) run when the next such op listed after them does, so that first runs keep the base
/// order, unless backward has needed them before. Where only some outputs of an op of store-all are needed,
/// leanest_producer() is run instead. Then every value is evicted that is not kept, not in the last segment, not an
/// output of the step and not written by an op that may not run again. Where a backward op reads a value that was
/// evicted (or not written yet), all values of its segment that this op or later backward ops read are recomputed, in
/// base order, together with what that needs, if necessary from other segments in the same way. A recomputed value
/// stays live until its last use.
///
///     vertices  f0 f1 f2 (kept) | f3 f4, each with a backward op that reads its input and output
///     runs      f0 f1 f2 f3 f4 b4 b3, f0 f1, b2 b1 b0
///
/// Takes O(ids read and written by base ops and other producers of the same values), times the logarithm of a segment's
/// length.
std::vector<OpId> segment_runs(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

/// Returns segment_runs() with drops.
Schedule segment_schedule(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

}  // namespace headroom::internal
