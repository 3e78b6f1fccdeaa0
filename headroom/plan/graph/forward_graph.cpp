#include "headroom/plan/graph/forward_graph.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "headroom/core/schedule.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {
namespace {

std::vector<ValueId> sorted(std::vector<ValueId> ids) {
  std::ranges::sort(ids);
  return ids;
}

void sort_unique(std::vector<int>& numbers) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

int64_t bytes_of(const Graph& graph, std::span<const ValueId> ids) {
  int64_t sum = 0;
  for (const ValueId id : ids) sum += graph.value(id).bytes;
  return sum;
}

}  // namespace

OpId leanest_producer(const Graph& graph, OpId op, std::span<const ValueId> wanted) {
  const std::span<const OpId> candidates = graph.producers(wanted.front());
  if (candidates.size() == 1) return op;
  const std::vector<ValueId> inputs = sorted(graph.op(op).inputs);
  const std::vector<ValueId> outputs = sorted({wanted.begin(), wanted.end()});
  const auto rank = [&](OpId id) {
    return std::tuple(bytes_of(graph, graph.op(id).outputs), graph.op(id).time_ns, id);
  };
  OpId best = op;
  for (const OpId id : candidates) {
    if (!graph.op(id).recompute || !(rank(id) < rank(best))) continue;
    if (!std::ranges::includes(inputs, sorted(graph.op(id).inputs))) continue;
    if (std::ranges::includes(sorted(graph.op(id).outputs), outputs)) best = id;
  }
  return best;
}

namespace {

/// The values that a vertex makes, each once, by who reads them.
struct Reads {
  std::vector<ValueId> by_forward;
  std::vector<ValueId> by_any;
};

/// Sets what a vertex keeps, and the sizes and the time of it.
void find_costs(const Graph& graph, Reads& reads, ForwardVertex& vertex) {
  for (auto* list : {&reads.by_forward, &reads.by_any}) {
    std::ranges::sort(*list);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  const bool lean = !reads.by_forward.empty() && reads.by_forward != reads.by_any &&
                    leanest_producer(graph, vertex.op, reads.by_forward) != vertex.op;
  vertex.kept = lean ? reads.by_forward : reads.by_any;
  if (!graph.op(vertex.op).recompute) return;
  vertex.time_ns = graph.op(vertex.op).time_ns;
  const auto given_up_bytes = [&](const std::vector<ValueId>& ids) {
    int64_t sum = 0;
    for (const ValueId id : ids) sum += graph.is_output(id) ? 0 : graph.value(id).bytes;
    return sum;
  };
  vertex.size_bytes = given_up_bytes(reads.by_any);
  vertex.kept_bytes = given_up_bytes(vertex.kept);
}

}  // namespace

ForwardGraph forward_graph(const Graph& graph, std::string_view planner) {
  ForwardGraph forward;
  forward.base = base_ops(graph);
  const auto is_forward = [&](OpId id) { return graph.op(id).phase == Phase::kForward; };
  for (const OpId id : forward.base) {
    if (is_forward(id)) forward.vertices.push_back({.op = id, .kept = {}});
  }
  const auto refuse = [&](const char* what) {
    throw NotApplicable(std::string(planner) + " needs " + what + " ops; graph '" + graph.name() + "' has none");
  };
  if (forward.vertices.empty()) refuse("forward");
  if (forward.vertices.size() == forward.base.size()) refuse("backward");

  // A reader's input comes from the last op before it in base order that writes it.
  const size_t n = forward.vertices.size();
  forward.predecessors.resize(n);
  forward.successors.resize(n);
  std::vector<int> maker(graph.values().size(), -1);  // By value: the vertex that wrote it last; -1 for a backward op.
  std::vector<Reads> reads(n);
  int next_vertex = 0;
  for (const OpId id : forward.base) {
    const int vertex = is_forward(id) ? next_vertex++ : -1;
    for (const ValueId input : graph.op(id).inputs) {
      const int from = maker[index(input)];
      if (from < 0) continue;
      reads[static_cast<size_t>(from)].by_any.push_back(input);
      if (vertex < 0) continue;
      reads[static_cast<size_t>(from)].by_forward.push_back(input);
      forward.predecessors[static_cast<size_t>(vertex)].push_back(from);
      forward.successors[static_cast<size_t>(from)].push_back(vertex);
    }
    for (const ValueId output : graph.op(id).outputs) maker[index(output)] = vertex;
  }

  for (size_t v = 0; v < n; ++v) {
    sort_unique(forward.predecessors[v]);
    sort_unique(forward.successors[v]);
    find_costs(graph, reads[v], forward.vertices[v]);
  }
  return forward;
}

}  // namespace headroom::internal
