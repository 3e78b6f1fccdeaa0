#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "headroom/runtime/network.h"

namespace headroom {

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

/// Errors of a node's forward and backward keep their types; which node failed, and on which shapes, is added to their
/// text where the type allows it (NetworkNode::annotate_error for those of other languages).

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

/// The state of random generators, which can be restored: of the CPU's default generator, of the device's where that is
/// another one, and of the user's own generators that are listed.
class RandomState {
 public:
  static RandomState now(torch::Device device, const std::vector<at::Generator>& generators = {});
  static RandomState of(const std::vector<at::Generator>& generators);
  void restore() const;
  bool operator==(const RandomState& other) const;

 private:
  struct Saved {
    at::Generator generator;
    at::Generator copy;
  };
  std::vector<Saved> saved_;
};

/// Returns a lock to hold while a node draws random numbers that are replayed. All threads share the default
/// generators, and a replay must not see the draws of another step.
std::unique_lock<std::recursive_mutex> lock_random();

/// Returns the number of changes in place that autograd has counted; 0 for inference tensors, which do not count them.
int64_t version_of(const torch::Tensor& tensor);
void set_version(const torch::Tensor& tensor, int64_t version);

/// Copies all bytes of a tensor's storage, to a new storage or to one of the same size. Autograd does not notice.
torch::Tensor copy_memory(const torch::Tensor& tensor);
void copy_memory_to(const torch::Tensor& to, const torch::Tensor& from);

/// Writes saved values to buffers without autograd noticing; does nothing where nothing was saved.
void restore_buffers(const Tensors& buffers, const Tensors& saved);
Tensors copy_buffers(const Tensors& buffers);

/// Restores the random numbers and buffers of an earlier moment during its lifetime. The storage of each buffer
/// exchanges its memory with the copy in `then` (copy_memory(); if empty, buffers stay as they are), so that views of
/// it see the earlier values too and nothing is copied. Meanwhile each buffer's version is the one of `versions`, so
/// that a tape recorded here later raises PyTorch's error exactly where the first tape would.
class EarlierState {
 public:
  EarlierState(torch::Device device, const std::optional<RandomState>& random, Tensors buffers, const Tensors& then,
               const std::vector<int64_t>& versions = {}, const std::vector<at::Generator>& generators = {});
  ~EarlierState();
  EarlierState(const EarlierState&) = delete;
  EarlierState& operator=(const EarlierState&) = delete;

 private:
  std::optional<RandomState> random_now_;
  Tensors buffers_;
  Tensors then_;
  std::vector<int64_t> versions_now_;
};

/// Returns whether each module of a node, submodules included, is in training mode.
std::vector<bool> training_modes(const NetworkNode& node);
/// Restores the training modes of an earlier moment during its lifetime.
class EarlierModes {
 public:
  EarlierModes(const NetworkNode& node, const std::vector<bool>& modes);
  ~EarlierModes();
  EarlierModes(const EarlierModes&) = delete;
  EarlierModes& operator=(const EarlierModes&) = delete;

 private:
  const NetworkNode& node_;
  std::vector<bool> now_;
};

/// Restores random generators and buffers at its end to their state at its construction, versions included.
class KeptState {
 public:
  KeptState(Tensors buffers, torch::Device device, const std::vector<at::Generator>& generators = {});
  ~KeptState() { restore(); }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  void restore() const;
  bool random_has_changed() const;
  bool buffers_have_changed() const;  ///< Whether a buffer has changed in value or in version.

 private:
  torch::Device device_;
  std::vector<at::Generator> generators_;
  RandomState random_;
  Tensors buffers_;
  Tensors saved_;
  std::vector<int64_t> versions_;
};

}  // namespace headroom
