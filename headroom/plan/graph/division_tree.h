#pragma once

#include <cstdint>
#include <vector>

#include "headroom/algorithm/least_cut.h"
#include "headroom/plan/graph/forward_graph.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// How a segment, which is all vertices between two vertices that have edges to the rest only through these two, is
/// divided.
enum class DivisionKind : uint8_t {
  kLinear,       ///< Every path goes through each of the joints, which divide it into a row of segments.
  kBranch,       ///< Its parts share only the two ends; it has no joints.
  kComplicated,  ///< Neither; it is cut into its largest proper segments between joints.
};

/// A segment in the tree. Vertices are those of a ForwardGraph; -1 is a source of size 0 before all of them.
struct DivisionNode {
  DivisionKind kind = DivisionKind::kLinear;
  int source = -1;
  int target = 0;
  int64_t cost_bytes = 0;   ///< Bytes of all vertices inside.
  std::vector<int> joints;  ///< Vertices inside that divide it; in a linear node, in order.
  /// Child nodes; -1 for an edge with nothing inside. In a linear node they are in order, one more than joints; in other
  /// nodes such edges are left out.
  std::vector<int> children;
};

/// A division tree. The root comes first. Every vertex except the root's target is a joint of exactly one node.
struct DivisionTree {
  std::vector<DivisionNode> nodes;
};

/// Returns the division tree of a forward graph. Where there are several sources and targets, those of the longest path
/// count (the paper has one of each). Any other source or target is attached to the row of vertices that all other
/// paths go through, between the neighbours where it belongs, so that a few side branches do not hide that row.
///
/// Takes O(vertices and edges) for each level of nesting, and O(k (V + E)) for a complicated node with k vertices of
/// more than two edges. Where those add up to more than 2e8, the remaining complicated nodes are cut only into paths of
/// vertices that have two edges.
DivisionTree division_tree(const ForwardGraph& forward);

/// Returns the vertices to keep that minimise  sum of the kept bytes + largest sum of bytes between them.  The choice
/// is limited by the tree, for a bound m on the second term: a node of cost above m is opened; all joints of an opened
/// branch or complicated node are kept; in an opened linear node, the ends of children that are opened too are kept,
/// and between those the best choice of least_cut_within(). Ties: fewest vertices, then the lexicographically smallest
/// list. The target is never kept.
///
/// Where a vertex records more bytes than keeping it keeps (ForwardVertex), the difference counts as lying before it.
/// Where there is no difference and the forward graph is a path, the result is that of least_cut(). Takes O(nodes and
/// joints) for each m tried, see least_over_bounds().
Cut least_division(const ForwardGraph& forward, const DivisionTree& tree);

/// Makes the plan of `division-tree`: Feng & Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation
/// Graphs" (CVPR 2021). The kept vertices are those of least_division(). Vertices that are connected without the kept
/// ones are recomputed together; the part before the target is recorded at once (the paper recomputes it as well). The
/// choice knows no gradients, workspaces or times, and ignores the budget; simulate() computes the schedule's peak.
///
/// The status is kFeasible. Throws NotApplicable where store-all has no forward or no backward op.
PlanResult plan_division_tree(const Graph& graph, const PlanRequest& request);

}  // namespace headroom::internal
