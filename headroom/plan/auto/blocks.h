#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom::internal {

/// The equal blocks of a graph. A deep network repeats one block of ops: in forward, and in reverse order in backward.
/// Blocks are numbered in the order of forward. Ops before, between and after the blocks belong to none.
struct Blocks {
  struct Place {
    int32_t block = -1;  ///< Number of the block; -1 for an op in no block.
    int32_t offset = 0;
    bool is_backward = false;
  };
  struct Part {
    int32_t first_op = 0;
    int32_t length = 0;  ///< Number of ops in a block.
  };

  std::vector<Place> places;  ///< By op.
  Part forward;
  Part backward;
  int32_t count = 0;
  int32_t first_equal = 0;  ///< First of `equal_count` equal blocks in a row.
  int32_t equal_count = 0;

  int32_t op_at(const Place& place) const {
    if (!place.is_backward) return forward.first_op + place.block * forward.length + place.offset;
    return backward.first_op + (count - 1 - place.block) * backward.length + place.offset;
  }
};

/// Finds the blocks of a graph, if at least `least` of them in a row are equal. Equal blocks have the same times, bytes
/// and workspaces of their ops, and the same sources of what the ops read and hold: the same place in the own block,
/// the same place in a block at the same distance, or the same op outside all blocks. Returns none for graphs in which
/// values have several producers. Only blocks of at most 2,000 ops in a phase are found. Takes O(ops * ops / least)
/// time with small constants.
std::optional<Blocks> find_blocks(const Graph& graph, int32_t least);

/// The blocks that a folded graph leaves out: `out_count` of them, after block `last_before`.
struct Gap {
  int32_t last_before = 0;
  int32_t out_count = 0;

  bool is_out(int32_t block) const { return block > last_before && block <= last_before + out_count; }
  /// Returns the number in the folded graph of a block that stays.
  int32_t folded(int32_t block) const { return block <= last_before ? block : block - out_count; }
  /// Returns the number in the whole graph of a block of the folded graph.
  int32_t whole(int32_t block) const { return block <= last_before ? block : block + out_count; }
};

/// A graph without some of its equal blocks, which is planned instead of the whole graph.
struct Folding {
  Graph graph;
  std::vector<int32_t> op_of;  ///< By op of the folded graph: its op in the whole graph.
  Blocks blocks;               ///< Blocks of the whole graph.
  Gap gap;
};

/// Returns the graph with `most` of its equal blocks, or none where it has fewer than `least` equal blocks. `most` is
/// at least 2 and less than `least`.
std::optional<Folding> fold(const Graph& graph, int32_t most, int32_t least);

/// Converts runs of the folded graph, with first runs in base order, to runs of the whole graph. Each equal block of
/// the whole graph is assigned to a block of the folded graph, in equal shares. Of the blocks with the same assignment,
/// `percent` percent rerun ops as `runs` does, and the others as `others` does.
std::vector<int32_t> unfold(const Folding& folding, const std::vector<int32_t>& runs,
                            const std::vector<int32_t>& others, int percent);

}  // namespace headroom::internal
