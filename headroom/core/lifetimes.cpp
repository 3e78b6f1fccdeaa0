#include "headroom/core/lifetimes.h"

namespace headroom {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

class LifetimeRecorder {
 public:
  LifetimeRecorder(const Graph& graph, size_t step_count) : graph_(graph), current_(graph.values().size(), kNone) {
    if (step_count == 0) return;
    for (size_t v = 0; v < current_.size(); ++v)
      if (graph.values()[v].resident) add({value_id(v), 0, step_count - 1});
  }

  void run(const Step& step, size_t now) {
    const Op& op = graph_.op(step.op());
    // What it overwrites is not in memory in its moment, what it replaces is.
    if (step.is_over()) end(step.value(), now - 1);
    std::vector<size_t> replaced;
    for (const ValueId id : op.outputs) {
      if (current_[index(id)] != kNone) replaced.push_back(current_[index(id)]);
      current_[index(id)] = add({id, now, now});
    }
    for (const ValueId id : op.outputs) {
      for (const ValueId held : graph_.value(id).holds) {
        const size_t copy = current_[index(held)];
        if (copy == kNone) continue;
        holds_[current_[index(id)]].push_back(copy);
        ++reasons_[copy];
      }
    }
    for (const size_t copy : replaced) release(copy, now);
  }

  void end(ValueId id, size_t last_step) {
    const size_t copy = current_[index(id)];
    current_[index(id)] = kNone;
    release(copy, last_step);
  }

  std::vector<Lifetime> finish(size_t step_count) && {
    for (size_t i = 0; i < lives_.size(); ++i)
      if (reasons_[i] > 0 && step_count > 0) lives_[i].last_step = step_count - 1;
    return std::move(lives_);
  }

 private:
  size_t add(Lifetime life) {
    lives_.push_back(life);
    reasons_.push_back(1);
    holds_.emplace_back();
    return lives_.size() - 1;
  }

  /// One reason less to count, for what it holds too if that was the last.
  void release(size_t first, size_t last_step) {
    releasing_.assign(1, first);
    while (!releasing_.empty()) {
      const size_t copy = releasing_.back();
      releasing_.pop_back();
      if (--reasons_[copy] > 0) continue;
      lives_[copy].last_step = last_step;
      releasing_.insert(releasing_.end(), holds_[copy].begin(), holds_[copy].end());
    }
  }

  const Graph& graph_;
  std::vector<Lifetime> lives_;
  std::vector<int> reasons_;                ///< by copy: being its value's current one, and each copy that holds it
  std::vector<std::vector<size_t>> holds_;  ///< by copy
  std::vector<size_t> current_;             ///< by value; none for resident ones
  std::vector<size_t> releasing_;
};

}  // namespace

std::vector<Lifetime> lifetimes(const Graph& graph, const Schedule& schedule) {
  LifetimeRecorder recorder(graph, schedule.steps.size());
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.is_run())
      recorder.run(step, i);
    else
      recorder.end(step.value(), i);
  }
  return std::move(recorder).finish(schedule.steps.size());
}

std::vector<uint8_t> find_reruns(const Graph& graph, const Schedule& schedule) {
  std::vector<uint8_t> reruns(schedule.steps.size(), 0);
  std::vector<uint8_t> made(graph.values().size(), 0);
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (!schedule.steps[i].is_run()) continue;
    for (const ValueId id : graph.op(schedule.steps[i].op()).outputs) {
      if (made[index(id)] != 0) reruns[i] = 1;
      made[index(id)] = 1;
    }
  }
  return reruns;
}

}  // namespace headroom
