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

Schedule with_early_drops(const Graph& graph, const Schedule& schedule) {
  // Runs are visited backwards, so that the first reader found is the last one. Resident values never count as
  // droppable.
  std::vector<uint8_t> used_later(graph.values().size(), 0);
  for (size_t v = 0; v < used_later.size(); ++v) used_later[v] = graph.values()[v].resident ? 1 : 0;
  for (const ValueId id : graph.outputs()) used_later[index(id)] = 1;
  Schedule result;
  for (size_t i = schedule.steps.size(); i-- > 0;) {
    const Step& step = schedule.steps[i];
    if (!step.is_run()) continue;
    const Op& op = graph.op(step.op());
    for (const ValueId id : op.outputs) {
      if (used_later[index(id)] == 0) result.steps.push_back(Step::drop(id));
      used_later[index(id)] = 0;
    }
    for (const ValueId id : op.inputs) {
      const bool is_taken = step.is_over() && step.value() == id;
      if (used_later[index(id)] == 0 && !is_taken) result.steps.push_back(Step::drop(id));
      used_later[index(id)] = 1;
    }
    result.steps.push_back(step);
  }
  std::ranges::reverse(result.steps);
  return result;
}

Schedule with_drops(const Graph& graph, std::span<const OpId> runs) {
  Schedule schedule;
  for (const OpId op : runs) schedule.steps.push_back(Step::run(op));
  return with_early_drops(graph, schedule);
}

Schedule store_all(const Graph& graph) { return with_drops(graph, base_ops(graph)); }

}  // namespace headroom
