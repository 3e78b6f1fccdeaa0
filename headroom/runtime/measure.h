#pragma once

#include <functional>

#include "headroom/runtime/network.h"
#include "headroom/runtime/step_graph.h"

namespace headroom {

struct MeasureOptions {
  int warmups = 1;
  int least_repeats = 3;  ///< of which the median counts, for times
  int most_repeats = 20;  ///< until half of them are within a twentieth of the median, or the node has had its time
  int64_t node_ns = 200'000'000;                          ///< a node's time: no more repeats once it has run this long
  std::function<void(size_t done, size_t all)> progress;  ///< called after each piece of work; may be empty
};

/// Runs every node of a network on sample inputs, forward without and with recording and backward, by the kernels that
/// the executor uses and on the gradients that they make, and says what each costs: bytes exact by the meter, times as
/// medians. Random numbers, buffers and gradients are as they were afterwards. Nodes that must be joined to run one by
/// one (find_joins()) are.
///
/// Needs the memory of one node at a time, and of all nodes' outputs: on the host where the network is on another
/// device.
///
/// Tapes count every storage that a node made and backward needs, once, its output included; parameters and inputs are
/// not in them. A workspace is what a moment has beyond that; backward's is negative where what it takes over (its
/// tape, the output, the gradient) is freed on the way.
///
/// Throws InvalidInput for a node that returns no tensor, changes an input of the network in place, or gives another
/// shape or allocates differently from one run to the next; the message names the node. What a node throws itself comes
/// as std::runtime_error with its name and shapes.
MeasuredNetwork measure(const Network& network, const Tensors& inputs, const MeasureOptions& options = {});

}  // namespace headroom
