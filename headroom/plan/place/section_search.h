#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "headroom/plan/place/problem.h"

namespace headroom::internal {

/// Decides whether blocks fit into an arena of a given size, by a depth-first search.
///
/// The search places one block after the other at its smallest possible offset: the largest end of the placed blocks
/// that it overlaps in time. Four rules keep the tree small. Each of them keeps some placement with the smallest sum of
/// offsets, so an arena that the whole tree does not fit into is proved too small:
/// - *Canonical order.* Blocks are placed in ascending order of offset, and of equal offsets in order of their ranks. No
///   placement is looked at twice.
/// - *Sections.* In every section, the smallest offset of the blocks that are not placed, plus the sum of their sizes,
///   must be within the arena.
/// - *Dominance.* No block is placed at or above the smallest possible end of another that is not placed: that one would
///   fit below.
/// - *Components.* Blocks that are not placed and share no section, directly or through others, are placed independently.
///   If one component does not fit, no other placement of the other components is tried. A block that overlaps none
///   of the others can only be where it is.
///
/// A search may also *jump*: where the blocks that lacked room, in all dead ends below a node, are live at other times
/// than the block that the node has placed, no other block is tried there. Jumps find placements much sooner where the
/// times of a problem hardly depend on each other, but may skip some, so a search that has jumped proves nothing.
///
/// The rules are those of MiniMalloc (Moffitt, ASPLOS 2023) and TelaMalloc (Maas et al., ASPLOS 2022). A node takes
/// O(blocks and sections of its component), beside O(blocks) for a section whose witness has changed.
class SectionSearch {
 public:
  enum class Outcome : uint8_t {
    kFits,        ///< offsets() has a placement.
    kDoesNotFit,  ///< It is proved that no placement fits.
    kNotFound,    ///< The limit of work was reached, or a jump may have skipped a placement.
  };

  explicit SectionSearch(const Sections& sections);

  /// Searches for a placement in `arena_bytes`, with at most about `max_work` blocks and sections looked at. Of several
  /// blocks with the same offset, the one with the smallest rank is tried first. `ranks` is a permutation.
  Outcome run(int64_t arena_bytes, std::span<const int32_t> ranks, int64_t max_work, bool may_jump);

  /// The offsets of the last run, by block.
  const std::vector<int64_t>& offsets() const { return offset_; }
  int64_t work() const { return work_; }  ///< Work of the last run.

 private:
  static constexpr int32_t kNone = -1;

  /// Blocks that are not placed and share no section with the others that are not placed. They are consecutive in the
  /// list of such blocks.
  struct Component {
    int32_t first_block;
    int32_t last_block;
    int32_t last_section;
    int64_t offset_limit;  ///< The smallest possible end of one of its blocks.
    int32_t candidate;     ///< The first block to place; kNone if there is none.
  };
  /// The sections of blocks that lacked room.
  struct Conflict {
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = -1;
    void add(int32_t other_first, int32_t other_last) {
      first = std::min(first, other_first);
      last = std::max(last, other_last);
    }
  };
  /// The choice of the next block of a component.
  struct Node {
    Component component;
    int64_t min_offset;      ///< A block has at least this offset,
    int32_t min_rank;        ///< and at least this rank if it has this offset.
    int32_t block = kNone;   ///< The placed block; kNone before the first.
    bool is_covered = true;  ///< Whether some other block of the component overlaps the placed one.
    size_t changes_begin = 0;
    size_t components_begin = 0;
    size_t next_component = 0;    ///< The first of components_ that is not solved.
    Conflict conflict = {};       ///< Of all blocks that were placed here.
    Conflict last_conflict = {};  ///< Of the last one.
  };
  struct Change {
    int32_t block;
    int64_t old_offset;  ///< Its smallest possible offset before; kPlaced where it was placed.
  };
  static constexpr int64_t kPlaced = -1;

  void reset(int64_t arena_bytes, std::span<const int32_t> ranks);
  Outcome search(int64_t max_work);
  void open(const Component& component, int64_t min_offset, int32_t min_rank);
  bool place_next(Node& node);
  int32_t find_candidate(const Node& node);
  bool comes_before(int32_t a, int32_t b) const;
  bool place(Node& node);
  bool raise_overlapped(Node& node);
  bool have_sections_room(Node& node);
  bool fail_in(Node& node, int32_t section) const;
  bool take_back(Node& node);
  bool find_witness(int32_t section, int64_t most_bytes);
  void split(Node& node, int64_t min_offset, int32_t min_rank);
  void undo(size_t change_count);

  const Sections& sections_;
  std::vector<size_t> members_begin_;  ///< By section: where its blocks begin in members_.
  std::vector<int32_t> members_;

  int64_t arena_bytes_ = 0;
  int64_t work_ = 0;
  bool may_jump_ = false;
  bool has_jumped_ = false;
  std::vector<int32_t> rank_;        ///< By block.
  std::vector<int64_t> offset_;      ///< By block: its offset, or the smallest possible one before it is placed.
  std::vector<uint8_t> is_placed_;   ///< By block.
  std::vector<int32_t> next_;        ///< By block: the next one that is not placed.
  std::vector<int32_t> previous_;    ///< By block: the previous one that is not placed.
  std::vector<int64_t> rest_bytes_;  ///< By section: padded size of the blocks that are not placed.
  /// By section: a block that was found to leave room for the others when it is the first of the section that is placed.
  std::vector<int32_t> witness_;
  std::vector<Node> nodes_;
  std::vector<Component> components_;
  std::vector<Change> changes_;
};

}  // namespace headroom::internal
