#pragma once

#include <cstddef>
#include <vector>

namespace headroom {

/// A flow, a capacity or a sum of them. Wide enough for products of two int64.
__extension__ using FlowAmount = __int128;

/// Maximum flow and minimum cut of a directed graph, by Dinic's algorithm, in integers: both are exact.
///
///     MaxFlow flow(2);
///     const int a = flow.add_node();
///     flow.add_edge(0, a, MaxFlow::kUnlimited);
///     const int narrow = flow.add_edge(a, 1, 3);
///     flow.run(0, 1);        // 3
///     flow.is_cut(narrow);   // true
///
/// Assumed: capacities are not negative, those that are not kUnlimited are less than kUnlimited together, and the source
/// does not reach the sink by unlimited edges alone; InternalError otherwise.
class MaxFlow {
 public:
  static constexpr FlowAmount kUnlimited = FlowAmount{1} << 126U;

  /// Nodes are numbered from 0.
  explicit MaxFlow(int nodes) : first_(static_cast<size_t>(nodes), -1) {}

  int add_node() {
    first_.push_back(-1);
    return static_cast<int>(first_.size()) - 1;
  }
  /// Returns the edge's number.
  int add_edge(int from, int to, FlowAmount capacity);
  /// Changes an edge for the next run().
  void set_capacity(int edge, FlowAmount capacity) { capacities_[static_cast<size_t>(edge / 2)] = capacity; }
  /// Computes a maximum flow from scratch and returns its value. O(nodes^2 edges) at worst, far less in practice.
  FlowAmount run(int source, int sink);
  /// After run(): whether an edge leads out of the nodes that the source still reaches. These edges are a minimum cut;
  /// of several the one nearest to the source, whatever the flow that was found.
  bool is_cut(int edge) const;
  /// After run(): verifies the result without the algorithm. The flow is within the capacities, no node but source and
  /// sink makes or takes any, and the cut parts source and sink and has the value of the flow, which proves both
  /// optimal. Returns the first violation, null where there is none. O(nodes + edges).
  const char* find_error() const;

 private:
  struct Edge {
    int to;
    int next;         ///< edge of the same node, -1: none
    FlowAmount left;  ///< capacity not used
  };
  void clear_flow();
  bool find_levels(int source, int sink);
  FlowAmount push_paths(int source, int sink);

  std::vector<int> first_;              ///< by node, its first edge
  std::vector<Edge> edges_;             ///< each followed by its reverse
  std::vector<FlowAmount> capacities_;  ///< by edge, without reverse ones
  FlowAmount limited_sum_ = 0;          ///< of capacities that are not unlimited
  std::vector<int> level_;              ///< by node, edges from the source; -1: not reached
  std::vector<int> next_;
  int source_ = 0;
  int sink_ = 0;
  FlowAmount value_ = 0;
};

}  // namespace headroom
