#pragma once

#include <vector>

#include "headroom/runtime/network.h"

namespace headroom {

/// What a recorded forward leaves for backward: autograd's graph from `leaves`, which share the memory of the node's
/// inputs, to `output`.
struct Tape {
  Tensors leaves;
  torch::Tensor output;
};

struct NodeOutput {
  torch::Tensor output;  ///< has no history; shares the memory of the tape's
  Tape tape;             ///< empty unless recorded
};

struct NodeGradients {
  Tensors inputs;      ///< by input; undefined where it gets none, and where an earlier input is the same tensor
  Tensors parameters;  ///< by parameter of the node; undefined where it is not used
};

/// Runs a node without recording. `records` makes autograd record all the same, and forget: some kernels choose by it.
torch::Tensor forward_node(const NetworkNode& node, const Tensors& inputs, bool records);

/// Runs a node and keeps its tape. `trains[k]` says whether input k gets a gradient.
NodeOutput record_node(const NetworkNode& node, const Tensors& inputs, const std::vector<bool>& trains);

/// Runs a node's backward once; what the tape saved is freed on the way.
NodeGradients backward_node(const NetworkNode& node, const Tape& tape, const torch::Tensor& gradient);

/// The random numbers to come, and how to go back to them. Of the device's default generator; generators of the
/// user's own are not known here.
class RandomState {
 public:
  static RandomState now(torch::Device device);
  void restore() const;
  bool operator==(const RandomState& other) const;

 private:
  explicit RandomState(torch::Device device, at::Generator generator)
      : device_(device), generator_(std::move(generator)) {}
  torch::Device device_;
  at::Generator generator_;  ///< a copy
};

/// Makes buffers hold these values, without autograd noticing; nothing where nothing was saved.
void restore_buffers(const Tensors& buffers, const Tensors& saved);
Tensors copy_buffers(const Tensors& buffers);

}  // namespace headroom
