#include "headroom/plan/chain/table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "headroom/algorithm/workers.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

/// Fills a table tile by tile. A tile is a square of segments, kTile starts by kTile ends. It needs the tiles left of
/// it (the same starts, earlier ends) and below it (later starts, the same ends). Within a tile, all segments are
/// computed one block of slots after the other, since no segment needs more slots of another than it has itself.
template <typename Number>
class ChainTableFiller {
 public:
  ChainTableFiller(ChainTable<Number>& table, const ChainNeeds& needs, MinPlusKernel<Number> kernel)
      : table_(table), needs_(needs), kernel_(kernel), tiles_per_side_((table.length_ + kTile - 1) / kTile) {
    for (int distance = 0; distance < tiles_per_side_; ++distance)
      for (int row = 0; row + distance < tiles_per_side_; ++row) tiles_.push_back(tile_at(row, row + distance));
    done_ = std::vector<std::atomic<bool>>(at(tiles_per_side_ * tiles_per_side_));
  }

  void fill(int threads) {
    const int workers = std::clamp(threads, 1, tiles_per_side_);
    std::vector<Numbers> scratch(at(workers));
    for (Numbers& numbers : scratch) numbers = Table::make_numbers(kTileCells * kCell);
    run_workers(workers, [&](int w) { work(scratch[at(w)].get()); });
  }

 private:
  using Table = ChainTable<Number>;
  using Numbers = typename Table::Numbers;
  using Left = typename Table::Left;
  using Right = typename Table::Right;
  static constexpr int kRows = Table::kRows;
  static constexpr int kBlock = Table::kBlock;
  static constexpr size_t kCell = Table::kCell;
  static constexpr size_t kBlockBytes = kBlock * sizeof(Number);
  static constexpr int kTile = 48;
  static constexpr size_t kTileCells = size_t{kTile} * (kTile / kRows);
  static_assert(kTile % kRows == 0);
  static constexpr int kChunk = 32;

  struct Tile {
    int row = 0;
    int column = 0;
    int first_i = 0;
    int last_i = 0;
    int first_l = 0;
    int last_l = 0;
  };

  Tile tile_at(int row, int column) const {
    const auto first = [](int side) { return side * kTile + 1; };
    const auto last = [&](int side) { return std::min(first(side + 1) - 1, table_.length_); };
    return {row, column, first(row), last(row), first(column), last(column)};
  }

  std::atomic<bool>& done(int row, int column) { return done_[at(row * tiles_per_side_ + column)]; }

  /// Computes tiles, in an order in which each comes after those that it needs, so that the thread with the first
  /// unfinished tile never waits.
  void work(Number* scratch) {
    for (size_t next = next_tile_++; next < tiles_.size(); next = next_tile_++) {
      const Tile& tile = tiles_[next];
      if (tile.row < tile.column) {
        done(tile.row, tile.column - 1).wait(false, std::memory_order_acquire);
        done(tile.row + 1, tile.column).wait(false, std::memory_order_acquire);
      }
      for (int64_t block = 0; block < table_.blocks_; ++block) BlockOfTile{*this, tile, block, scratch}.fill();
      done(tile.row, tile.column).store(true, std::memory_order_release);
      done(tile.row, tile.column).notify_all();
    }
  }

  /// Computes a tile at one block of slots.
  struct BlockOfTile {
    const ChainTableFiller& filler;
    const Tile& tile;
    int64_t block;
    Number* scratch;

    const Table& table = filler.table_;
    const ChainNeeds& needs = filler.needs_;

    /// Returns the cell of a group and an end while it is being computed.
    Number* best(int group, int l) const {
      return scratch + (at(group - Table::group_of(tile.first_i)) * kTile + at(l - tile.first_l)) * kCell;
    }

    void fill() const {
      const int first_group = Table::group_of(tile.first_i);
      const int last_group = Table::group_of(tile.last_i);
      std::fill_n(scratch, kTileCells * kCell, Table::kUnset);
      // First the choices "keep j" with j between the tile's starts and its ends, a few at a time, so that what they
      // read stays in cache.
      for (int j = tile.last_i; j < tile.first_l; j += kChunk)
        for (int group = first_group; group <= last_group; ++group)
          keep_each_for_all_ends(group, j, std::min(j + kChunk, tile.first_l));
      for (int group = last_group; group >= first_group; --group) {
        keep_each_for_all_ends(group, last_row(group), std::min(tile.last_i, tile.first_l));
        for (int l = std::max(tile.first_l, first_row(group)); l <= tile.last_l; ++l) {
          keep_each(group, std::max(last_row(group), tile.first_l), l, l);
          finish(group, l);
        }
      }
    }

    static int first_row(int group) { return group * kRows + 1; }
    static int last_row(int group) { return (group + 1) * kRows; }

    void keep_each_for_all_ends(int group, int begin, int end) const {
      for (int l = tile.first_l; l <= tile.last_l; ++l) keep_each(group, begin, end, l);
    }

    /// Lowers best(group, l) to D(i,j)[m] + D(j+1,l)[m - output(j)] for the rows i of the group and j in begin..end-1.
    void keep_each(int group, int begin, int end, int l) const {
      const Left& left = table.left(group, block);
      if (l < left.begin || l >= left.end) return;
      const Right& right = table.right(l, block);
      begin = std::max(begin, right.begin - 1);
      end = std::min(end, left.end);
      const int middle = std::min(left.begin, end);
      if (begin < middle) {
        filler.kernel_(table.enough_cell(begin), table.stored_block(right, begin + 1), middle - begin, best(group, l));
        begin = middle;
      }
      if (begin < end)
        filler.kernel_(table.stored_cell(left, begin), table.stored_block(right, begin + 1), end - begin,
                       best(group, l));
    }

    /// Computes the rows of a group at one end, from best(group, l), which includes every j at or after all of the
    /// rows.
    void finish(int group, int l) const {
      const Left& left = table.left(group, block);
      const Right& right = table.right(l, block);
      const bool is_stored = left.begin <= l && l < left.end;
      Number* best_cell = best(group, l);
      // The kernel reads rows after l too, though its results for them are not used.
      if (is_stored && l < last_row(group)) std::fill_n(table.stored_cell(left, l), kCell, Table::kInfinity);
      for (int i = std::min(last_row(group), l); i >= first_row(group); --i) {
        if (is_stored) {
          const int row = i - first_row(group);
          finish_row(i, l, best_cell + row * kBlock);
          std::memcpy(table.stored_cell(left, l) + row * kBlock, best_cell + row * kBlock, kBlockBytes);
        }
        if (i == 1 || i < right.begin) continue;
        read(i, l, block * kBlock - needs.output[at(i - 1)], table.stored_block(right, i));
        if (i > first_row(group)) keep_each(group, i - 1, i, l);
      }
    }

    /// Computes D(i,l)[m] in `row`, which has the minimum of D(i,j)[m] + D(j+1,l)[m - output(j)] over all j.
    void finish_row(int i, int l, Number* row) const {
      const int64_t m = block * kBlock;
      const auto slots_below = [m](int64_t need) { return std::clamp<int64_t>(need - m, 0, kBlock); };
      if (i == l) {
        const int64_t enough = slots_below(needs.begin(i, i));
        std::fill(row, row + enough, Table::kInfinity);
        std::fill(row + enough, row + kBlock, table.forward_before_ns_[at(l)]);
        return;
      }
      Number recorded[size_t{kBlock}];
      read(i + 1, l, m - needs.tape[at(i)], recorded);
      std::fill(recorded, recorded + slots_below(needs.record(i, l)), Table::kInfinity);
      const Number before_ns = table.forward_before_ns_[at(i - 1)];
      for (int k = 0; k < kBlock; ++k) row[k] = std::min<Number>(row[k] - before_ns, recorded[k]);
      std::fill(row, row + slots_below(needs.begin(i, l)), Table::kInfinity);
    }

    /// Copies D(i,l)[m], D(i,l)[m+1], … into the block `out`. m may be negative.
    void read(int i, int l, int64_t m, Number* out) const {
      const int64_t lower = m >= 0 ? m / kBlock : -((kBlock - 1 - m) / kBlock);
      Number both[2 * size_t{kBlock}];
      std::memcpy(both, table.block_of(i, l, lower), kBlockBytes);
      std::memcpy(both + kBlock, table.block_of(i, l, lower + 1), kBlockBytes);
      std::memcpy(out, both + (m - lower * kBlock), kBlockBytes);
    }
  };

  Table& table_;
  const ChainNeeds& needs_;
  MinPlusKernel<Number> kernel_;
  int tiles_per_side_;
  std::vector<Tile> tiles_;
  std::vector<std::atomic<bool>> done_;
  std::atomic<size_t> next_tile_ = 0;
};

template <typename Number>
ChainTable<Number>::ChainTable(const ChainNeeds& needs, int64_t capacity, const SegmentArray<int64_t>& least,
                               std::span<const int64_t> forward_ns, size_t most_bytes, const ChainTableOptions& options)
    : length_(needs.length),
      groups_((length_ + kRows - 1) / kRows),
      capacity_(capacity),
      blocks_(capacity / kBlock + 1),
      forward_before_ns_(at(length_) + 1) {
  lay_out(needs, least, most_bytes);
  none_ = make_numbers(kBlock);
  std::fill_n(none_.get(), kBlock, kInfinity);
  enough_ = make_numbers((at(length_) + 1) * kCell);
  for (int l = 1; l <= length_; ++l) {
    forward_before_ns_[at(l)] = forward_before_ns_[at(l - 1)] + static_cast<Number>(forward_ns[at(l - 1)]);
    std::fill_n(enough_.get() + at(l) * kCell, kCell, forward_before_ns_[at(l)]);
  }
  ChainTableFiller<Number>(*this, needs, min_plus_kernel<Number>(options.instruction_set)).fill(options.threads);
}

template <typename Number>
typename ChainTable<Number>::Numbers ChainTable<Number>::make_numbers(size_t count) {
  constexpr size_t kLine = 64;
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t bytes = std::max<size_t>(count * sizeof(Number), 1);
  const size_t alignment = bytes < kLargePage ? kLine : kLargePage;
  Numbers numbers(static_cast<Number*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)));
  if (!numbers) throw std::bad_alloc();
#if defined(__linux__)
  // With small pages, touching a table for the first time takes about as long as computing it. Not getting large pages
  // is no error.
  if (bytes >= kLargePage) static_cast<void>(madvise(numbers.get(), bytes, MADV_HUGEPAGE));
#endif
  return numbers;
}

/// Decides which blocks are stored, and where.
template <typename Number>
void ChainTable<Number>::lay_out(const ChainNeeds& needs, const SegmentArray<int64_t>& least, size_t most_bytes) {
  check_size(0, most_bytes);
  lefts_.resize(static_cast<size_t>(groups_ * blocks_));
  rights_.resize(static_cast<size_t>((length_ + 1) * blocks_));
  const size_t left_count = lay_out_lefts(needs, least, most_bytes);
  const size_t right_count = lay_out_rights(needs, least, left_count, most_bytes);
  left_numbers_ = make_numbers(left_count);
  right_numbers_ = make_numbers(right_count);
}

/// Throws NotApplicable where so many numbers take more than `most_bytes`.
template <typename Number>
void ChainTable<Number>::check_size(size_t count, size_t most_bytes) const {
  const size_t most_numbers = most_bytes / sizeof(Number);
  if (static_cast<size_t>(blocks_) > most_numbers / at(length_) || count > most_numbers)
    throw NotApplicable("chain: a table of " + std::to_string(length_) + " stages and " + std::to_string(capacity_) +
                        " slots takes more than " + std::to_string(most_bytes >> 20) +
                        " MiB: ask for fewer slots, or join stages");
}

/// Returns the count of numbers in all left sides.
template <typename Number>
size_t ChainTable<Number>::lay_out_lefts(const ChainNeeds& needs, const SegmentArray<int64_t>& least,
                                         size_t most_bytes) {
  size_t left_count = 0;
  const SegmentArray<int64_t> enough = record_all_memory(needs);
  std::vector<int64_t> group_enough(at(length_) + 1);
  // By end l: smallest memory of the group's segments that end at l or later.
  std::vector<int64_t> least_from(at(length_) + 2);
  for (int g = 0; g < groups_; ++g) {
    const int first = g * kRows + 1;
    const int last = std::min(first + kRows - 1, length_);
    // A segment that starts at i is left with at most capacity - output(i-1).
    int64_t most = 0;
    for (int i = first; i <= last; ++i) most = std::max(most, capacity_ - needs.output[at(i - 1)]);
    least_from[at(length_) + 1] = std::numeric_limits<int64_t>::max();
    for (int l = length_; l >= first; --l) {
      group_enough[at(l)] = 0;
      least_from[at(l)] = least_from[at(l) + 1];
      for (int i = first; i <= std::min(last, l); ++i) {
        group_enough[at(l)] = std::max(group_enough[at(l)], enough(i, l));
        least_from[at(l)] = std::min(least_from[at(l)], least(i, l));
      }
    }
    int begin = first;
    int end = first;
    for (int64_t b = 0; b < blocks_ && b * kBlock <= most; ++b) {
      while (begin <= length_ && group_enough[at(begin)] <= b * kBlock) ++begin;
      while (end <= length_ && least_from[at(end)] < (b + 1) * kBlock) ++end;
      left(g, b) = {begin, end, left_count};
      left_count += at(end - begin) * kCell;
      check_size(left_count, most_bytes);
    }
  }
  return left_count;
}

/// Returns the count of numbers in all right sides.
template <typename Number>
size_t ChainTable<Number>::lay_out_rights(const ChainNeeds& needs, const SegmentArray<int64_t>& least,
                                          size_t left_count, size_t most_bytes) {
  size_t right_count = 0;
  // By start i: smallest memory of the right sides that start at i or earlier.
  std::vector<int64_t> least_until(at(length_) + 1);
  for (int l = 1; l <= length_; ++l) {
    least_until[1] = std::numeric_limits<int64_t>::max();
    for (int i = 2; i <= l; ++i)
      least_until[at(i)] = std::min(least_until[at(i - 1)], least(i, l) + needs.output[at(i - 1)]);
    int begin = l + 1;
    for (int64_t b = 0; b < blocks_; ++b) {
      while (begin > 2 && least_until[at(begin - 1)] < (b + 1) * kBlock) --begin;
      right(l, b) = {begin, right_count};
      right_count += at(l + 1 - begin) * kBlock;
      check_size(left_count + right_count, most_bytes);
    }
  }
  return right_count;
}

template <typename Number>
const Number* ChainTable<Number>::block_of(int i, int l, int64_t block) const {
  if (block < 0 || block >= blocks_) return none_.get();
  const Left& side = left(group_of(i), block);
  if (l >= side.end) return none_.get();
  if (l < side.begin) return enough_cell(l);
  return stored_cell(side, l) + at((i - 1) % kRows) * kBlock;
}

template <typename Number>
double ChainTable<Number>::extra_ns(int i, int l, int64_t m) const {
  const Number number = block_of(i, l, m / kBlock)[m % kBlock];
  if (number >= kInfinity) return std::numeric_limits<double>::infinity();
  return static_cast<double>(number) - static_cast<double>(forward_before_ns_[at(l)]);
}

template class ChainTable<uint32_t>;
template class ChainTable<double>;

}  // namespace headroom::internal
