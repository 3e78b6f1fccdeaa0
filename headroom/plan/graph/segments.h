#pragma once

#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/plan/graph/forward_graph.h"

namespace headroom {

/// The forward vertices in parts that are computed again as a whole, and the vertices that are kept. Any choice can be
/// carried out.
struct Segments {
  std::vector<int> segment;   ///< of each vertex, from 0
  std::vector<uint8_t> keep;  ///< of each vertex, 1: its `kept` values stay from forward until their last use
  int last = 0;               ///< the segment that backward comes to first: everything in it stays
};

/// A segment of what is connected without the kept vertices and the `target`, for each such part; the last one is the
/// part with the latest vertex, and the target belongs to it.
Segments connected_segments(const ForwardGraph& forward, const std::vector<int>& kept, int target);

/// The choice as a sequence of runs, first runs in base order. Where what other segments read is kept,
/// no forward op runs more than twice.
///
/// Forward runs what forward ops, kept vertices, the last segment and the step's outputs need. What else every schedule
/// must run (time_bound.h) runs when the next such op listed after it does, so that first runs keep the base order, unless
/// backward has needed it before. Where less than all that
/// the op of plain training makes is wanted, by leanest_producer(). Then every value is given up that is not kept, not
/// in the last segment, not an output of the step and not made by an op that may not run again. Where a backward op
/// reads a value that was given up (or not made yet), all of the value's segment that this op or later backward ops
/// read is computed again, in base order, together with what that takes: the same of other segments if it comes to
/// that. What has been made again stays until its last use.
///
///     vertices  f0 f1 f2 (kept) | f3 f4, each with a backward op that reads its input and output
///     runs      f0 f1 f2 f3 f4 b4 b3, f0 f1, b2 b1 b0
///
/// O(ids read and written by base ops and other producers of the same values), times the logarithm of a segment's
/// length.
std::vector<OpId> segment_runs(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

/// segment_runs() with drops.
Schedule segment_schedule(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

}  // namespace headroom
