#pragma once

#include <optional>
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
  Tensors parameters;  ///< by parameter of the node; undefined where nothing used it
};

/// Runs a node without recording. `records` makes autograd record all the same, and forget: some kernels choose by it.
torch::Tensor forward_node(const NetworkNode& node, const Tensors& inputs, bool records);

/// Runs a node and keeps its tape. `trains[k]` says whether input k gets a gradient.
NodeOutput record_node(const NetworkNode& node, const Tensors& inputs, const std::vector<bool>& trains);

/// Runs a node's backward once. It takes over what it is given, and each tensor is freed as soon as autograd is done
/// with it, as in plain training, if the caller has kept no other reference.
///
/// `sums` are the gradients that nodes after this one gave its inputs and parameters, undefined where there are none.
/// The node's own are added to them one by one, last use first: what autograd does when it goes through all nodes at
/// once, so that the bits are the same. Hooks on parameters are for whole gradients and do not run here.
NodeGradients backward_node(const NetworkNode& node, Tape tape, torch::Tensor gradient, NodeGradients sums);

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

/// While it lives, the random numbers to come and the buffers are those of an earlier moment. `buffers` get the memory of
/// `then` (empty: they stay as they are) and their own back afterwards: nothing is copied, and autograd notices nothing.
class EarlierState {
 public:
  EarlierState(torch::Device device, const std::optional<RandomState>& random, Tensors buffers, const Tensors& then);
  ~EarlierState();
  EarlierState(const EarlierState&) = delete;
  EarlierState& operator=(const EarlierState&) = delete;

 private:
  std::optional<RandomState> random_now_;
  Tensors buffers_;
  Tensors now_;
};

/// Random numbers to come and buffers as they are at its construction, put back at its end.
class KeptState {
 public:
  KeptState(Tensors buffers, torch::Device device);
  ~KeptState() { restore(); }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  void restore() const;
  bool random_has_changed() const;
  bool buffers_have_changed() const;

 private:
  torch::Device device_;
  RandomState random_;
  Tensors buffers_;
  Tensors saved_;
};

}  // namespace headroom
