#pragma once

#include <vector>

#include "headroom/runtime/network/step_graph.h"

namespace headroom::internal {

/// The saved state of a recorded forward: autograd's graph from `leaves`, which share the memory of the node's inputs,
/// to `output`.
struct Tape {
  Tensors leaves;
  torch::Tensor output;
};

struct NodeOutput {
  torch::Tensor output;  ///< Has no history; shares the memory of the tape's output.
  Tape tape;             ///< Empty unless recorded.
};

struct NodeGradients {
  Tensors inputs;  ///< By input; undefined where it gets no gradient, and where an earlier input is the same tensor.
  Tensors parameters;  ///< By parameter of the node; undefined where no op used it.
};

/// Errors of a node's forward and backward keep their types, and name the node and the shapes; see rethrow_with().

/// Runs a node without keeping a tape. With `records`, autograd records and the tape is dropped, because some kernels
/// depend on recording.
torch::Tensor forward_node(const NetworkNode& node, const Tensors& inputs, bool records);

/// Runs a node and keeps its tape. `trains[k]` is whether input k gets a gradient.
NodeOutput record_node(const NetworkNode& node, const Tensors& inputs, const std::vector<bool>& trains);

/// Runs a node's backward once. It takes ownership of its arguments and, as in plain training, frees each tensor as
/// soon as autograd is done with it, if the caller has kept no other reference.
///
/// `sums` are the gradients that later nodes gave this node's inputs and parameters, undefined where there are none.
/// The node's own gradients are added to them one by one, last use first, as autograd does when it runs the backward of
/// all nodes at once, so that the bits are the same. Hooks on parameters are for complete gradients and do not run
/// here.
NodeGradients backward_node(const NetworkNode& node, Tape tape, torch::Tensor gradient, NodeGradients sums);

/// Returns for each node its buffers that the forward of some node changes, one per storage. A node that runs again
/// must see their old values, and a step keeps copies of them.
std::vector<Tensors> replayed_buffers(const MeasuredNetwork& measured);

/// Returns whether each module of a node, submodules included, is in training mode.
std::vector<bool> training_modes(const NetworkNode& node);
/// Restores the training modes of an earlier moment during its lifetime.
class EarlierModes {
 public:
  EarlierModes(const NetworkNode& node, const std::vector<bool>& modes);  ///< Restores them where it throws, too.
  ~EarlierModes();
  EarlierModes(const EarlierModes&) = delete;
  EarlierModes& operator=(const EarlierModes&) = delete;

 private:
  explicit EarlierModes(const NetworkNode& node);

  const NetworkNode& node_;
  std::vector<bool> now_;
};

}  // namespace headroom::internal
