#include "headroom/core/schedule.h"

#include <algorithm>

namespace headroom {

std::vector<OpId> base_ops(const Graph& graph) {
  std::vector<uint8_t> wanted(graph.values().size(), 0);
  for (const ValueId id : graph.outputs()) wanted[index(id)] = 1;
  std::vector<OpId> ops;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    if (std::ranges::none_of(op.outputs, [&](ValueId id) { return wanted[index(id)] != 0; })) continue;
    for (const ValueId id : op.outputs) wanted[index(id)] = 0;
    for (const ValueId id : op.inputs) wanted[index(id)] = 1;
    ops.push_back(op_id(i));
  }
  std::ranges::reverse(ops);
  return ops;
}

Schedule with_drops(const Graph& graph, std::span<const OpId> runs) {
  // Backwards, so that the first reader met is the last one; resident values never look droppable.
  std::vector<uint8_t> used_later(graph.values().size(), 0);
  for (size_t v = 0; v < used_later.size(); ++v) used_later[v] = graph.values()[v].resident ? 1 : 0;
  for (const ValueId id : graph.outputs()) used_later[index(id)] = 1;
  Schedule schedule;
  for (size_t i = runs.size(); i-- > 0;) {
    const Op& op = graph.op(runs[i]);
    for (const ValueId id : op.outputs) {
      if (used_later[index(id)] == 0) schedule.steps.push_back(Step::drop(id));
      used_later[index(id)] = 0;
    }
    for (const ValueId id : op.inputs) {
      if (used_later[index(id)] == 0) schedule.steps.push_back(Step::drop(id));
      used_later[index(id)] = 1;
    }
    schedule.steps.push_back(Step::run(runs[i]));
  }
  std::ranges::reverse(schedule.steps);
  return schedule;
}

Schedule store_all(const Graph& graph) { return with_drops(graph, base_ops(graph)); }

}  // namespace headroom
