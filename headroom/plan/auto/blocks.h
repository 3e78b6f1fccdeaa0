#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

/// Where a graph repeats itself: a deep network is a block of ops over and over again, forward and then, in reverse,
/// backward. Blocks are numbered as forward runs them. Ops before, between and after them are in none.
struct Blocks {
  struct Place {
    int32_t block = -1;  ///< -1: in none
    int32_t offset = 0;
    bool is_backward = false;
  };
  struct Part {
    int32_t first_op = 0;
    int32_t length = 0;  ///< ops of a block
  };

  std::vector<Place> places;  ///< by op
  Part forward;
  Part backward;
  int32_t count = 0;
  int32_t first_equal = 0;  ///< from here on so many blocks are equal
  int32_t equal_count = 0;

  int32_t op_at(const Place& place) const {
    if (!place.is_backward) return forward.first_op + place.block * forward.length + place.offset;
    return backward.first_op + (count - 1 - place.block) * backward.length + place.offset;
  }
};

/// Blocks of which at least `least` in a row are equal: in the times, bytes and workspaces of their ops, and in what
/// they read and hold: of their own block, of another as far away, or the same of what is in none. None for graphs in
/// which values have several producers, nor of more than 2,000 ops a phase. O(ops * ops / least), with small constants.
std::optional<Blocks> find_blocks(const Graph& graph, int32_t least);

/// Blocks that are left out: those after `last_before`.
struct Gap {
  int32_t last_before = 0;
  int32_t out_count = 0;

  bool is_out(int32_t block) const { return block > last_before && block <= last_before + out_count; }
  /// The number that a block has when they are left out, and back.
  int32_t folded(int32_t block) const { return block <= last_before ? block : block - out_count; }
  int32_t whole(int32_t block) const { return block <= last_before ? block : block + out_count; }
};

/// A graph without some of its equal blocks, to be planned in its place.
struct Folding {
  Graph graph;
  std::vector<int32_t> op_of;  ///< by op: the one of the whole graph
  Blocks blocks;               ///< of the whole graph
  Gap gap;
};

/// The graph with `most` of its equal blocks, at least two; none where it has fewer than `least`, which is more.
std::optional<Folding> fold(const Graph& graph, int32_t most, int32_t least);

/// Runs of the folded graph, the first of each op in the base order, as runs of the whole. The equal blocks of the whole
/// graph are shared out evenly among the folded ones; of those that do what the same one does, `percent` percent take it
/// from `runs`, the others from `others`.
std::vector<int32_t> unfold(const Folding& folding, const std::vector<int32_t>& runs,
                            const std::vector<int32_t>& others, int percent);

}  // namespace headroom
