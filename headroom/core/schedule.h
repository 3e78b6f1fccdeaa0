#pragma once

#include <span>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

/// A step of a schedule: it runs an op, runs it in place over one of its inputs, or drops a value. It takes 8 bytes,
/// because schedules are long.
class Step {
 public:
  static Step run(OpId op) { return Step(static_cast<int32_t>(op), kNone); }
  static Step run_over(OpId op, ValueId over) { return Step(static_cast<int32_t>(op), static_cast<int32_t>(over)); }
  static Step drop(ValueId value) { return Step(kNone, static_cast<int32_t>(value)); }

  bool is_run() const { return op_ != kNone; }
  bool is_over() const { return op_ != kNone && value_ != kNone; }
  OpId op() const { return static_cast<OpId>(op_); }              ///< The op of a run.
  ValueId value() const { return static_cast<ValueId>(value_); }  ///< The value that is dropped or overwritten.
  bool operator==(const Step&) const = default;

 private:
  static constexpr int32_t kNone = -1;
  Step(int32_t op, int32_t value) : op_(op), value_(value) {}
  int32_t op_;
  int32_t value_;
};

/// The steps of one training step, in order. Ids are those of the graph that the schedule was made for.
struct Schedule {
  std::vector<Step> steps;
  bool operator==(const Schedule&) const = default;
};

/// Returns the ops that store-all runs, ascending: every op that the step's outputs need; of several producers of a
/// value, the one listed last before the op that reads it. Takes O(size of the graph).
std::vector<OpId> base_ops(const Graph& graph);

/// Returns the runs of a valid schedule, in place where it runs in place, with every value dropped right after its last
/// use before its next write. No moment is larger than in the given schedule. Takes O(ids read and written).
Schedule with_early_drops(const Graph& graph, const Schedule& schedule);

/// Returns the runs, in order, with every value dropped right after its last use before its next write. For a given
/// order of runs, no placement of drops has a smaller moment anywhere. Takes O(ids read and written).
Schedule with_drops(const Graph& graph, std::span<const OpId> runs);

/// Returns the schedule of plain training, which is the baseline of all plans: base_ops() with drops.
Schedule store_all(const Graph& graph);

}  // namespace headroom
