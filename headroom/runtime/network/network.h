#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headroom/core/error.h"

namespace torch::nn {
class Module;
class Sequential;
}  // namespace torch::nn

namespace headroom {

using Tensors = std::vector<torch::Tensor>;

/// The number of a value in a network: one of its inputs, or the output of a node.
enum class Wire : int32_t {};
constexpr size_t index(Wire wire) { return static_cast<size_t>(wire); }

/// A tensor that a node captured, without keeping its memory alive, and the counter of its changes in place.
struct OutsideTensor {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::VariableVersion version;
  std::string type_and_shape;  ///< Type and shape as in PyTorch's messages: torch.FloatTensor [2, 2].
};

/// A node: what it reads, how it runs, and the parameters and buffers that it uses. Any callable can be a node. It may
/// record anything on autograd's tape, draw random numbers, and change its buffers.
struct NetworkNode {
  std::string name;
  std::vector<Wire> inputs;
  std::function<torch::Tensor(const Tensors&)> forward;
  Tensors parameters;  ///< The parameters that require a gradient.
  Tensors buffers;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;  ///< Modules that own them; none for a plain callable.

  /// Adds context to the exception that is being handled, if the exception's type belongs to another language. May
  /// throw another exception in its place. May be empty.
  std::function<void(const std::string& context)> annotate_error = {};

  // measure() fills in what forward uses besides the lists above. It adds captured tensors that forwards write to
  // `buffers`.
  std::vector<OutsideTensor> reads = {};       ///< Every tensor that it reads and that is not an input.
  std::vector<at::Generator> generators = {};  ///< The user's own generators from which it draws.
};

/// A network that C++ users pass to be trained within a budget: a DAG of modules and callables, the loss included.
/// Nodes are in an order in which they can run. It is a value type: copies share modules.
class Network {
 public:
  explicit Network(std::string name) : name_(std::move(name)) {}

  /// Adds an input of the network, such as the batch or the labels.
  Wire add_input(std::string name);

  /// Adds a callable without parameters, or with the given ones.
  Wire add(std::string name, std::function<torch::Tensor(const Tensors&)> forward, std::vector<Wire> inputs,
           Tensors parameters = {});

  /// Adds a module holder of torch::nn or of the user's own, whose forward takes as many tensors as there are inputs
  /// and returns one. The module is not changed.
  template <typename Holder>
  Wire add_module(std::string name, Holder holder, std::vector<Wire> inputs);

  /// Adds each module of a Sequential as a node of its own, named by `prefix` and its name in the Sequential. Each
  /// takes one tensor and returns one. Returns `input` for an empty Sequential.
  Wire add_sequential(const std::string& prefix, const torch::nn::Sequential& modules, Wire input);

  /// Adds a node unchanged.
  Wire add_node(NetworkNode node);

  /// Sets the outputs of the step: the loss first, by convention a scalar.
  void set_outputs(std::vector<Wire> outputs);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<NetworkNode>& nodes() const { return nodes_; }
  const std::vector<Wire>& outputs() const { return outputs_; }

  /// Returns the wire of a node's output. Wires 0, 1, … are the inputs, and the nodes' outputs follow in order.
  Wire wire_of_node(size_t node) const { return static_cast<Wire>(input_names_.size() + node); }

  /// Throws InvalidInput unless there are as many tensors as the network has inputs.
  void check_inputs(const Tensors& inputs) const;

  /// Returns for each input of a node whether it gets a gradient: node outputs do, the network's first input does if it
  /// requires one, and other inputs never do.
  std::vector<bool> trained_inputs(const NetworkNode& node, const Tensors& inputs) const;

  /// Returns every parameter once, in the order of the nodes.
  Tensors parameters() const;
  Tensors buffers() const;
  /// Returns the user's own generators that nodes draw from, as found by measure(), each once.
  std::vector<at::Generator> generators() const;
  void train(bool on = true) const;
  void to(torch::Device device) const;

  /// Runs the forward of plain training: every node once, in order. Frees values that no later node reads.
  Tensors forward(const Tensors& inputs) const;

 private:
  static void adopt(NetworkNode& node, std::shared_ptr<torch::nn::Module> module);

  std::string name_;
  std::vector<std::string> input_names_;
  std::vector<NetworkNode> nodes_;
  std::vector<Wire> outputs_;
};

namespace internal {

template <typename Holder, size_t... Index>
torch::Tensor call_module(Holder& holder, const Tensors& inputs, std::index_sequence<Index...> /*places*/) {
  return holder->forward(inputs[Index]...);
}

/// Returns the number of tensors that a module's forward takes.
template <typename Result, typename Module, typename... Arguments>
constexpr size_t arity(Result (Module::*)(Arguments...)) {
  return sizeof...(Arguments);
}

}  // namespace internal

template <typename Holder>
Wire Network::add_module(std::string name, Holder holder, std::vector<Wire> inputs) {
  constexpr size_t kArity = internal::arity(&Holder::ContainedType::forward);
  if (inputs.size() != kArity)
    throw InvalidInput("module '" + name + "' takes " + std::to_string(kArity) + " tensors, found " +
                       std::to_string(inputs.size()));
  NetworkNode node{std::move(name), std::move(inputs), {}, {}, {}, {}};
  adopt(node, holder.ptr());
  node.forward = [holder = std::move(holder)](const Tensors& tensors) mutable {
    return internal::call_module(holder, tensors, std::make_index_sequence<kArity>());
  };
  return add_node(std::move(node));
}

}  // namespace headroom
