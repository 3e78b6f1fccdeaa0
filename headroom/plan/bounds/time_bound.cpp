#include "headroom/plan/bounds/time_bound.h"

#include <algorithm>
#include <limits>

#include "headroom/algorithm/union_find.h"

namespace headroom::internal {

NeededGroups find_needed_groups(const Graph& graph) {
  UnionFind sets(static_cast<int>(graph.ops().size()));
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const auto producers = graph.producers(value_id(v));
    for (const OpId op : producers) sets.join(static_cast<int>(producers.front()), static_cast<int>(op));
  }
  NeededGroups result;
  result.group_of_op.assign(graph.ops().size(), 0);
  for (size_t op = 0; op < graph.ops().size(); ++op) {
    const int first = sets.find(static_cast<int>(op));
    if (first == static_cast<int>(op)) {
      result.group_of_op[op] = static_cast<int>(result.ops.size());
      result.ops.emplace_back();
    } else {
      result.group_of_op[op] = result.group_of_op[static_cast<size_t>(first)];
    }
    result.ops[static_cast<size_t>(result.group_of_op[op])].push_back(op_id(op));
  }
  result.needed.assign(result.ops.size(), 0);
  std::vector<size_t> open;
  const auto need_value = [&](ValueId id) {
    if (graph.producers(id).empty()) return;  // The value is resident.
    const auto group = static_cast<size_t>(result.group_of_op[index(graph.producers(id).front())]);
    if (result.needed[group] == 0) open.push_back(group);
    result.needed[group] = 1;
  };
  for (const ValueId id : graph.outputs()) need_value(id);
  while (!open.empty()) {
    const std::vector<OpId>& ops = result.ops[open.back()];
    open.pop_back();
    for (const ValueId id : graph.op(ops.front()).inputs) {
      const bool read_by_all = std::ranges::all_of(ops, [&](OpId op) {
        const std::vector<ValueId>& inputs = graph.op(op).inputs;
        return std::ranges::find(inputs, id) != inputs.end();
      });
      if (read_by_all) need_value(id);
    }
  }
  return result;
}

int64_t fastest_ns(const Graph& graph, std::span<const OpId> ops) {
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (const OpId op : ops) fastest = std::min(fastest, graph.op(op).time_ns);
  return fastest;
}

int64_t time_lower_bound_ns(const Graph& graph) {
  const NeededGroups groups = find_needed_groups(graph);
  int64_t bound_ns = 0;
  for (size_t g = 0; g < groups.ops.size(); ++g)
    if (groups.needed[g] != 0) bound_ns += fastest_ns(graph, groups.ops[g]);
  return bound_ns;
}

}  // namespace headroom::internal
