#pragma once

#include <cstdint>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/network.h"

namespace headroom {

/// What one node of a network costs on given inputs.
struct NodeCosts {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t tape_bytes = 0;  ///< what backward needs of what forward made, the output included
  int64_t forward_workspace_bytes = 0;
  int64_t record_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;
  int64_t parameter_gradient_bytes = 0;
  std::vector<int64_t> input_gradient_bytes;  ///< by input of the node; 0 where it gets none, or the output's own
  std::vector<bool> passes_gradient_on;  ///< by input: its gradient is the output's, in the same memory (an addition)
  bool draws = false;                    ///< takes random numbers
  bool changes_buffers = false;
  bool records_to_run =
      false;  ///< without recording, its forward gives other bits: run it recorded and forget the tape
};

struct NetworkCosts {
  std::vector<NodeCosts> nodes;
  int64_t resident_bytes = 0;  ///< parameters, buffers, and inputs but the first
  int64_t input_bytes = 0;     ///< of the first input
};

enum class StepOpKind : uint8_t {
  kForward,   ///< F: a node, nothing recorded
  kRecord,    ///< R: a node, its tape recorded
  kBackward,  ///< B: a node's backward
  kSum,       ///< S: adds up the gradients that several readers of a wire gave it
};

/// How an op of a step graph runs, and where it finds what it reads and writes.
struct StepOp {
  StepOpKind kind = StepOpKind::kForward;
  size_t node = 0;                 ///< kSum: the wire's number
  std::vector<ValueId> gradients;  ///< kBackward: by input of the node, what it writes; -1: none. kSum: what it adds up
  ValueId output_gradient{-1};     ///< kBackward: what it reads. kSum: what it writes
};

/// A network's training step as a graph. Each node i has F{i}, R{i} and B{i} as a stage of a chain has
/// (docs/formats.md), and a wire that several nodes read gets its gradient from an op S{i} of its own. F and R have
/// workspaces of their own; but for that, a network that is a chain gives exactly its chain's graph, ids included.
///
/// Resident: w (parameters, buffers, all inputs but the first), a0 (the first input), and the gradient of the loss.
struct StepGraph {
  Graph graph;
  std::vector<StepOp> ops;            ///< by OpId
  std::vector<ValueId> node_outputs;  ///< a{i}, by node from 0
  std::vector<ValueId> node_tapes;    ///< t{i}
  ValueId loss_gradient{-1};
  ValueId input_gradient{-1};  ///< of the first input; of 0 bytes where it needs none
};

/// The network's one output must be its last node, the loss. Throws InvalidInput otherwise.
StepGraph make_step_graph(const Network& network, const NetworkCosts& costs);

/// What planners work on: the step, and the chain that it is, if the network is one. Planners of chains see the
/// workspace of R for F too, which can be less than F has: the simulator, on the graph, says whether their plans keep
/// to the budget.
Problem make_problem(const StepGraph& step);

}  // namespace headroom
