#pragma once

#include <cstdint>
#include <vector>

#include "headroom/algorithm/least_cut.h"
#include "headroom/plan/graph/forward_graph.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// How a segment, all that lies between two vertices and touches the rest only there, comes apart.
enum class DivisionKind : uint8_t {
  kLinear,       ///< every path goes through each of the joints: they part it into a row of segments
  kBranch,       ///< parts that share only the two ends; no joints
  kComplicated,  ///< neither; cut into its largest proper segments between joints
};

/// Vertices are those of a ForwardGraph; -1 is a source of no size before all of them.
struct DivisionNode {
  DivisionKind kind = DivisionKind::kLinear;
  int source = -1;
  int target = 0;
  int64_t cost_bytes = 0;   ///< of all vertices inside
  std::vector<int> joints;  ///< vertices inside that part it; linear: in order
  std::vector<int>
      children;  ///< nodes, -1 for an edge with nothing inside (linear: in order, one more than joints; else left out)
};

/// The root comes first. Every vertex but the root's target is a joint of exactly one node.
struct DivisionTree {
  std::vector<DivisionNode> nodes;
};

/// Several sources and targets: the longest path gives the ones that count. A vertex that the first one does not lead
/// to, or that does not lead to the last one, is placed between those neighbours in the row of vertices that all other
/// paths go through where it belongs, so that the odd side branch does not hide that row. (The paper has one source and
/// one target.)
///
/// O(vertices and edges) for each level of nesting, and O(k (V + E)) for a complicated node with k vertices of more
/// than two edges. Where those come to more than 2e8 in all, the rest of the complicated nodes are cut only into runs
/// of vertices that have two edges.
DivisionTree division_tree(const ForwardGraph& forward);

/// The vertices to keep that minimise  sum of the kept bytes + largest sum of bytes between them  among what the tree
/// allows for a bound m on the second term: a node of cost above m is opened, all joints of an opened branch or
/// complicated node are kept, in a linear one the ends of children that are opened too, and between those the best
/// choice by least_cut_within(). Ties: fewest vertices, then the lexicographically smallest list. The target is never
/// kept.
///
/// What a vertex records beyond what keeping it keeps (ForwardVertex) counts as lying before it. Where that is nothing
/// and the forward graph is a path, this is least_cut(). O(nodes and joints) for each m tried, see least_over_bounds().
Cut least_division(const ForwardGraph& forward, const DivisionTree& tree);

/// division-tree: Feng & Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs" (CVPR 2021). The
/// kept vertices are those of least_division(); what is connected without them is computed again together, the part
/// before the target is recorded at once (the paper computes it again as well). The choice knows no gradients,
/// workspaces or times: the schedule's peak is for simulate() to say, and the budget is not looked at.
///
/// kFeasible. Throws NotApplicable where plain training has no forward or no backward op.
PlanResult plan_division_tree(const Graph& graph, const PlanRequest& request);

}  // namespace headroom
