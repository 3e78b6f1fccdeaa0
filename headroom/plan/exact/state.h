#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "headroom/core/memory.h"

namespace headroom {

/// A set of at most 64 values, ops or groups, by number.
using Mask = uint64_t;
constexpr Mask bit(size_t i) { return Mask{1} << i; }

/// A live copy that is not its value's current one. Values are numbered without the resident ones.
struct Ghost {
  uint32_t value = 0;
  uint32_t holders = 0;  ///< mask of the values whose current copies hold it
  auto operator<=>(const Ghost&) const = default;
};

/// Where a schedule can be between two steps: what decides all that can follow, apart from what it has cost.
struct State {
  Mask alive = 0;             ///< values
  Mask ran_once = 0;          ///< ops with recompute = false that have run
  Mask started = 0;           ///< needed groups whose first run is done
  std::vector<Ghost> ghosts;  ///< sorted
};

/// Numbers states from 0 in the order in which they are added: a hash table with open addressing.
class StateTable {
 public:
  void clear();
  size_t size() const { return entries_.size(); }
  /// Returns the number of a state and whether it was added now. O(ghosts of the state), amortised.
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
    uint32_t entry = 0;  ///< number of the state and 1; 0: the slot is empty
  };
  static uint32_t hash(const State& state);
  bool holds(size_t number, const State& state) const;
  void grow();

  std::vector<Entry> entries_;
  std::vector<Ghost> ghosts_;
  std::vector<Slot> slots_;  ///< a power of two, at most half of them used
};

/// The memory tracker at a state of the search, and the states that steps lead to from there. Takes graphs of at most 32
/// values that are not resident, in which nothing that holds is itself held: a ghost's holders are then current copies.
class StateMemory {
 public:
  explicit StateMemory(const Graph& graph);

  std::span<const ValueId> values() const { return values_; }
  Mask mask_of(std::span<const ValueId> values) const;  ///< resident values left out
  Mask holders() const { return holders_; }             ///< values that hold another one

  /// Brings the tracker to a state. O(values + ops + copies held).
  void restore(const State& state);
  /// The tracker at the state that was restored last.
  const Memory& memory() const { return memory_; }
  /// Returns the state after a step without fault, `started` as before. The tracker stays where it is.
  State after(const State& state, const Step& step);

 private:
  Mask bit_of(ValueId id) const { return bit(number_[index(id)]); }
  void find_ghosts(State& state);

  const Graph& graph_;
  std::vector<ValueId> values_;
  std::vector<uint32_t> number_;  ///< by value, resident ones left out
  std::vector<Mask> outputs_;     ///< by op
  Mask holders_ = 0;
  const Memory start_;  ///< before the first step
  Memory memory_;
  std::vector<Memory::Copy> held_;          ///< of restore()
  std::vector<Memory::Copy> ghost_copies_;  ///< of find_ghosts()
};

}  // namespace headroom
