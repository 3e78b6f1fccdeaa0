#pragma once

#include <mutex>
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

/// Errors of a node's forward and backward keep their types; which node failed, and on which shapes, is added to their
/// text where the type allows it (NetworkNode::annotate_error for those of other languages).

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

/// The state of random generators, and how to go back to it: of the CPU's default generator, of the device's where that
/// is another one, and of generators of the user's own that are named.
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

/// Held while a node draws random numbers that are replayed: default generators are shared by all threads, and a replay
/// must not see the draws of another step.
std::unique_lock<std::recursive_mutex> lock_random();

/// The number of changes in place that autograd knows of; 0 for inference tensors, which do not count them.
int64_t version_of(const torch::Tensor& tensor);
void set_version(const torch::Tensor& tensor, int64_t version);

/// Copies all bytes of a tensor's storage, to a new one or to one of the same size. Autograd does not notice.
torch::Tensor copy_memory(const torch::Tensor& tensor);
void copy_memory_to(const torch::Tensor& to, const torch::Tensor& from);

/// Makes buffers hold these values, without autograd noticing; nothing where nothing was saved.
void restore_buffers(const Tensors& buffers, const Tensors& saved);
Tensors copy_buffers(const Tensors& buffers);

/// While it lives, random numbers and buffers are those of an earlier moment. The storage of each buffer exchanges its
/// memory with the copy in `then` (copy_memory(); empty: buffers stay as they are), so that views of it see the earlier
/// values too and nothing is copied. Each buffer's version is the one of `versions` meanwhile: a tape that is recorded
/// here raises PyTorch's error afterwards exactly where the first one would.
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

/// Whether each module of a node, submodules included, is in training mode; and modes of an earlier moment while it lives.
std::vector<bool> training_modes(const NetworkNode& node);
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

/// Random generators and buffers as they are at its construction, restored at its end, versions included.
class KeptState {
 public:
  KeptState(Tensors buffers, torch::Device device, const std::vector<at::Generator>& generators = {});
  ~KeptState() { restore(); }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  void restore() const;
  bool random_has_changed() const;
  bool buffers_have_changed() const;  ///< in value or in version

 private:
  torch::Device device_;
  std::vector<at::Generator> generators_;
  RandomState random_;
  Tensors buffers_;
  Tensors saved_;
  std::vector<int64_t> versions_;
};

}  // namespace headroom
