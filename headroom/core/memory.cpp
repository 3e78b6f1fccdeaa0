#include "headroom/core/memory.h"

#include <algorithm>
#include <utility>

namespace headroom::internal {
namespace {

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

}  // namespace

Memory::Memory(const Graph& graph)
    : graph_(&graph),
      current_(graph.values().size(), kNone),
      has_run_(graph.ops().size(), 0),
      bytes_(graph.resident_bytes()) {
  copies_.reserve(current_.size());
  for (size_t v = 0; v < current_.size(); ++v)
    if (graph.values()[v].resident) current_[v] = kResident;
}

std::optional<Fault> Memory::find_fault(const Step& step) const {
  if (!step.is_run()) {
    const Copy current = current_[index(step.value())];
    if (current >= 0) return std::nullopt;
    return Fault{current == kResident ? "drops a resident value" : "drops a value that is not alive", step.value()};
  }
  const Op& op = graph_->op(step.op());
  for (const ValueId id : op.inputs)
    if (!is_alive(id)) return Fault{"reads a value that is not alive", id};
  if (!op.recompute && has_run_[index(step.op())] != 0)
    return Fault{"runs an op again that may run only once", std::nullopt};
  return step.is_over() ? find_fault_in_place(op, step.value()) : std::nullopt;
}

std::optional<Fault> Memory::find_fault_in_place(const Op& op, ValueId over) const {
  if (!contains(op.overwrites, over))
    return Fault{"runs over a value that the op does not list under overwrites", over};
  if (is_held(over)) return Fault{"runs over a value that another value holds", over};
  for (const ValueId id : op.outputs)
    if (contains(graph_->value(id).holds, over))
      return Fault{"runs over a value that one of the op's outputs holds", over};
  if (!is_alive(op.outputs.front())) return std::nullopt;
  return Fault{"runs in place although the op's first output is alive already", op.outputs.front()};
}

std::optional<int64_t> Memory::find_moment_bytes(const Step& run) const {
  const Op& op = graph_->op(run.op());
  int64_t moment = bytes_;
  for (const ValueId id : op.outputs)
    if (__builtin_add_overflow(moment, graph_->value(id).bytes, &moment)) return std::nullopt;
  if (run.is_over()) moment -= graph_->value(run.value()).bytes;
  if (__builtin_add_overflow(moment, op.workspace_bytes, &moment)) return std::nullopt;
  return moment;
}

void Memory::apply(const Step& step) {
  last_.step = step;
  last_.bytes = bytes_;
  last_.held_only_count = held_only_count_;
  last_.held_size = held_.size();
  freed_.clear();
  if (step.is_run()) {
    last_.had_run = std::exchange(has_run_[index(step.op())], uint8_t{1});
    make_outputs(graph_->op(step.op()));
  }
  if (!step.is_run() || step.is_over()) {
    last_.ended = std::exchange(current_[index(step.value())], kNone);
    end_current(last_.ended);
  }
  // Not recursive: a chain of holders can be as long as the graph.
  for (size_t i = 0; i < freed_.size(); ++i) {
    for (const Copy held : held_by(freed_[i])) {
      if (held < 0 || --record(held).uses > 0) continue;
      --held_only_count_;
      free(held);
    }
  }
}

void Memory::make_outputs(const Op& op) {
  replaced_.clear();
  for (const ValueId id : op.outputs) {
    replaced_.push_back(std::exchange(current_[index(id)], copy_count()));
    copies_.push_back({id, 1, 0, 0});
    bytes_ += graph_->value(id).bytes;
  }
  for (const ValueId id : op.outputs)
    if (!graph_->value(id).holds.empty()) hold(current_[index(id)]);
  // Replaced copies end only now, since an output may hold what another output's old copy held.
  for (const Copy copy : replaced_)
    if (copy >= 0) end_current(copy);
}

void Memory::hold(Copy holder) {
  const std::vector<ValueId>& values = graph_->value(value(holder)).holds;
  record(holder).first_held = static_cast<uint32_t>(held_.size());
  record(holder).held_count = static_cast<uint32_t>(values.size());
  for (const ValueId id : values) held_.push_back(current_[index(id)]);
  add_use_of_held(holder, 1);
}

/// Ends a copy's time as the current one of its value.
void Memory::end_current(Copy copy) {
  if (--record(copy).uses > 0)
    ++held_only_count_;
  else
    free(copy);
}

void Memory::free(Copy copy) {
  bytes_ -= graph_->value(value(copy)).bytes;
  freed_.push_back(copy);
}

void Memory::add_use_of_held(Copy holder, int32_t uses) {
  for (const Copy held : held_by(holder))
    if (held >= 0) record(held).uses += uses;
}

void Memory::undo() {
  for (const Copy copy : freed_) add_use_of_held(copy, 1);
  const Step& step = last_.step;
  if (!step.is_run() || step.is_over()) {
    current_[index(step.value())] = last_.ended;
    ++record(last_.ended).uses;
  }
  if (step.is_run()) {
    has_run_[index(step.op())] = last_.had_run;
    unmake_outputs();
  }
  freed_.clear();
  bytes_ = last_.bytes;
  held_only_count_ = last_.held_only_count;
}

void Memory::unmake_outputs() {
  const Copy first_made = copy_count() - static_cast<Copy>(replaced_.size());
  for (Copy copy = first_made; copy < copy_count(); ++copy) add_use_of_held(copy, -1);
  held_.resize(last_.held_size);
  for (size_t i = replaced_.size(); i-- > 0; copies_.pop_back()) {
    current_[index(copies_.back().value)] = replaced_[i];
    if (replaced_[i] >= 0) ++record(replaced_[i]).uses;
  }
}

Memory::Copy Memory::restore(ValueId id, bool is_current, std::span<const Copy> held) {
  const Copy copy = copy_count();
  copies_.push_back({id, is_current ? 1 : 0, static_cast<uint32_t>(held_.size()), static_cast<uint32_t>(held.size())});
  if (!held.empty()) {
    held_.insert(held_.end(), held.begin(), held.end());
    add_use_of_held(copy, 1);
  }
  if (is_current)
    current_[index(id)] = copy;
  else
    ++held_only_count_;
  bytes_ += graph_->value(id).bytes;
  return copy;
}

}  // namespace headroom::internal
