#pragma once

#include <vector>

#include "headroom/runtime/network.h"
#include "headroom/runtime/side_effects.h"

namespace headroom {

/// Nodes first..last of a network.
struct NodeRange {
  size_t first = 0;
  size_t last = 0;
  bool operator==(const NodeRange&) const = default;
};

/// The same network with the nodes of each range as one node, which hands on one value as all do. Ranges may overlap,
/// then they are one; a range that would hand on several values is continued up to where it hands on one.
Network join(const Network& network, std::vector<NodeRange> ranges);

/// The network as a chain of as many blocks as there can be: nodes are joined wherever more than one value (labels and
/// the like apart) would pass from one to the next. A network that is a chain stays as it is.
Network join_to_chain(const Network& network);

/// What a network's nodes do beside computing their outputs, found by running it once on sample inputs.
struct Traits {
  std::vector<NodeRange> joins;
  std::vector<SideEffects> effects;  ///< by node
};

/// Finds what must be joined for a network to run node by node, and what nodes use beside their inputs: a node that
/// changes its input in place or hands it on (as itself or a view) belongs to the node that made the input, and one that
/// hands on an input of the network to the node after it. Random generators, buffers and whatever else operators write
/// are as they were afterwards. Throws InvalidInput, naming the node, for one that changes an input of the network in
/// place or returns no tensor.
Traits find_traits(const Network& network, const Tensors& inputs);

/// The joins of find_traits().
std::vector<NodeRange> find_joins(const Network& network, const Tensors& inputs);

/// The same network whose nodes know what they use beside their inputs: captured tensors that some node writes are
/// buffers of the nodes that use them, and NetworkNode::reads and generators are filled in.
Network with_side_effects(const Network& network, const std::vector<SideEffects>& effects);

}  // namespace headroom
