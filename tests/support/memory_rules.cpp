#include "tests/support/memory_rules.h"

#include <algorithm>
#include <stdexcept>

namespace headroom::internal::testing {
namespace {

constexpr size_t kMaxCopies = 64;

uint64_t bit(size_t i) { return uint64_t{1} << i; }

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

}  // namespace

MemoryRules::MemoryRules(const Graph& graph) : graph_(graph), depth_(graph.values().size(), 0) {
  // The loop terminates because holding has no cycles.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t v = 0; v < depth_.size(); ++v)
      for (const ValueId held : graph.values()[v].holds)
        if (depth_[index(held)] <= depth_[v]) {
          depth_[index(held)] = depth_[v] + 1;
          changed = true;
        }
  }
  max_depth_ = depth_.empty() ? 0 : std::ranges::max(depth_);
}

int64_t MemoryRules::bytes(const MemoryState& state) const {
  int64_t bytes = 0;
  for (const Value& value : graph_.values())
    if (value.resident) bytes += value.bytes;
  for (const CopyInMemory& copy : state.copies) bytes += graph_.values()[copy.value].bytes;
  return bytes;
}

bool MemoryRules::is_alive(const MemoryState& state, ValueId id) const {
  return graph_.value(id).resident || find(state, id) < state.copies.size();
}

std::vector<std::string> MemoryRules::broken_rules(const MemoryState& state, const Step& step) const {
  std::vector<std::string> broken;
  const auto name_of = [&](ValueId id) { return ", value '" + graph_.value(id).name + "': "; };
  if (!step.is_run()) {
    const std::string drop = "drop" + name_of(step.value());
    if (graph_.value(step.value()).resident) broken.push_back(drop + "drops a resident value");
    if (!is_alive(state, step.value())) broken.push_back(drop + "drops a value that is not alive");
    return broken;
  }
  const Op& op = graph_.op(step.op());
  const auto add = [&](ValueId id, const char* rule) {
    broken.push_back("run '" + op.name + "'" + name_of(id) + rule);
  };
  for (const ValueId id : op.inputs)
    if (!is_alive(state, id)) add(id, "reads a value that is not alive");
  if ((state.ran_once & bit(index(step.op()))) != 0)
    broken.push_back("run '" + op.name + "': runs an op again that may run only once");
  if (!step.is_over()) return broken;
  const ValueId over = step.value();
  const size_t copy = find(state, over);
  if (!contains(op.overwrites, over)) add(over, "runs over a value that the op does not list under overwrites");
  if (copy < state.copies.size() && state.copies[copy].holders != 0)
    add(over, "runs over a value that another value holds");
  if (std::ranges::any_of(op.outputs, [&](ValueId id) { return contains(graph_.value(id).holds, over); }))
    add(over, "runs over a value that one of the op's outputs holds");
  if (is_alive(state, op.outputs.front()))
    add(op.outputs.front(), "runs in place although the op's first output is alive already");
  return broken;
}

int64_t MemoryRules::moment_bytes(const MemoryState& state, const Step& run) const {
  const Op& op = graph_.op(run.op());
  int64_t moment = bytes(state) + op.workspace_bytes;
  for (size_t i = run.is_over() ? 1 : 0; i < op.outputs.size(); ++i) moment += graph_.value(op.outputs[i]).bytes;
  return moment;
}

void MemoryRules::apply(MemoryState& state, const Step& step, size_t number) const {
  if (step.is_run()) {
    const Op& op = graph_.op(step.op());
    const size_t before = state.copies.size();
    if (before + op.outputs.size() > kMaxCopies) throw std::length_error("more copies in memory than the rules take");
    for (const ValueId id : op.outputs) {
      const size_t replaced = find(state, id);
      if (replaced < before) state.copies[replaced].is_current = false;
      state.copies.push_back({static_cast<uint32_t>(id), true, 0, number});
    }
    for (size_t i = 0; i < op.outputs.size(); ++i)
      for (const ValueId held : graph_.value(op.outputs[i]).holds)
        if (const size_t copy = find(state, held); copy < state.copies.size())
          state.copies[copy].holders |= bit(before + i);
    if (!op.recompute) state.ran_once |= bit(index(step.op()));
  }
  if (!step.is_run() || step.is_over()) state.copies[find(state, step.value())].is_current = false;
  free_unused(state);
}

/// Returns the position of the current copy of a value, or the number of copies if there is none.
size_t MemoryRules::find(const MemoryState& state, ValueId id) {
  const auto is_it = [&](const CopyInMemory& copy) {
    return copy.is_current && copy.value == static_cast<uint32_t>(id);
  };
  return static_cast<size_t>(std::ranges::find_if(state.copies, is_it) - state.copies.begin());
}

void MemoryRules::free_unused(MemoryState& state) const {
  std::vector<CopyInMemory> kept;
  uint64_t moved[kMaxCopies] = {};  // The new bit of each old position, or 0 if freed.
  std::vector<std::pair<CopyInMemory, size_t>> layer;
  for (int depth = 0; depth <= max_depth_; ++depth) {
    layer.clear();
    for (size_t i = 0; i < state.copies.size(); ++i) {
      CopyInMemory copy = state.copies[i];
      if (depth_[copy.value] != depth) continue;
      uint64_t holders = 0;
      for (size_t h = 0; h < state.copies.size(); ++h)
        if ((copy.holders & bit(h)) != 0) holders |= moved[h];
      copy.holders = holders;
      if (copy.is_current || holders != 0) layer.emplace_back(copy, i);
    }
    std::ranges::sort(layer);
    for (const auto& [copy, old] : layer) {
      moved[old] = bit(kept.size());
      kept.push_back(copy);
    }
  }
  state.copies = std::move(kept);
}

Replay replay(const Graph& graph, const Schedule& schedule) {
  const MemoryRules rules(graph);
  MemoryState state;
  Replay result;
  result.peak_bytes = rules.bytes(state);
  for (size_t v = 0; v < graph.values().size() && !schedule.steps.empty(); ++v)
    if (graph.values()[v].resident) result.lifetimes.push_back({value_id(v), 0, schedule.steps.size() - 1});
  const auto extend = [&](ValueId id, size_t first_step, size_t last_step) {
    for (Lifetime& life : result.lifetimes)
      if (life.value == id && life.first_step == first_step) life.last_step = std::max(life.last_step, last_step);
  };
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    result.error_step = i;
    result.errors = rules.broken_rules(state, step);
    if (!result.is_valid()) return result;
    // In memory during the step are its outputs and all earlier copies but the one that it overwrites.
    for (const CopyInMemory& copy : state.copies)
      if (!step.is_over() || !copy.is_current || static_cast<ValueId>(copy.value) != step.value())
        extend(static_cast<ValueId>(copy.value), copy.first_step, i);
    result.moment_bytes.push_back(step.is_run() ? rules.moment_bytes(state, step) : rules.bytes(state));
    if (step.is_run()) {
      for (const ValueId id : graph.op(step.op()).outputs) result.lifetimes.push_back({id, i, i});
      result.peak_bytes = std::max(result.peak_bytes, result.moment_bytes.back());
      result.time_ns += graph.op(step.op()).time_ns;
    }
    rules.apply(state, step, i);
    result.after_bytes.push_back(rules.bytes(state));
  }
  result.error_step = schedule.steps.size();
  for (const ValueId id : graph.outputs())
    if (!rules.is_alive(state, id))
      result.errors.push_back("the step ends without its output, value '" + graph.value(id).name + "'");
  return result;
}

}  // namespace headroom::internal::testing
