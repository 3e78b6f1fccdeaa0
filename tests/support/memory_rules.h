#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headroom/core/lifetimes.h"
#include "headroom/core/schedule.h"

namespace headroom::testing {

/// One allocation. A copy that is not current is in memory because copies in memory hold it.
struct CopyInMemory {
  uint32_t value = 0;
  bool is_current = true;
  uint64_t holders = 0;  ///< positions, in MemoryState::copies, of the copies that hold it
  size_t first_step = 0;
  auto operator<=>(const CopyInMemory&) const = default;
};

struct MemoryState {
  std::vector<CopyInMemory> copies;
  uint64_t ran_once = 0;  ///< ops that have run and may not run again
  bool operator==(const MemoryState&) const = default;
};

/// The rules of a step as docs/formats.md has them, read literally: the reference for core's memory tracker and for the
/// planners. Shares no code with them, and looks at all copies at every question. Takes graphs of at most 64 ops; throws
/// std::length_error where more than 64 copies are in memory.
class MemoryRules {
 public:
  explicit MemoryRules(const Graph& graph);

  int64_t bytes(const MemoryState& state) const;
  bool is_alive(const MemoryState& state, ValueId id) const;
  /// Every rule that the step breaks, in the words of the simulator.
  std::vector<std::string> broken_rules(const MemoryState& state, const Step& step) const;
  /// The bytes in memory during a run.
  int64_t moment_bytes(const MemoryState& state, const Step& run) const;
  /// Takes a step that breaks no rule. Puts the copies into an order that depends only on what they are, so that equal
  /// memory is an equal state as long as `number` is.
  void apply(MemoryState& state, const Step& step, size_t number = 0) const;

 private:
  static size_t find(const MemoryState& state, ValueId id);
  void free_unused(MemoryState& state) const;

  const Graph& graph_;
  std::vector<int> depth_;  ///< by value: the most values in a row of which each holds the next, up to this one
  int max_depth_ = 0;
};

/// A schedule carried out by these rules, up to the step at fault.
struct Replay {
  size_t error_step = 0;              ///< where there are `errors`
  std::vector<std::string> errors;    ///< every rule that is broken there
  int64_t peak_bytes = 0;             ///< at least what is resident
  int64_t time_ns = 0;                ///< of the runs
  std::vector<int64_t> moment_bytes;  ///< by step
  std::vector<int64_t> after_bytes;   ///< by step
  std::vector<Lifetime> lifetimes;    ///< as lifetimes() says
  bool is_valid() const { return errors.empty(); }
};
Replay replay(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::testing
