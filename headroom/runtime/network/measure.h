#pragma once

#include <functional>

#include "headroom/runtime/network/network.h"
#include "headroom/runtime/network/step_graph.h"

namespace headroom {

struct MeasureOptions {
  int warmups = 1;
  int least_repeats = 3;  ///< Minimum number of runs, whose median time counts.
  /// Maximum number of runs; they end once half of the times are within a twentieth of the median, or node_ns is spent.
  int most_repeats = 20;
  /// Time of a node's runs in nanoseconds after which there are no more.
  int64_t node_ns = 200'000'000;
  std::function<void(size_t done, size_t all)> progress;  ///< Called after each node's work; may be empty.
};

/// Runs every node of a network on sample inputs, forward without and with recording and backward, with the kernels
/// that the executor uses and the gradients that they compute, and returns the cost of each: bytes exactly by the
/// meter, times as medians. Restores random numbers, buffers and gradients. Joins nodes that must be joined to run one
/// by one.
///
/// It needs the memory of one node at a time, and of all nodes' outputs, which are on the host where the network is on
/// another device.
///
/// A tape has every storage that a node allocated and backward needs, once, its output included, but no parameters and
/// no inputs. A workspace is what a moment takes beyond that. The workspace of a backward is negative where it frees
/// what it takes over (its tape, the output, the gradient) on the way.
///
/// Throws InvalidInput for a node that returns no tensor, changes an input of the network in place, or returns another
/// shape or allocates differently from one run to the next; the message names the node. An exception of a node itself
/// keeps its type, and names the node and the shapes.
MeasuredNetwork measure(const Network& network, const Tensors& inputs, const MeasureOptions& options = {});

}  // namespace headroom
