#include "headroom/core/simulate.h"

#include <algorithm>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"

namespace headroom {
namespace {

int64_t checked_sum(int64_t a, int64_t b, const char* what) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw TooLarge(std::string("the schedule's ") + what + " does not fit 64 bits");
  return sum;
}

/// The memory of a training step, advanced one step at a time.
///
/// Most values hold nothing and are held by nothing: for those, being alive is all there is. The others are *tracked*:
/// each run makes a numbered copy, with the number of reasons why it still counts (being its value's current copy, and
/// each counting copy that holds it).
class Memory {
 public:
  explicit Memory(const Graph& graph)
      : graph_(graph), alive_(graph.values().size(), 0), ran_(graph.ops().size(), 0), bytes_(graph.resident_bytes()) {
    tracked_.assign(graph.values().size(), 0);
    for (size_t v = 0; v < alive_.size(); ++v) {
      const Value& value = graph.values()[v];
      alive_[v] = value.resident ? 1 : 0;
      if (value.resident || value.holds.empty()) continue;
      tracked_[v] = 1;
      for (const ValueId held : value.holds) tracked_[index(held)] = graph.value(held).resident ? 0 : 1;
    }
    current_.assign(alive_.size(), kNone);
    free_.assign(alive_.size(), kNone);
  }

  int64_t bytes() const { return bytes_; }

  /// What `step` breaks, or null; nothing has changed then.
  const char* find_fault(const Step& step, ValueId& culprit) const {
    if (!step.is_run()) {
      culprit = step.value();
      if (graph_.value(culprit).resident) return "drops a resident value";
      return alive_[index(culprit)] != 0 ? nullptr : "drops a value that is not alive";
    }
    const Op& op = graph_.op(step.op());
    for (const ValueId id : op.inputs) {
      if (alive_[index(id)] != 0) continue;
      culprit = id;
      return "reads a value that is not alive";
    }
    if (!op.recompute && ran_[index(step.op())] != 0) return "runs an op again that may run only once";
    return step.is_over() ? find_fault_in_place(step, op, culprit) : nullptr;
  }

  /// Bytes during a run that find_fault() found right: before anything that it frees.
  int64_t moment_bytes(const Step& step) const {
    const Op& op = graph_.op(step.op());
    int64_t moment = bytes_;
    for (const ValueId id : op.outputs) moment = checked_sum(moment, graph_.value(id).bytes, "memory");
    if (step.is_over()) moment -= graph_.value(step.value()).bytes;
    return checked_sum(moment, op.workspace_bytes, "memory");
  }

  void apply(const Step& step) {
    if (!step.is_run()) {
      end(step.value());
      return;
    }
    const Op& op = graph_.op(step.op());
    ran_[index(step.op())] = 1;
    replaced_.clear();
    for (const ValueId id : op.outputs) {
      const size_t v = index(id);
      bytes_ = checked_sum(bytes_, graph_.values()[v].bytes, "memory");
      if (tracked_[v] == 0) {
        if (alive_[v] != 0) bytes_ -= graph_.values()[v].bytes;
        alive_[v] = 1;
        continue;
      }
      const int32_t replaced = current_[v];
      current_[v] = new_copy(id);
      alive_[v] = 1;
      if (replaced != kNone) replaced_.push_back(replaced);
    }
    for (const ValueId id : op.outputs)
      if (tracked_[index(id)] != 0) hold(current_[index(id)]);
    // Only now: an output may hold what another output's old copy held.
    for (const int32_t replaced : replaced_) release(replaced);
    if (step.is_over()) end(step.value());
  }

  bool alive(ValueId id) const { return alive_[index(id)] != 0; }

  /// By value, whether any copy of it counts.
  std::vector<uint8_t> present() const {
    std::vector<uint8_t> present = alive_;
    for (const Copy& copy : copies_)
      if (copy.reasons > 0) present[index(copy.value)] = 1;
    return present;
  }

 private:
  struct Copy {
    ValueId value;
    int32_t reasons;    ///< why it counts; 0: it is free
    int32_t held;       ///< where in held_ the copies are that it holds, one for each of its value's `holds`
    int32_t next_free;  ///< of the same value
  };

  const char* find_fault_in_place(const Step& step, const Op& op, ValueId& culprit) const {
    culprit = step.value();
    const size_t over = index(culprit);
    if (std::ranges::find(op.overwrites, culprit) == op.overwrites.end())
      return "runs over a value that the op does not list under overwrites";
    if (current_[over] != kNone && copies_[static_cast<size_t>(current_[over])].reasons > 1)
      return "runs over a value that another value holds";
    for (const ValueId id : op.outputs)
      if (std::ranges::find(graph_.value(id).holds, culprit) != graph_.value(id).holds.end())
        return "runs over a value that one of the op's outputs holds";
    if (alive_[index(op.outputs.front())] == 0) return nullptr;
    culprit = op.outputs.front();
    return "runs in place although the op's first output is alive already";
  }

  /// The value dies; its memory goes unless something holds it.
  void end(ValueId id) {
    alive_[index(id)] = 0;
    if (tracked_[index(id)] == 0) {
      bytes_ -= graph_.value(id).bytes;
      return;
    }
    const int32_t copy = current_[index(id)];
    current_[index(id)] = kNone;
    release(copy);
  }

  int32_t new_copy(ValueId id) {
    int32_t& free = free_[index(id)];
    if (free != kNone) {
      const int32_t copy = free;
      free = copies_[static_cast<size_t>(copy)].next_free;
      copies_[static_cast<size_t>(copy)].reasons = 1;
      return copy;
    }
    copies_.push_back(Copy{id, 1, static_cast<int32_t>(held_.size()), kNone});
    held_.resize(held_.size() + graph_.value(id).holds.size(), kNone);
    return static_cast<int32_t>(copies_.size()) - 1;
  }

  void hold(int32_t holder) {
    const Copy& copy = copies_[static_cast<size_t>(holder)];
    auto slot = static_cast<size_t>(copy.held);
    for (const ValueId id : graph_.value(copy.value).holds) {
      const int32_t held = current_[index(id)];  // none: resident, which nothing frees
      held_[slot++] = held;
      if (held != kNone) ++copies_[static_cast<size_t>(held)].reasons;
    }
  }

  /// One reason less for a copy to count, and for what it holds if that was the last. Not recursive: holding can be
  /// as deep as the graph.
  void release(int32_t first) {
    releasing_.assign(1, first);
    while (!releasing_.empty()) {
      const int32_t number = releasing_.back();
      releasing_.pop_back();
      Copy& copy = copies_[static_cast<size_t>(number)];
      if (--copy.reasons > 0) continue;
      const Value& value = graph_.value(copy.value);
      bytes_ -= value.bytes;
      for (size_t i = 0; i < value.holds.size(); ++i) {
        const int32_t held = held_[static_cast<size_t>(copy.held) + i];
        if (held != kNone) releasing_.push_back(held);
      }
      copy.next_free = free_[index(copy.value)];
      free_[index(copy.value)] = number;
    }
  }

  static constexpr int32_t kNone = -1;
  const Graph& graph_;
  std::vector<uint8_t> alive_;
  std::vector<uint8_t> ran_;
  std::vector<uint8_t> tracked_;
  std::vector<int32_t> current_;  ///< by value: its current copy, where it is tracked and alive
  std::vector<int32_t> free_;     ///< by value: copies to use again
  std::vector<Copy> copies_;
  std::vector<int32_t> held_;
  std::vector<int32_t> replaced_;  ///< copies that the run being applied replaces
  std::vector<int32_t> releasing_;
  int64_t bytes_;
};

std::string describe(const Graph& graph, const Step& step, const char* fault, ValueId culprit) {
  std::string text = step.is_run() ? "run " + quote(graph.op(step.op()).name) : "drop";
  if (index(culprit) < graph.values().size()) text += ", value " + quote(graph.value(culprit).name);
  return text + ": " + fault;
}

}  // namespace

Simulation simulate(const Graph& graph, const Schedule& schedule) {
  Memory memory(graph);
  Simulation result;
  result.moment_bytes.reserve(schedule.steps.size());
  result.after_bytes.reserve(schedule.steps.size());
  result.peak_bytes = graph.resident_bytes();
  int64_t largest = 0;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    ValueId culprit{-1};
    if (const char* fault = memory.find_fault(step, culprit)) {
      result.error = ScheduleError{i, describe(graph, step, fault, culprit)};
      return result;
    }
    int64_t moment = memory.bytes();
    if (step.is_run()) {
      moment = memory.moment_bytes(step);
      result.time_ns = checked_sum(result.time_ns, graph.op(step.op()).time_ns, "time");
      if (!result.peak_step || moment > largest) {
        largest = moment;
        result.peak_step = i;
      }
    }
    memory.apply(step);
    result.moment_bytes.push_back(moment);
    result.after_bytes.push_back(memory.bytes());
  }
  if (result.peak_step) result.peak_bytes = std::max(result.peak_bytes, largest);
  for (const ValueId id : graph.outputs()) {
    if (memory.alive(id)) continue;
    result.error =
        ScheduleError{schedule.steps.size(), "the step ends without its output, value " + quote(graph.value(id).name)};
    return result;
  }
  return result;
}

std::optional<Simulation> find_simulation(const Graph& graph, const Schedule& schedule) {
  try {
    return simulate(graph, schedule);
  } catch (const TooLarge&) {
    return std::nullopt;
  }
}

std::optional<ScheduleError> verify(const Graph& graph, const Schedule& schedule) {
  return simulate(graph, schedule).error;
}

std::vector<ValueId> alive_during(const Graph& graph, const Schedule& schedule, size_t step) {
  Memory memory(graph);
  HEADROOM_ASSERT(step < schedule.steps.size());
  for (size_t i = 0; i < step; ++i) memory.apply(schedule.steps[i]);
  std::vector<uint8_t> present = memory.present();
  const Step& now = schedule.steps[step];
  if (now.is_over()) present[index(now.value())] = 0;
  if (now.is_run())
    for (const ValueId id : graph.op(now.op()).outputs) present[index(id)] = 1;
  std::vector<ValueId> values;
  for (size_t v = 0; v < present.size(); ++v)
    if (present[v] != 0) values.push_back(value_id(v));
  return values;
}

}  // namespace headroom
