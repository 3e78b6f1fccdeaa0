#include "headroom/core/lifetimes.h"

#include <limits>

#include "headroom/core/memory.h"

namespace headroom::internal {

std::vector<Lifetime> lifetimes(const Graph& graph, const Schedule& schedule) {
  std::vector<Lifetime> lifetimes;
  const size_t step_count = schedule.steps.size();
  if (step_count == 0) return lifetimes;
  for (size_t v = 0; v < graph.values().size(); ++v)
    if (graph.values()[v].resident) lifetimes.push_back({value_id(v), 0, step_count - 1});
  const size_t first_copy = lifetimes.size();
  Memory memory(graph);
  for (size_t i = 0; i < step_count; ++i) {
    const Step& step = schedule.steps[i];
    const Memory::Copy overwritten = step.is_over() ? memory.current_copy(step.value()) : Memory::kNone;
    const Memory::Copy copies_before = memory.copy_count();
    memory.apply(step);
    for (Memory::Copy copy = copies_before; copy < memory.copy_count(); ++copy)
      lifetimes.push_back({memory.value(copy), i, step_count - 1});
    // In the moment of a run in place, the memory of the overwritten input belongs to the output.
    for (const Memory::Copy copy : memory.freed())
      lifetimes[first_copy + static_cast<size_t>(copy)].last_step = copy == overwritten ? i - 1 : i;
  }
  return lifetimes;
}

std::vector<Buffer> find_buffers(const Graph& graph, const Schedule& schedule) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<Buffer> buffers;
  const size_t step_count = schedule.steps.size();
  Memory memory(graph);
  std::vector<size_t> buffer_of;  // By copy: the position of its buffer.
  for (size_t i = 0; i < step_count; ++i) {
    const Step& step = schedule.steps[i];
    const Memory::Copy overwritten = step.is_over() ? memory.current_copy(step.value()) : Memory::kNone;
    const Memory::Copy copies_before = memory.copy_count();
    memory.apply(step);
    for (Memory::Copy copy = copies_before; copy < memory.copy_count(); ++copy) {
      const int64_t bytes = graph.value(memory.value(copy)).bytes;
      if (copy == copies_before && overwritten != Memory::kNone) {
        buffer_of.push_back(buffer_of[static_cast<size_t>(overwritten)]);
      } else {
        buffer_of.push_back(bytes > 0 ? buffers.size() : kNone);
        if (bytes > 0) buffers.push_back({memory.value(copy), bytes, i, step_count - 1});
      }
    }
    if (step.is_run() && graph.op(step.op()).workspace_bytes > 0)
      buffers.push_back({std::nullopt, graph.op(step.op()).workspace_bytes, i, i});
    for (const Memory::Copy copy : memory.freed()) {
      const size_t buffer = buffer_of[static_cast<size_t>(copy)];
      if (buffer != kNone && copy != overwritten) buffers[buffer].last_step = step.is_run() ? i : i - 1;
    }
  }
  return buffers;
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

}  // namespace headroom::internal
