#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"
#include "headroom/core/schedule.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/network/network.h"

namespace headroom {

/// The memory of a gradient that a node's backward computes for one of its inputs.
struct GradientMemory {
  static constexpr int kOutputGradient = -1;
  int64_t bytes = 0;  ///< Bytes of its own.
  /// The earlier input whose gradient's memory it shares, or kOutputGradient for the output's gradient, where that is
  /// in use elsewhere too; additions pass their output's gradient on. None if it shares none.
  std::optional<int> shared_with;
};

/// The costs of one node of a network on given inputs.
struct NodeCosts {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t tape_bytes = 0;  ///< Bytes that forward saves for backward, the output included.
  int64_t forward_workspace_bytes = 0;
  int64_t record_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;       ///< Workspace where backward takes over the output and its gradient.
  int64_t held_backward_workspace_bytes = 0;  ///< Workspace where the output and its gradient stay live.
  int64_t parameter_gradient_bytes = 0;       ///< Bytes of the parameter gradients that no later node has allocated.
  std::vector<GradientMemory> input_gradients;
  bool draws = false;           ///< Whether its forward draws random numbers.
  bool backward_draws = false;  ///< Whether its backward does.
  bool changes_buffers = false;
  /// Whether its forward gives other bits without recording; it is then run recorded, and the tape is dropped.
  bool records_to_run = false;
};

struct NetworkCosts {
  std::vector<NodeCosts> nodes;
  int64_t resident_bytes = 0;  ///< Bytes of parameters, buffers, and all inputs except the first.
  int64_t input_bytes = 0;     ///< Bytes of the first input.
};

/// A network that can run node by node, and the costs of its nodes.
struct MeasuredNetwork {
  Network network;
  NetworkCosts costs;
};

enum class StepOpKind : uint8_t {
  kForward,   ///< F: runs a node without recording.
  kRecord,    ///< R: runs a node and records its tape.
  kBackward,  ///< B: runs a node's backward.
};

/// How an op of a step graph runs, and the values that it reads and writes.
struct StepOp {
  StepOpKind kind = StepOpKind::kForward;
  size_t node = 0;
  // The following are used by kBackward only.
  ValueId output_gradient{-1};
  std::vector<ValueId> sums;  ///< By input of the node: the gradient that later nodes gave that input; -1 for none.
  std::vector<ValueId> gradients;  ///< By input of the node: that gradient with the node's own added; -1 for none.
};

/// A network's training step as a graph. Each node i has the ops F{i}, R{i} and B{i}, as a stage of a chain has
/// (docs/formats.md). Where several nodes read a wire, the backward of each adds to the gradient that later nodes gave:
/// the last one to run writes g{i}, and the others write g{i}.{node}. The graph of a network that is a chain is exactly
/// its chain's graph, to_graph(), ids included.
///
/// Ops that share more than values keep their order in every schedule: forwards that draw random numbers or use a buffer
/// that one of them changes, and backwards that draw or add to the gradient of the same parameter. Where the values
/// above do not say so, an op reads a value of 0 bytes from the one before it, such as "F3 done". A chain needs none.
///
/// Resident values are w (parameters, buffers, all inputs except the first), a0 (the first input), and the gradient of
/// the loss.
struct StepGraph {
  Graph graph;
  std::optional<Chain> chain;         ///< The same step as a chain of the nodes, if the network is one.
  std::vector<StepOp> ops;            ///< By OpId.
  std::vector<ValueId> node_outputs;  ///< By node from 0: a{i}.
  std::vector<ValueId> node_tapes;    ///< By node from 0: t{i}.
  ValueId loss_gradient{-1};
  ValueId input_gradient{-1};  ///< Gradient of the first input, with 0 bytes if it requires none.
};

/// Returns the graph of a network's training step. The network must have one output, the output of its last node, which
/// is the loss; otherwise throws InvalidInput.
StepGraph make_step_graph(const MeasuredNetwork& measured);

/// Returns for each step of a schedule whether it is a backward that takes over the node's output and the output's
/// gradient, because the schedule drops both right after it. Planners' schedules do so; PyTorch's reentrant checkpoints
/// keep them longer.
std::vector<bool> find_taking_over(const StepGraph& step, const Schedule& schedule);

/// Returns the step with which a schedule must be simulated: `step`, in which all backwards take over, with other
/// workspaces for the backwards whose inputs this schedule keeps.
StepGraph step_for(const StepGraph& step, const NetworkCosts& costs, const Schedule& schedule);

/// Returns the planners' input. Its graph and its chain are the step's own.
Problem make_problem(const StepGraph& step);

}  // namespace headroom
