#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "headroom/algorithm/min_plus.h"
#include "headroom/plan/chain/needs.h"

namespace headroom::internal {

/// Options of how a table is computed. They never change what is in it.
struct ChainTableOptions {
  int threads = 1;
  InstructionSet instruction_set = supported_instruction_sets().back();
};

/// The values of the `chain` recurrence: for every segment (i..l) of a chain and every memory m of 0..capacity slots,
/// the least time spent on recomputation.
///
///     E(i,l)[m] = infinity                                                        where m < begin(i,l)
///     E(i,i)[m] = 0
///     E(i,l)[m] = min( E(i+1,l)[m - tape(i)]                                      where m >= record(i,l),
///                      min over i <= j < l of
///                        forward_ns(i..j) + E(j+1,l)[m - output(j)] + E(i,j)[m] )
///
/// Takes O(L^3 * capacity) time and O(L^2 * capacity) memory. A block of slots that is all infinity (too little memory
/// for any way) or all 0 (enough to record every stage) is not computed.
///
/// A Number is uint32_t, which is twice as fast and takes half the memory, or double. With uint32_t, every entry with
/// E(i,l)[m] + forward_ns(1..l) >= kMostNs counts as infinity. Entries that use such an entry are no smaller, so every
/// finite entry is exact. With double, everything is exact if 2 * L * forward_ns(1..L) < 2^53.
template <typename Number>
class ChainTable {
 public:
  /// Computes the table. `least` is at most least_memory(needs) and tells which entries need not be computed.
  /// forward_ns(1..L) must be below kMostNs. Throws NotApplicable where the table would take more than `most_bytes`.
  ChainTable(const ChainNeeds& needs, int64_t capacity, const SegmentArray<int64_t>& least,
             std::span<const int64_t> forward_ns, size_t most_bytes, const ChainTableOptions& options);

  /// Time that counts as infinity, and up to which all smaller integers are exact, in nanoseconds.
  static constexpr double kMostNs = sizeof(Number) == 4 ? 2147483647.0 : 9007199254740992.0;

  /// Returns E(i,l)[m], for i <= l and a memory that a segment starting at i can be left with: 0 <= m <= capacity -
  /// output(i-1).
  double extra_ns(int i, int l, int64_t m) const;

 private:
  template <typename>
  friend class ChainTableFiller;

  // The table stores D(i,l)[m] = E(i,l)[m] + forward_ns(1..l), because the time of keeping j then is
  //     D(i,j)[m] + D(j+1,l)[m - output(j)] - forward_ns(1..i-1),
  // whose last term does not depend on j: a min-plus product. D is stored twice, once for each side of the product: as
  // left(i,l)[m] = D(i,l)[m] and as right(i,l)[m] = D(i,l)[m - output(i-1)], both so that the kernel reads adjacent
  // memory for consecutive j.
  //
  // Four rows i = 4g+1..4g+4 make a group g, 128 bytes of slots make a block b, and a block of the four rows is a cell.

  /// The left sides of one (g,b): cells for the ends l = begin..end-1.
  struct Left {
    int begin = 0;  ///< For smaller l, D(i,l)[m] = forward_ns(1..l) in the whole block.
    int end = 0;    ///< From here on, D(i,l)[m] = infinity in the whole block.
    size_t offset = 0;
  };
  /// The right sides of one (l,b): blocks for the starts i = begin..l. For smaller i, the whole block is infinity.
  struct Right {
    int begin = 0;
    size_t offset = 0;
  };

  static constexpr Number kInfinity =
      sizeof(Number) == 4 ? static_cast<Number>(kMostNs) : std::numeric_limits<Number>::infinity();
  /// A number above all sums of two numbers, where the type has one.
  static constexpr Number kUnset = sizeof(Number) == 4 ? std::numeric_limits<Number>::max() : kInfinity;
  static constexpr int kRows = kMinPlusRows;
  static constexpr int kBlock = kMinPlusWidth<Number>;
  static constexpr size_t kCell = size_t{kRows} * kBlock;

  struct Free {
    void operator()(Number* p) const { std::free(p); }
  };
  using Numbers = std::unique_ptr<Number[], Free>;
  /// Returns an uninitialised array, aligned for the kernel.
  static Numbers make_numbers(size_t count);

  static int group_of(int i) { return (i - 1) / kRows; }
  Left& left(int group, int64_t block) { return lefts_[static_cast<size_t>(group * blocks_ + block)]; }
  const Left& left(int group, int64_t block) const { return lefts_[static_cast<size_t>(group * blocks_ + block)]; }
  Right& right(int l, int64_t block) { return rights_[static_cast<size_t>(l * blocks_ + block)]; }
  const Right& right(int l, int64_t block) const { return rights_[static_cast<size_t>(l * blocks_ + block)]; }

  /// Returns the cell of an end l in begin..end-1.
  Number* stored_cell(const Left& left, int l) const {
    return left_numbers_.get() + left.offset + static_cast<size_t>(l - left.begin) * kCell;
  }
  /// Returns a cell filled with forward_ns(1..l).
  const Number* enough_cell(int l) const { return enough_.get() + static_cast<size_t>(l) * kCell; }
  /// Returns D(i,l) in a block; infinity below the first block and above the last.
  const Number* block_of(int i, int l, int64_t block) const;
  /// Returns the block of a start i in begin..l.
  Number* stored_block(const Right& right, int i) const {
    return right_numbers_.get() + right.offset + static_cast<size_t>(i - right.begin) * kBlock;
  }

  void lay_out(const ChainNeeds& needs, const SegmentArray<int64_t>& least, size_t most_bytes);
  size_t lay_out_lefts(const ChainNeeds& needs, const SegmentArray<int64_t>& least, size_t most_bytes);
  size_t lay_out_rights(const ChainNeeds& needs, const SegmentArray<int64_t>& least, size_t left_count,
                        size_t most_bytes);
  void check_size(size_t count, size_t most_bytes) const;

  int length_;
  int groups_;
  int64_t capacity_;
  int64_t blocks_;
  std::vector<Number> forward_before_ns_;  ///< By stage i: forward_ns(1..i).
  std::vector<Left> lefts_;
  std::vector<Right> rights_;
  Numbers left_numbers_;
  Numbers right_numbers_;
  Numbers enough_;
  Numbers none_;  ///< A block of infinity.
};

}  // namespace headroom::internal
