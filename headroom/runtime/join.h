#pragma once

#include <vector>

#include "headroom/runtime/network.h"

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

/// What must be joined for a network to run node by node, found by running its forward once on sample inputs: a node that
/// changes its input in place or hands it on (as itself or a view) belongs to the node that made the input, and one that
/// hands on an input of the network to the node after it. Random numbers and buffers are as they were afterwards. Throws
/// InvalidInput, naming the node, for one that changes an input of the network in place or returns no tensor.
std::vector<NodeRange> find_joins(const Network& network, const Tensors& inputs);

}  // namespace headroom
