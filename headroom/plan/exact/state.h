#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "headroom/core/memory.h"

namespace headroom::internal {

/// A set of at most 64 values, ops or groups, as a mask of their numbers.
using Mask = uint64_t;
constexpr Mask bit(size_t i) { return Mask{1} << i; }

/// A live copy that is not its value's current one. Values are numbered without the resident ones.
struct Ghost {
  uint32_t value = 0;
  uint32_t holders = 0;  ///< Mask of the values whose current copies hold it.
  // clang-tidy 14 takes the 0 of the comparison that this generates for a null pointer.
  auto operator<=>(const Ghost&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// The state of a schedule between two steps: everything that decides which steps can follow, apart from the cost so
/// far.
struct State {
  Mask alive = 0;             ///< Values that are live.
  Mask ran_once = 0;          ///< Ops with recompute = false that have run.
  Mask started = 0;           ///< Needed groups whose first run is done.
  std::vector<Ghost> ghosts;  ///< Sorted.
};

/// Numbers states from 0 in the order in which they are added: a hash table with open addressing.
class StateTable {
 public:
  void clear();
  size_t size() const { return entries_.size(); }
  /// Returns the number of a state and whether this call added it. Takes O(ghosts of the state), amortised.
  std::pair<size_t, bool> add(const State& state);
  void read(size_t number, State& state) const;

 private:
  struct Entry {
    Mask alive;
    Mask ran_once;
    Mask started;
    uint32_t first_ghost;
    uint32_t ghost_count;
  };
  struct Slot {
    uint32_t hash = 0;
    uint32_t entry = 0;  ///< Number of the state plus 1; 0 for an empty slot.
  };
  static uint32_t hash(const State& state);
  bool holds(size_t number, const State& state) const;
  void grow();

  std::vector<Entry> entries_;
  std::vector<Ghost> ghosts_;
  std::vector<Slot> slots_;  ///< The table's slots; their number is a power of two, and at most half of them are used.
};

/// The memory tracker at a state of the search; it also computes the states that steps lead to from there. Accepts
/// graphs of at most 32 values that are not resident, in which nothing that holds is itself held, so that a ghost's
/// holders are current copies.
class StateMemory {
 public:
  explicit StateMemory(const Graph& graph);

  std::span<const ValueId> values() const { return values_; }
  Mask mask_of(std::span<const ValueId> values) const;  ///< Resident values are left out.
  Mask holders() const { return holders_; }             ///< Values that hold another value.

  /// Restores the tracker to a state. Takes O(values + ops + copies held).
  void restore(const State& state);
  /// Returns the tracker at the state that was restored last.
  const Memory& memory() const { return memory_; }
  /// Returns the state after a step without fault, with `started` unchanged. The tracker stays at its state.
  State after(const State& state, const Step& step);

 private:
  Mask bit_of(ValueId id) const { return bit(number_[index(id)]); }
  void find_ghosts(State& state);

  const Graph& graph_;
  std::vector<ValueId> values_;
  std::vector<uint32_t> number_;  ///< By value: its number among the values that are not resident.
  std::vector<Mask> outputs_;     ///< By op.
  Mask holders_ = 0;
  const Memory start_;  ///< The memory before the first step.
  Memory memory_;
  std::vector<Memory::Copy> held_;          ///< Scratch memory of restore().
  std::vector<Memory::Copy> ghost_copies_;  ///< Scratch memory of find_ghosts().
};

}  // namespace headroom::internal
