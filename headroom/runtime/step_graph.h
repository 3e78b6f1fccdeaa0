#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/core/schedule.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/network.h"

namespace headroom {

/// The memory of a gradient that a node's backward makes for one of its inputs.
struct GradientMemory {
  static constexpr int kOutputGradient = -1;
  int64_t bytes = 0;  ///< of its own
  /// The gradient of an earlier input, or the output's where that is in use elsewhere too: additions hand theirs on.
  std::optional<int> shared_with;
};

/// What one node of a network costs on given inputs.
struct NodeCosts {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t tape_bytes = 0;  ///< what backward needs of what forward made, the output included
  int64_t forward_workspace_bytes = 0;
  int64_t record_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;       ///< where it takes over the output and its gradient
  int64_t held_backward_workspace_bytes = 0;  ///< where they stay
  int64_t parameter_gradient_bytes = 0;       ///< of those that no later node has made already
  std::vector<GradientMemory> input_gradients;
  bool draws = false;  ///< takes random numbers
  bool changes_buffers = false;
  /// Whether its forward gives other bits without recording; it is then run recorded, and the tape is dropped.
  bool records_to_run = false;
};

struct NetworkCosts {
  std::vector<NodeCosts> nodes;
  int64_t resident_bytes = 0;  ///< parameters, buffers, and inputs but the first
  int64_t input_bytes = 0;     ///< of the first input
};

/// A network that can run node by node, and what its nodes cost.
struct MeasuredNetwork {
  Network network;
  NetworkCosts costs;
};

enum class StepOpKind : uint8_t {
  kForward,   ///< F: a node, nothing recorded
  kRecord,    ///< R: a node, its tape recorded
  kBackward,  ///< B: a node's backward
};

/// How an op of a step graph runs, and where it finds what it reads and writes.
struct StepOp {
  StepOpKind kind = StepOpKind::kForward;
  size_t node = 0;
  // Of kBackward:
  ValueId output_gradient{-1};
  std::vector<ValueId> sums;       ///< by input of the node: what nodes after it gave that input; -1: nothing
  std::vector<ValueId> gradients;  ///< by input of the node: that with its own added; -1: none
};

/// A network's training step as a graph. Each node i has F{i}, R{i} and B{i} as a stage of a chain has
/// (docs/formats.md). Where several nodes read a wire, the backward of each adds to what those after it gave: the last
/// one to run makes g{i}, the others g{i}.{node}. A network that is a chain gives exactly its chain's graph, ids
/// included.
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
StepGraph make_step_graph(const MeasuredNetwork& measured);

/// By step of a schedule, whether it is a backward that takes over the node's output and the output's gradient: the
/// schedule drops both right after it. Planners' schedules do so; PyTorch's reentrant checkpoints keep them longer.
std::vector<bool> find_taking_over(const StepGraph& step, const Schedule& schedule);

/// The graph by which a schedule is to be judged: that of `step`, whose backwards all take over, but for those that
/// this schedule lets keep what they read.
Graph graph_for(const StepGraph& step, const NetworkCosts& costs, const Schedule& schedule);

/// What planners work on: the step, and the chain that it is, if the network is one.
Problem make_problem(const StepGraph& step);

}  // namespace headroom
