#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headroom/core/lifetimes.h"
#include "headroom/core/schedule.h"

namespace headroom::internal::testing {

/// One allocation. A copy that is not current is in memory only because other copies hold it.
struct CopyInMemory {
  uint32_t value = 0;
  bool is_current = true;
  uint64_t holders = 0;  ///< the copies that hold it, as bits of positions in MemoryState::copies
  size_t first_step = 0;
  auto operator<=>(const CopyInMemory&) const = default;
};

struct MemoryState {
  std::vector<CopyInMemory> copies;
  uint64_t ran_once = 0;  ///< ops that have run and must not run again
  bool operator==(const MemoryState&) const = default;
};

/// A literal implementation of the rules of docs/formats.md, as the reference for core's memory tracker and the planners.
/// Shares no code with them, and visits all copies in every query. Takes graphs of at most 64 ops, and throws
/// std::length_error if more than 64 copies are in memory.
class MemoryRules {
 public:
  explicit MemoryRules(const Graph& graph);

  int64_t bytes(const MemoryState& state) const;
  bool is_alive(const MemoryState& state, ValueId id) const;
  /// Returns all rules that the step breaks, in the words of the simulator.
  std::vector<std::string> broken_rules(const MemoryState& state, const Step& step) const;
  /// Returns the bytes in memory during a run.
  int64_t moment_bytes(const MemoryState& state, const Step& run) const;
  /// Applies a step that breaks no rule. `number` is the number of its copies. Sorts the copies by their contents, so that
  /// equal memory with equal numbers is an equal state.
  void apply(MemoryState& state, const Step& step, size_t number = 0) const;

 private:
  static size_t find(const MemoryState& state, ValueId id);
  void free_unused(MemoryState& state) const;

  const Graph& graph_;
  std::vector<int> depth_;  ///< for each value, the length of the longest chain of holders that ends at it
  int max_depth_ = 0;
};

/// The result of running a schedule by these rules, up to the first invalid step.
struct Replay {
  size_t error_step = 0;              ///< the invalid step, if there are `errors`
  std::vector<std::string> errors;    ///< all rules that it breaks
  int64_t peak_bytes = 0;             ///< at least the resident bytes
  int64_t time_ns = 0;                ///< time of the runs
  std::vector<int64_t> moment_bytes;  ///< during each step
  std::vector<int64_t> after_bytes;   ///< after each step
  std::vector<Lifetime> lifetimes;    ///< in the order of lifetimes()
  bool is_valid() const { return errors.empty(); }
};
Replay replay(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::internal::testing
