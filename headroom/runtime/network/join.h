#pragma once

#include <vector>

#include "headroom/runtime/network/network.h"
#include "headroom/runtime/network/side_effects.h"

namespace headroom::internal {

/// Nodes first..last of a network.
struct NodeRange {
  size_t first = 0;
  size_t last = 0;
  bool operator==(const NodeRange&) const = default;
};

/// Returns the same network with the nodes of each range joined into one node, which passes on one value as all nodes
/// do. Ranges that overlap are merged, and a range that would pass on several values is extended to where it passes on
/// one.
Network join(const Network& network, std::vector<NodeRange> ranges);

/// Returns the network as a chain of as many blocks as possible: nodes are joined wherever more than one value (except
/// labels and other inputs) would pass from one to the next. A network that is a chain is returned unchanged.
Network join_to_chain(const Network& network);

/// What a network's nodes do besides computing their outputs, found by running it once on sample inputs.
struct Traits {
  std::vector<NodeRange> joins;
  std::vector<SideEffects> effects;  ///< By node.
};

/// Finds which nodes must be joined so that a network can run node by node, and what nodes use besides their inputs. A
/// node that changes its input in place or returns it (as itself or a view) is joined to the node that produced the
/// input; a node that returns an input of the network is joined to the node after it. Random generators, buffers and
/// other memory that operators write are restored. Throws InvalidInput, naming the node, for a node that changes an
/// input of the network in place or returns no tensor.
Traits find_traits(const Network& network, const Tensors& inputs);

/// Returns the same network with the side effects in its nodes: captured tensors that some node writes become buffers
/// of the nodes that use them, and NetworkNode::reads and generators are filled in.
Network with_side_effects(const Network& network, const std::vector<SideEffects>& effects);

}  // namespace headroom::internal
