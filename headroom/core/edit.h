#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// A schedule that can be changed anywhere, with its peak, time and validity known after every change: simulate(), kept
/// up to date.
///
/// A step is named by a Handle that stays the same while other steps come and go. insert() and erase() take O(k log n)
/// for a schedule of n steps, k being the steps that touch the values that the changed step writes or drops, and the
/// values that those hold: a handful in practice. All questions take O(log n) or less.
///
/// Steps sit in a balanced tree, each with what it adds to memory while it runs and for good; every subtree knows its
/// sum and its largest moment, so that a change walks only to the root. A step's lasting effect changes only where a
/// copy of a value comes to be freed at another step, and that is found from the steps that touch the value.
class ScheduleEditor {
 public:
  enum class Handle : int32_t {};
  static constexpr Handle kEnd{-1};  ///< after the last step

  /// The graph must outlive the editor. Throws TooLarge where the sum of all bytes written does not fit int64.
  ScheduleEditor(const Graph& graph, const Schedule& schedule);

  /// Puts a step before another one.
  Handle insert(Handle before, Step step);
  void erase(Handle handle);

  /// What simulate() says of schedule(); peak_bytes() and moment_bytes() mean something while valid().
  bool valid() const { return faults_ == 0; }
  int64_t peak_bytes() const;
  int64_t time_ns() const { return time_ns_; }
  int64_t moment_bytes(Handle run) const;
  /// The first run with the largest moment; kEnd when there is no run.
  Handle peak_step() const;

  size_t size() const { return root_ == kNil ? 0 : static_cast<size_t>(node(root_).count); }
  Step step(Handle handle) const { return node(index_of(handle)).step; }
  Handle first() const;
  Handle next(Handle handle) const;
  /// Position of a step from 0.
  size_t position(Handle handle) const;
  /// The steps that read, write, drop or overwrite a value that is not resident, in order.
  std::span<const Handle> touching(ValueId id) const { return lives_[index(id)].events; }
  Schedule schedule() const;

 private:
  static constexpr int32_t kNil = -1;

  struct Node {
    Step step;
    int32_t parent = kNil;
    int32_t left = kNil;
    int32_t right = kNil;
    int32_t count = 1;      ///< steps in the subtree
    uint32_t priority = 0;  ///< no smaller than those below
    int64_t moment = 0;     ///< added while it runs
    int64_t delta = 0;      ///< added for good
    int64_t sum = 0;        ///< of delta in the subtree
    int64_t largest = 0;    ///< moment in the subtree, from the memory before it; kNoMoment: none runs
  };

  /// One copy of a value: the run that made it, where its value gave it up, and where it is freed, which is later
  /// while copies of other values hold it.
  struct Copy {
    Handle born;
    Handle ended;
    Handle freed;
  };

  struct Life {
    std::vector<Handle> events;
    std::vector<Copy> copies;
    int32_t faults = 0;
  };

  static int32_t index_of(Handle handle) { return static_cast<int32_t>(handle); }
  Node& node(int32_t i) { return nodes_[static_cast<size_t>(i)]; }
  const Node& node(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }

  Handle new_node(Step step);
  void link(Handle before, int32_t added);
  void unlink(int32_t removed);
  void rotate_up(int32_t child);
  void refresh(int32_t i);
  void refresh_to_root(int32_t i);
  void add_delta(Handle handle, int64_t bytes);
  /// Negative, 0 or positive as `a` comes before, is, or comes after `b`; kEnd comes last.
  int compare(Handle a, Handle b) const;

  /// Counts what a step costs and breaks by itself, or takes it back.
  void count(Step step, int sign);
  /// The values that a step touches, resident ones excepted.
  std::vector<ValueId> touched_by(Step step) const;
  /// Those and all that they hold, directly or not, holders before what they hold: the lives that a change of
  /// the step can change.
  std::vector<ValueId> affected_by(Step step) const;
  void detach(std::span<const ValueId> affected);
  void attach(std::span<const ValueId> affected);
  void find_copies(ValueId id);
  void extend_by_holders(ValueId id);
  Copy* find_copy(ValueId id, Handle run);

  const Graph& graph_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  int32_t root_ = kNil;
  std::vector<Life> lives_;         ///< by value
  std::vector<int32_t> hold_rank_;  ///< by value: holders before what they hold
  std::vector<int32_t> run_count_;  ///< by op
  int64_t faults_ = 0;
  int64_t time_ns_ = 0;
  int64_t written_bytes_ = 0;  ///< over all runs: bounds every sum in the tree
};

}  // namespace headroom
