#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headroom::internal {

/// A block of memory that is live from `first` to `last`, both included. Times are any numbers: steps of a schedule, or
/// sections.
struct Block {
  int64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
};

/// Blocks that need addresses in one arena. Two blocks that are live at the same time must not overlap.
struct PlaceProblem {
  std::vector<Block> blocks;
  int64_t alignment = 1;  ///< Every offset is a multiple of it.
};

/// An offset for every block of a problem.
struct PlaceSolution {
  std::vector<int64_t> offsets;
  int64_t arena_bytes = 0;        ///< The largest end of a block.
  int64_t lower_bound_bytes = 0;  ///< It is proved that no arena is smaller.
};

/// A placement problem over sections instead of times. A section is a maximal set of blocks that are live together: two
/// blocks are live at the same time if and only if they share a section, and a block's sections are consecutive.
///
///     time      0  1  2  3  4
///     a         [-----]                 sections: {a, b} at time 1 and {b, c} at time 3
///     b            [--------]
///     c                  [-----]
///
/// Blocks are stacked by their padded sizes, rounded up to the alignment, so that every sum of padded sizes is a valid
/// offset. Only the block at the top of a stack ends at its own size. Blocks are numbered by their first sections, and
/// `source` has their numbers in the problem.
class Sections {
 public:
  /// Takes O(n log n), and with padding O(number of pairs of a block and its section). Throws TooLarge where the sum of
  /// all padded sizes does not fit int64.
  explicit Sections(const PlaceProblem& problem);

  int32_t block_count() const { return static_cast<int32_t>(bytes.size()); }
  int32_t section_count() const { return static_cast<int32_t>(total_bytes.size()); }

  /// The largest sum of padded sizes in a section, less the padding of its most padded block. No arena is smaller.
  int64_t lower_bound_bytes = 0;

  std::vector<int64_t> bytes;          ///< By block.
  std::vector<int64_t> padded;         ///< By block: its bytes rounded up to the alignment.
  std::vector<int32_t> first;          ///< By block: its first section, ascending.
  std::vector<int32_t> last;           ///< By block: its last section.
  std::vector<size_t> source;          ///< By block: its position in the problem.
  std::vector<int64_t> total_bytes;    ///< By section: the sum of its padded sizes.
  std::vector<int64_t> padding_bytes;  ///< By section: the most padding of one of its blocks.

 private:
  void number_blocks(const PlaceProblem& problem);
  void add_up_sections();
};

}  // namespace headroom::internal
