#pragma once

#include <cstddef>
#include <vector>

namespace headroom::internal {

/// A flow, a capacity or a sum of them. Wide enough for products of two int64.
__extension__ using FlowAmount = __int128;

/// Computes a maximum flow and a minimum cut of a directed graph by Dinic's algorithm. Amounts are integers, so both
/// are exact.
///
///     MaxFlow flow(2);
///     const int a = flow.add_node();
///     flow.add_edge(0, a, MaxFlow::kUnlimited);
///     const int narrow = flow.add_edge(a, 1, 3);
///     flow.run(0, 1);        // 3
///     flow.is_cut(narrow);   // true
///
/// Capacities must not be negative, the sum of those that are not kUnlimited must be below kUnlimited, and no path of
/// unlimited edges alone may lead from the source to the sink; otherwise run() throws InternalError.
class MaxFlow {
 public:
  static constexpr FlowAmount kUnlimited = FlowAmount{1} << 126U;

  /// Makes a graph of `nodes` nodes, numbered from 0, without edges.
  explicit MaxFlow(int nodes) : first_(static_cast<size_t>(nodes), -1) {}

  int add_node() {
    first_.push_back(-1);
    return static_cast<int>(first_.size()) - 1;
  }
  /// Adds an edge and returns its number.
  int add_edge(int from, int to, FlowAmount capacity);
  /// Changes the capacity of an edge for the next run().
  void set_capacity(int edge, FlowAmount capacity) { capacities_[static_cast<size_t>(edge / 2)] = capacity; }
  /// Computes a maximum flow from scratch and returns its value. Takes O(nodes^2 edges) at worst, far less in practice.
  FlowAmount run(int source, int sink);
  /// Returns, after run(), whether an edge leads out of the nodes that the source still reaches. These edges are a
  /// minimum cut; of several, the one nearest to the source, whatever flow was found.
  bool is_cut(int edge) const;
  /// Returns, after run(), whether the source still reaches a node.
  bool is_reached(int node) const { return level_[static_cast<size_t>(node)] >= 0; }
  /// Verifies the result of run() independently of the algorithm: the flow is within the capacities, no node but source
  /// and sink makes or takes any, and the cut separates source and sink and has the value of the flow, which proves
  /// both optimal. Returns the first violation, or null if there is none. Takes O(nodes + edges).
  const char* find_error() const;

 private:
  struct Edge {
    int to;
    int next;         ///< Next edge of the same node; -1 if there is none.
    FlowAmount left;  ///< Capacity that is not used.
  };
  void clear_flow();
  bool find_levels(int source, int sink);
  FlowAmount push_paths(int source, int sink);

  std::vector<int> first_;              ///< By node: its first edge.
  std::vector<Edge> edges_;             ///< Edges, each followed by its reverse.
  std::vector<FlowAmount> capacities_;  ///< By edge, reverse edges left out.
  FlowAmount limited_sum_ = 0;          ///< Sum of the capacities that are not kUnlimited.
  std::vector<int> level_;              ///< By node: number of edges from the source; -1 if it is not reached.
  /// By node: first edge that push_paths() has not ruled out.
  std::vector<int> next_;
  int source_ = 0;
  int sink_ = 0;
  FlowAmount value_ = 0;
};

}  // namespace headroom::internal
