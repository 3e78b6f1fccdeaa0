#pragma once

#include <cstddef>
#include <vector>

namespace headroom {

/// Maximum flow in a directed graph with capacities that may be infinite (Dinic's algorithm), in doubles. The source
/// must not reach the sink by infinite capacities alone.
class MaxFlow {
 public:
  explicit MaxFlow(int nodes) : first_(static_cast<size_t>(nodes), -1) {}

  int add_node() {
    first_.push_back(-1);
    return static_cast<int>(first_.size()) - 1;
  }
  /// Returns the edge's number.
  int add_edge(int from, int to, double capacity);
  /// Sends as much as there is, but for what rounding leaves. O(nodes^2 edges) at worst, far less in practice.
  double run(int source, int sink);
  /// After run(): whether an edge leads out of what the source still reaches: a minimum cut.
  bool is_cut(int edge) const;

 private:
  struct Edge {
    int to;
    int next;     ///< edge of the same node, -1: none
    double left;  ///< capacity not used
  };
  bool find_levels(int source, int sink);
  double push_paths(int source, int sink);

  std::vector<int> first_;   ///< by node, its first edge
  std::vector<Edge> edges_;  ///< each followed by its reverse
  std::vector<int> level_;   ///< by node, edges from the source; -1: not reached
  std::vector<int> next_;
  double least_ = 0;  ///< flow below this is rounding
};

}  // namespace headroom
