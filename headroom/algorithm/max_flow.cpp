#include "headroom/algorithm/max_flow.h"

#include <algorithm>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

int MaxFlow::add_edge(int from, int to, FlowAmount capacity) {
  capacities_.push_back(capacity);
  const auto add = [&](int tail, int head, FlowAmount left) {
    edges_.push_back({head, first_[at(tail)], left});
    first_[at(tail)] = static_cast<int>(edges_.size()) - 1;
  };
  add(from, to, capacity);
  add(to, from, 0);
  return static_cast<int>(edges_.size()) - 2;
}

void MaxFlow::clear_flow() {
  limited_sum_ = 0;
  for (size_t i = 0; i < capacities_.size(); ++i) {
    const FlowAmount capacity = capacities_[i];
    HEADROOM_ASSERT(capacity >= 0 && (capacity == kUnlimited || capacity < kUnlimited - limited_sum_));
    if (capacity != kUnlimited) limited_sum_ += capacity;
    edges_[2 * i].left = capacity;
    edges_[2 * i + 1].left = 0;
  }
  value_ = 0;
}

bool MaxFlow::find_levels(int source, int sink) {
  level_.assign(first_.size(), -1);
  level_[at(source)] = 0;
  std::vector<int> open{source};
  for (size_t i = 0; i < open.size(); ++i) {
    for (int e = first_[at(open[i])]; e >= 0; e = edges_[at(e)].next) {
      const Edge& edge = edges_[at(e)];
      if (edge.left == 0 || level_[at(edge.to)] >= 0) continue;
      level_[at(edge.to)] = level_[at(open[i])] + 1;
      open.push_back(edge.to);
    }
  }
  return level_[at(sink)] >= 0;
}

/// Pushes flow along shortest paths until none is left, and returns its amount. It is not recursive, because a path can
/// be as long as the graph.
FlowAmount MaxFlow::push_paths(int source, int sink) {
  next_ = first_;
  FlowAmount pushed = 0;
  std::vector<int> path;  // The edges of the path from the source to `node`.
  int node = source;
  for (;;) {
    if (node == sink) {
      FlowAmount flow = kUnlimited;
      for (const int e : path) flow = std::min(flow, edges_[at(e)].left);
      // An unlimited edge always has more capacity left than all limited edges together, so it never limits a path.
      HEADROOM_ASSERT(flow <= limited_sum_ - value_ - pushed);
      size_t keep = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        edges_[at(path[i])].left -= flow;
        edges_[at(path[i] ^ 1)].left += flow;
        if (edges_[at(path[i])].left == 0) keep = i;
      }
      pushed += flow;
      node = edges_[at(path[keep] ^ 1)].to;
      path.resize(keep);
      continue;
    }
    int& e = next_[at(node)];
    while (e >= 0 && (edges_[at(e)].left == 0 || level_[at(edges_[at(e)].to)] != level_[at(node)] + 1))
      e = edges_[at(e)].next;
    if (e >= 0) {
      path.push_back(e);
      node = edges_[at(e)].to;
      continue;
    }
    if (path.empty()) return pushed;
    level_[at(node)] = -1;  // No path leads from this node to the sink.
    node = edges_[at(path.back() ^ 1)].to;
    path.pop_back();
  }
}

FlowAmount MaxFlow::run(int source, int sink) {
  source_ = source;
  sink_ = sink;
  clear_flow();
  while (find_levels(source, sink)) value_ += push_paths(source, sink);
  return value_;
}

bool MaxFlow::is_cut(int edge) const {
  return level_[at(edges_[at(edge ^ 1)].to)] >= 0 && level_[at(edges_[at(edge)].to)] < 0;
}

const char* MaxFlow::find_error() const {
  std::vector<FlowAmount> balance(first_.size(), 0);  // By node: flow that leaves it less flow that enters it.
  FlowAmount cut = 0;
  for (size_t i = 0; i < capacities_.size(); ++i) {
    const int edge = static_cast<int>(2 * i);
    const FlowAmount flow = capacities_[i] - edges_[at(edge)].left;
    if (flow < 0 || flow > capacities_[i]) return "the flow of an edge is not within its capacity";
    balance[at(edges_[at(edge ^ 1)].to)] += flow;
    balance[at(edges_[at(edge)].to)] -= flow;
    if (!is_cut(edge)) continue;
    if (capacities_[i] == kUnlimited) return "an unlimited edge is cut";
    cut += capacities_[i];
  }
  for (size_t node = 0; node < balance.size(); ++node) {
    const FlowAmount expected = node == at(source_) ? value_ : node == at(sink_) ? -value_ : 0;
    if (balance[node] != expected) return "a node makes or takes flow";
  }
  if (level_[at(source_)] < 0 || level_[at(sink_)] >= 0) return "the cut does not part source and sink";
  return cut == value_ ? nullptr : "the values of flow and cut differ";
}

}  // namespace headroom::internal
