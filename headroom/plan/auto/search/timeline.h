#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::internal {

/// A graph in flat arrays with ids as plain numbers. Resident values are left out of all lists.
struct FlatGraph {
  explicit FlatGraph(const Graph& graph);

  const Graph& graph;
  int32_t op_count;
  int32_t value_count;
  bool has_holds = false;         ///< Whether some value holds a value that is not resident.
  bool has_alternatives = false;  ///< Whether some value has more than one producer.

  std::span<const int32_t> inputs(int32_t op) const { return list(inputs_, op); }
  std::span<const int32_t> outputs(int32_t op) const { return list(outputs_, op); }
  /// Returns the values that an op reads, as 2 * value, and those that it writes, as 2 * value + 1.
  std::span<const uint32_t> touched(int32_t op) const { return list(touched_, op); }
  std::span<const int32_t> producers(int32_t value) const { return list(producers_, value); }
  /// Returns the producers that may run again, the fastest first, and of equally fast ones the one with the fewest
  /// bytes of outputs and workspace first.
  std::span<const int32_t> makers(int32_t value) const { return list(makers_, value); }
  std::span<const int32_t> holds(int32_t value) const { return list(holds_, value); }
  std::span<const int32_t> holders(int32_t value) const { return list(holders_, value); }
  std::span<const int32_t> overwrites(int32_t op) const { return list(overwrites_, op); }

  std::vector<int64_t> bytes;         ///< By value.
  std::vector<int64_t> time_ns;       ///< By op.
  std::vector<int64_t> output_bytes;  ///< By op.
  std::vector<int64_t> workspace;     ///< By op.
  std::vector<uint8_t> once;          ///< By op: whether it may run only once (recompute is false).
  std::vector<uint8_t> is_output;     ///< By value.
  /// By value: the op that recomputes it, which is the first of makers(); -1 where it cannot be recomputed.
  std::vector<int32_t> maker;
  /// By value: whether every maker reads only what all producers read, so that each can run wherever the value has been
  /// written before. Other makers may read a value that has not been written yet, or that is computed from this one.
  std::vector<uint8_t> has_sure_makers;
  std::vector<int32_t> hold_order;  ///< Values that hold other values, each before those that it holds.

 private:
  bool are_sure(int32_t value) const;

  template <typename T>
  struct ListsOf {
    std::vector<uint32_t> begin{0};
    std::vector<T> ids;
    void close() { begin.push_back(static_cast<uint32_t>(ids.size())); }
  };
  using Lists = ListsOf<int32_t>;
  template <typename T>
  static std::span<const T> list(const ListsOf<T>& lists, int32_t i) {
    const uint32_t* const begin = lists.begin.data() + i;
    return {lists.ids.data() + begin[0], lists.ids.data() + begin[1]};
  }
  Lists inputs_;
  Lists outputs_;
  ListsOf<uint32_t> touched_;
  Lists producers_;
  Lists makers_;
  Lists holds_;
  Lists holders_;
  Lists overwrites_;
};

/// A sequence of runs and its memory at each position, if every value is dropped right after its last use before its
/// next write, and ops run in place wherever they may. The peak and the time equal those of simulate() for schedule().
///
/// This is the bulk form of the rules of memory: drops are not given but follow from the runs, and lifetimes are
/// derived value by value, in about half the time that core's tracker (core/memory.h) needs to apply the steps once the
/// drops are known. It restates four of the rules, and tests compare it with the tracker and with a literal reading of
/// the rules:
/// - A run's moment is the bytes live before it, its outputs and its workspace, without the input that it overwrites
///   (add_up()).
/// - Each write makes a copy, which is live until its last read before the next write (find_copies()).
/// - A copy holds the copies that its run found or made, and these are freed no earlier than it is (extend_held()).
/// - An op runs in place over an input that dies there and that no copy holds, outputs of the run included
///   (overwritten()).
///
/// Any sequence in which every read comes after some run that writes the value is a valid schedule. A run can therefore
/// be added anywhere after the first runs of its inputs, and any run that is not the first to write something can be
/// removed. assign() takes O(ids read, written and held) with small constants, since the search repeats it.
class Timeline {
 public:
  /// Number of positions in a block of the tables that most() uses.
  static constexpr int32_t kBlock = 32;

  /// A read or a write of a value.
  struct Event {
    int32_t position;
    bool is_write;
  };
  /// One copy of a value, by positions of runs.
  struct Copy {
    int32_t born;   ///< Position of the run that writes the copy.
    int32_t last;   ///< Position of its last use.
    int32_t freed;  ///< Position at which it is freed: `last`, or later where another copy holds it.
  };

  explicit Timeline(const FlatGraph& flat);

  void assign(const std::vector<int32_t>& runs);

  int32_t size() const { return static_cast<int32_t>(runs_.size()); }
  const std::vector<int32_t>& runs() const { return runs_; }
  int32_t run(int32_t position) const { return runs_[static_cast<size_t>(position)]; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t time_ns() const { return time_ns_; }  ///< Sum of the runs' times, saturated at the largest int64_t.
  int64_t moment(int32_t position) const { return moments_[static_cast<size_t>(position)]; }
  const std::vector<int64_t>& moments() const { return moments_; }
  /// Returns the bytes in memory between the runs at position - 1 and position, which may be size().
  int64_t between(int32_t position) const { return between_[static_cast<size_t>(position)]; }
  /// Returns the largest moment in [first, last] in O(1), or the smallest number where that is empty.
  int64_t most(int32_t first, int32_t last) const;

  /// Returns the largest moment of the kBlock positions from `position`, which is a multiple of kBlock.
  int64_t most_of_block(int32_t position) const {
    if (!has_most_) find_most();
    return block_most_[0][static_cast<size_t>(position / kBlock)];
  }

  std::span<const Event> events(int32_t value) const { return part(events_, event_begin_, value); }
  std::span<const Copy> copies(int32_t value) const { return part(copies_, copy_begin_, value); }
  /// Returns the copy that is current between the runs at position - 1 and position, or null.
  const Copy* alive(int32_t value, int32_t position) const {
    const std::span<const Copy> all = copies(value);
    size_t later = all.size();  // A linear search, since most values have few copies.
    while (later > 0 && all[later - 1].born >= position) --later;
    return later > 0 && all[later - 1].last >= position ? &all[later - 1] : nullptr;
  }
  /// Returns the number of a value's events before a position.
  int32_t events_before(int32_t value, int32_t position) const {
    const std::span<const Event> all = events(value);
    const auto later = std::ranges::partition_point(all, [&](const Event& event) { return event.position < position; });
    return static_cast<int32_t>(later - all.begin());
  }

  /// Returns whether all inputs of an op have been made before a position.
  bool is_ready(int32_t op, int32_t position) const {
    return std::ranges::all_of(flat_->inputs(op), [&](int32_t u) {
      const std::span<const Event> all = events(u);
      return !all.empty() && all.front().position < position;
    });
  }

  Schedule schedule() const;

 private:
  template <typename T>
  static std::span<const T> part(const std::vector<T>& items, const std::vector<int32_t>& begin, int32_t value) {
    const int32_t* const first = begin.data() + value;
    return {items.data() + first[0], items.data() + first[1]};
  }
  void find_events();
  void find_copies();
  void add_bytes(std::span<const Copy> copies, int64_t bytes);
  void extend_held();
  void add_up();
  void find_most() const;
  bool is_held(int32_t value, const Copy& copy, int32_t position) const;
  int32_t overwritten(int32_t position) const;

  const FlatGraph* flat_;
  std::vector<int32_t> runs_;
  std::vector<int32_t> event_begin_;
  std::vector<Event> events_;
  std::vector<int32_t> copy_begin_;
  std::vector<Copy> copies_;  ///< Copies by value; those from copy_begin_.back() on are unused.
  std::vector<int64_t> moments_;
  std::vector<int64_t> between_;
  // The tables of most() are built at its first call, since it is never called for most of the sequences that are
  // tried.
  mutable bool has_most_ = false;
  mutable std::vector<int64_t> most_from_start_;  ///< By position: largest moment from the start of its block up to it.
  mutable std::vector<int64_t> most_to_end_;      ///< By position: largest moment from it to the end of its block.
  /// By level k and block: largest moment of 2^k blocks from this one on.
  mutable std::vector<std::vector<int64_t>> block_most_;
  int64_t peak_bytes_ = 0;
  int64_t time_ns_ = 0;
};

}  // namespace headroom::internal
