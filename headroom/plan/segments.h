#pragma once

#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/plan/forward_graph.h"

namespace headroom {

/// The forward vertices in parts that are computed again as a whole, and the vertices that are kept. Any choice can be
/// carried out.
struct Segments {
  std::vector<int> segment;   ///< of each vertex, from 0
  std::vector<uint8_t> keep;  ///< of each vertex, 1: its `kept` values stay from forward until their last use
  int last = 0;               ///< the segment that backward comes to first: everything in it stays
};

/// The choice as a sequence of runs, first runs in base order, at most one more run of each forward op.
///
/// Forward runs what forward ops, kept vertices, the last segment and the step's outputs need; where less than all that the
/// op of plain training makes is wanted, by leanest_producer(). Then every value is given up that is not kept, not in
/// the last segment, not an output of the step and not made by an op that may not run again. Where a backward op
/// reads a value that was given up (or not made yet), all of the value's segment that this op or later backward ops
/// read is computed again, in base order, together with what that takes: the same of other segments if it comes to that.
/// What has been made again stays until its last use.
///
///     forward  u -> v -> w, backward W V U, each reading its forward op's input and output; u kept, {v} is segment 0, {w} the last
///     runs     u v w W | v | V U
///
/// O(ids read and written by base ops and other producers of the same values), times the logarithm of a segment's length.
std::vector<OpId> segment_runs(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

/// segment_runs() with drops.
Schedule segment_schedule(const Graph& graph, const ForwardGraph& forward, const Segments& segments);

}  // namespace headroom
