#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::internal {

/// The rule of docs/formats.md that a step breaks.
struct Fault {
  /// The broken rule, as in "reads a value that is not alive".
  const char* rule;
  std::optional<ValueId> value;  ///< The value at fault; none where the rule is about the op.
};

/// Tracks the memory of a training step while the steps of a schedule are applied one after the other. The rules of
/// memory of docs/formats.md are written here, and nowhere else in the library except in the search of `auto`, which
/// needs them in bulk (plan/auto/search/timeline.h).
///
/// Every run makes a new *copy* of each value that it writes. A copy is live while it is its value's current copy or a
/// live copy of another value holds it, and counts its value's bytes while it is live. A new copy holds the copies, of
/// the values that its value lists under `holds`, that are current once all outputs of its run are allocated. The
/// example has `r` write a(4) and t(1), t hold a, and `b` read t and write g(2):
///
///     step      moment    bytes after   live copies
///     run r     5         5             a (copy 0), t (copy 1)
///     drop a              5             copy 0 stays: copy 1 holds it
///     run r     5+5=10    5             a (copy 2), t (copy 3): as copy 3 replaces copy 1, copies 1 and 0 are freed
///     run b     5+2=7     7             also g (copy 4)
///     drop t              6             t is freed; a is still current
///
/// A run in place allocates nothing for its first output, and its input is freed after its moment: what that input held
/// still counts in the moment.
///
/// apply() assumes that find_fault() finds nothing wrong with the step and that its moment fits int64. Construction
/// takes O(values + ops); find_fault(), find_moment_bytes() and apply() take O(ids that the step reads, writes, holds
/// and frees). A tracker is copied by value and stores a few numbers for each copy that was made.
class Memory {
 public:
  /// The number of a copy. Runs number the copies that they make from 0 in the order of their outputs.
  using Copy = int32_t;
  static constexpr Copy kNone = -1;      ///< In place of a copy: the value is not live.
  static constexpr Copy kResident = -2;  ///< In place of a copy: the value is resident, and nothing frees it.

  /// Starts with the resident values in memory. The graph must outlive the tracker.
  explicit Memory(const Graph& graph);

  /// Returns the first rule that `step` breaks, or none.
  std::optional<Fault> find_fault(const Step& step) const;
  /// Returns the bytes in memory during a run without fault, or none where the sum does not fit int64.
  std::optional<int64_t> find_moment_bytes(const Step& run) const;
  void apply(const Step& step);
  /// Undoes the last step. Must follow an apply() directly. The next copy is numbered as if the step had not been
  /// applied.
  void undo();

  /// Adds a copy as an earlier run made it, to rebuild a state of memory. What it holds must have been added before. A
  /// copy that is not current becomes live when another one that holds it is added, before the next step.
  Copy restore(ValueId id, bool is_current, std::span<const Copy> held);
  /// Notes that an op has run.
  void restore_run(OpId op) { has_run_[index(op)] = 1; }

  int64_t bytes() const { return bytes_; }  ///< Live bytes between two steps, resident values included.
  /// Returns whether the value has a current copy.
  bool is_alive(ValueId id) const { return current_[index(id)] != kNone; }
  /// Returns whether another live copy holds the value's current copy.
  bool is_held(ValueId id) const { return current_[index(id)] >= 0 && record(current_[index(id)]).uses > 1; }
  Copy current_copy(ValueId id) const { return current_[index(id)]; }

  Copy copy_count() const {
    return static_cast<Copy>(copies_.size());
  }                                                             ///< Number of all copies made, freed ones included.
  int32_t held_only_count() const { return held_only_count_; }  ///< Number of live copies that are not current.
  bool is_live(Copy copy) const { return record(copy).uses > 0; }
  ValueId value(Copy copy) const { return record(copy).value; }
  /// Returns the copies that a copy holds, in the order of its value's `holds`.
  std::span<const Copy> held_by(Copy copy) const {
    return std::span(held_).subspan(record(copy).first_held, record(copy).held_count);
  }
  /// Returns the copies that the last step freed.
  std::span<const Copy> freed() const { return freed_; }

 private:
  struct CopyRecord {
    ValueId value;
    /// Number of references: 1 for being its value's current copy, and 1 for each live copy that holds it.
    int32_t uses;
    uint32_t first_held;  ///< Position in held_ of the first copy that it holds.
    uint32_t held_count;
  };
  /// The state before the last step, for undo().
  struct LastStep {
    Step step = Step::run(OpId{});
    uint8_t had_run = 0;  ///< Whether the step's op had run before.
    int64_t bytes = 0;    ///< Bytes before the step.
    int32_t held_only_count = 0;
    size_t held_size = 0;
    Copy ended = kNone;  ///< The copy of the value that was dropped or overwritten.
  };

  CopyRecord& record(Copy copy) { return copies_[static_cast<size_t>(copy)]; }
  const CopyRecord& record(Copy copy) const { return copies_[static_cast<size_t>(copy)]; }
  std::optional<Fault> find_fault_in_place(const Op& op, ValueId over) const;
  void make_outputs(const Op& op);
  void hold(Copy holder);
  void end_current(Copy copy);
  void free(Copy copy);
  void add_use_of_held(Copy holder, int32_t uses);
  void unmake_outputs();

  const Graph* graph_;
  std::vector<Copy> current_;  ///< By value: its current copy.
  std::vector<uint8_t> has_run_;
  std::vector<CopyRecord> copies_;
  std::vector<Copy> held_;
  int64_t bytes_ = 0;
  int32_t held_only_count_ = 0;
  LastStep last_;
  std::vector<Copy> replaced_;  ///< By output of the last run: the copy that was current before it.
  std::vector<Copy> freed_;
};

}  // namespace headroom::internal
