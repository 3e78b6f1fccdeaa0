#pragma once

#include "headroom/runtime/network.h"
#include "headroom/runtime/step_graph.h"

namespace headroom {

struct MeasureOptions {
  int warmups = 1;
  int repeats = 3;  ///< of which the median counts, for times
};

/// Runs every node of a network on sample inputs, forward without and with recording and backward, by the kernels that
/// the executor uses, and says what each costs: bytes exact by the meter, times as medians. Random numbers and buffers
/// are as they were afterwards.
///
/// Tapes count every storage that a node made and backward needs, once, its output included; parameters and inputs are
/// not in them. A workspace is what a moment has beyond that; backward's is negative where its tape is freed on the
/// way.
///
/// Throws InvalidInput for a node that returns no tensor, hands back its input or a view of it, changes its input in
/// place, or allocates differently from one run to the next; the message names the node. What a node throws itself
/// comes as std::runtime_error with its name.
NetworkCosts measure(const Network& network, const Tensors& inputs, const MeasureOptions& options = {});

}  // namespace headroom
