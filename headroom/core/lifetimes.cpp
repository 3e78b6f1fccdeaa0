#include "headroom/core/lifetimes.h"

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
