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

/// Names a value of a network: one of its inputs, or what a node computes.
enum class Wire : int32_t {};
constexpr size_t index(Wire wire) { return static_cast<size_t>(wire); }

/// A tensor that a node captured, without keeping its memory alive, and the counter of its changes in place.
struct OutsideTensor {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::VariableVersion version;
  std::string type_and_shape;  ///< as PyTorch's messages have it: torch.FloatTensor [2, 2]
};

/// One node: what it reads, how it runs, and the parameters and buffers that it uses. Any callable will do; it may
/// record whatever it likes on autograd's tape, draw random numbers, and change its buffers.
struct NetworkNode {
  std::string name;
  std::vector<Wire> inputs;
  std::function<torch::Tensor(const Tensors&)> forward;
  Tensors parameters;  ///< those that require a gradient
  Tensors buffers;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;  ///< what owns them; none for a plain callable

  /// Adds context to the exception that is being handled, where the exception's type is of another language; may be
  /// empty.
  std::function<void(const std::string& context)> annotate_error = {};

  // What measure() finds forward to use beside the lists above. Captured tensors that forwards write are added to
  // `buffers`.
  std::vector<OutsideTensor> reads = {};       ///< every tensor that is not an input
  std::vector<at::Generator> generators = {};  ///< the user's own, which it draws from
};

/// What C++ users hand over to be trained inside a budget: a DAG of modules and callables, the loss included. Nodes are
/// in an order in which they can run. A plain value: copies share modules.
class Network {
 public:
  explicit Network(std::string name) : name_(std::move(name)) {}

  /// An input of the network: the batch, the labels.
  Wire add_input(std::string name);

  /// A callable without parameters, or with those given.
  Wire add(std::string name, std::function<torch::Tensor(const Tensors&)> forward, std::vector<Wire> inputs,
           Tensors parameters = {});

  /// A module holder of torch::nn or of the user's own, whose forward takes as many tensors as there are inputs and
  /// returns one. The module is not changed.
  template <typename Holder>
  Wire add_module(std::string name, Holder holder, std::vector<Wire> inputs);

  /// Each module of a Sequential as a node of its own, named by `prefix` and its name there; they take one tensor and
  /// return one. An empty one gives `input` back.
  Wire add_sequential(const std::string& prefix, const torch::nn::Sequential& modules, Wire input);

  /// A node as it is.
  Wire add_node(NetworkNode node);

  /// What the step computes: the loss first, by convention a scalar.
  void set_outputs(std::vector<Wire> outputs);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<NetworkNode>& nodes() const { return nodes_; }
  const std::vector<Wire>& outputs() const { return outputs_; }

  /// Wires 0, 1, … are the inputs, the nodes' outputs follow in order.
  Wire wire_of_node(size_t node) const { return static_cast<Wire>(input_names_.size() + node); }

  /// Throws InvalidInput unless there are as many tensors as the network has inputs.
  void check_inputs(const Tensors& inputs) const;

  /// By input of a node, whether it gets a gradient: what nodes made does, the network's first input if it asks for
  /// one, other inputs never.
  std::vector<bool> trained_inputs(const NetworkNode& node, const Tensors& inputs) const;

  /// Every parameter once, in the order of the nodes.
  Tensors parameters() const;
  Tensors buffers() const;
  /// The user's own generators that nodes draw from, as measure() found them; each once.
  std::vector<at::Generator> generators() const;
  void train(bool on = true) const;
  void to(torch::Device device) const;

  /// Plain training's forward: every node once, in order. What nobody reads any more is let go of.
  Tensors forward(const Tensors& inputs) const;

 private:
  static void adopt(NetworkNode& node, std::shared_ptr<torch::nn::Module> module);

  std::string name_;
  std::vector<std::string> input_names_;
  std::vector<NetworkNode> nodes_;
  std::vector<Wire> outputs_;
};

namespace detail {

template <typename Holder, size_t... Index>
torch::Tensor call_module(Holder& holder, const Tensors& inputs, std::index_sequence<Index...> /*places*/) {
  return holder->forward(inputs[Index]...);
}

/// The number of tensors that a module's forward takes.
template <typename Result, typename Module, typename... Arguments>
constexpr size_t arity(Result (Module::*)(Arguments...)) {
  return sizeof...(Arguments);
}

}  // namespace detail

template <typename Holder>
Wire Network::add_module(std::string name, Holder holder, std::vector<Wire> inputs) {
  constexpr size_t kArity = detail::arity(&Holder::ContainedType::forward);
  if (inputs.size() != kArity)
    throw InvalidInput("module '" + name + "' takes " + std::to_string(kArity) + " tensors, found " +
                       std::to_string(inputs.size()));
  NetworkNode node{std::move(name), std::move(inputs), {}, {}, {}, {}};
  adopt(node, holder.ptr());
  node.forward = [holder = std::move(holder)](const Tensors& tensors) mutable {
    return detail::call_module(holder, tensors, std::make_index_sequence<kArity>());
  };
  return add_node(std::move(node));
}

}  // namespace headroom
