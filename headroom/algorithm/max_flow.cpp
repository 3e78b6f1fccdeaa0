#include "headroom/algorithm/max_flow.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headroom {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

int MaxFlow::add_edge(int from, int to, double capacity) {
  const auto add = [&](int tail, int head, double left) {
    edges_.push_back({head, first_[at(tail)], left});
    first_[at(tail)] = static_cast<int>(edges_.size()) - 1;
  };
  add(from, to, capacity);
  add(to, from, 0);
  return static_cast<int>(edges_.size()) - 2;
}

bool MaxFlow::find_levels(int source, int sink) {
  level_.assign(first_.size(), -1);
  level_[at(source)] = 0;
  std::vector<int> open{source};
  for (size_t i = 0; i < open.size(); ++i) {
    for (int e = first_[at(open[i])]; e >= 0; e = edges_[at(e)].next) {
      const Edge& edge = edges_[at(e)];
      if (edge.left <= least_ || level_[at(edge.to)] >= 0) continue;
      level_[at(edge.to)] = level_[at(open[i])] + 1;
      open.push_back(edge.to);
    }
  }
  return level_[at(sink)] >= 0;
}

/// Along shortest paths until none is left. Not recursive: paths are as long as the graph.
double MaxFlow::push_paths(int source, int sink) {
  next_ = first_;
  double pushed = 0;
  std::vector<int> path;  // edges
  int node = source;
  for (;;) {
    if (node == sink) {
      double flow = std::numeric_limits<double>::infinity();
      for (const int e : path) flow = std::min(flow, edges_[at(e)].left);
      size_t keep = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        edges_[at(path[i])].left -= flow;
        edges_[at(path[i] ^ 1)].left += flow;
        if (edges_[at(path[i])].left <= least_) keep = i;
      }
      pushed += flow;
      node = edges_[at(path[keep] ^ 1)].to;
      path.resize(keep);
      continue;
    }
    int& e = next_[at(node)];
    while (e >= 0 && (edges_[at(e)].left <= least_ || level_[at(edges_[at(e)].to)] != level_[at(node)] + 1))
      e = edges_[at(e)].next;
    if (e >= 0) {
      path.push_back(e);
      node = edges_[at(e)].to;
      continue;
    }
    if (path.empty()) return pushed;
    level_[at(node)] = -1;  // leads nowhere
    node = edges_[at(path.back() ^ 1)].to;
    path.pop_back();
  }
}

double MaxFlow::run(int source, int sink) {
  double largest = 0;
  for (const Edge& edge : edges_)
    if (std::isfinite(edge.left)) largest = std::max(largest, edge.left);
  least_ = largest * 1e-13;
  double flow = 0;
  while (find_levels(source, sink)) flow += push_paths(source, sink);
  return flow;
}

bool MaxFlow::is_cut(int edge) const {
  return level_[at(edges_[at(edge ^ 1)].to)] >= 0 && level_[at(edges_[at(edge)].to)] < 0;
}

}  // namespace headroom
