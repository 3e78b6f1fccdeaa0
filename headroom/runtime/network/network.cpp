#include "headroom/runtime/network/network.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <unordered_set>

#include "headroom/core/quote.h"

namespace headroom {
using namespace internal;
namespace {

/// Returns every tensor of the nodes' lists once, in order.
Tensors each_once(const std::vector<NetworkNode>& nodes, Tensors NetworkNode::*list) {
  Tensors all;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const NetworkNode& node : nodes)
    for (const torch::Tensor& tensor : node.*list)
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
  return all;
}

}  // namespace

Wire Network::add_input(std::string name) {
  if (!nodes_.empty()) throw InvalidInput("network " + quote(name_) + ": inputs come before nodes");
  input_names_.push_back(std::move(name));
  return static_cast<Wire>(input_names_.size() - 1);
}

Wire Network::add(std::string name, std::function<torch::Tensor(const Tensors&)> forward, std::vector<Wire> inputs,
                  Tensors parameters) {
  return add_node(NetworkNode{std::move(name), std::move(inputs), std::move(forward), std::move(parameters), {}, {}});
}

void Network::adopt(NetworkNode& node, std::shared_ptr<torch::nn::Module> module) {
  for (const torch::Tensor& parameter : module->parameters())
    if (parameter.requires_grad()) node.parameters.push_back(parameter);
  node.buffers = module->buffers();
  node.modules.push_back(std::move(module));
}

Wire Network::add_sequential(const std::string& prefix, const torch::nn::Sequential& modules, Wire input) {
  const auto children = modules->named_children();
  size_t place = 0;
  for (const torch::nn::AnyModule& module : *modules) {
    NetworkNode node{prefix + "." + children[place++].key(), {input}, {}, {}, {}, {}};
    adopt(node, module.ptr());
    node.forward = [run = module](const Tensors& tensors) mutable { return run.forward(tensors[0]); };
    input = add_node(std::move(node));
  }
  return input;
}

Wire Network::add_node(NetworkNode node) {
  const size_t wires = input_names_.size() + nodes_.size();
  for (const Wire wire : node.inputs)
    if (index(wire) >= wires)
      throw InvalidInput("node " + quote(node.name) + " reads wire " + std::to_string(index(wire)) +
                         ", and there are only " + std::to_string(wires) + " before it");
  const auto same_name = [&](const NetworkNode& other) { return other.name == node.name; };
  if (std::ranges::any_of(nodes_, same_name)) throw InvalidInput("two nodes are named " + quote(node.name));
  nodes_.push_back(std::move(node));
  return static_cast<Wire>(wires);
}

void Network::set_outputs(std::vector<Wire> outputs) {
  for (const Wire wire : outputs)
    if (index(wire) >= input_names_.size() + nodes_.size())
      throw InvalidInput("network " + quote(name_) + " has no wire " + std::to_string(index(wire)));
  outputs_ = std::move(outputs);
}

void Network::check_inputs(const Tensors& inputs) const {
  if (inputs.size() != input_names_.size())
    throw InvalidInput("network " + quote(name_) + " takes " + std::to_string(input_names_.size()) + " inputs, found " +
                       std::to_string(inputs.size()));
}

std::vector<bool> Network::trained_inputs(const NetworkNode& node, const Tensors& inputs) const {
  std::vector<bool> trained;
  for (const Wire wire : node.inputs)
    trained.push_back(index(wire) >= inputs.size() || (index(wire) == 0 && inputs[0].requires_grad()));
  return trained;
}

Tensors Network::parameters() const { return each_once(nodes_, &NetworkNode::parameters); }

Tensors Network::buffers() const { return each_once(nodes_, &NetworkNode::buffers); }

std::vector<at::Generator> Network::generators() const {
  std::vector<at::Generator> all;
  for (const NetworkNode& node : nodes_)
    for (const at::Generator& generator : node.generators)
      if (std::ranges::find(all, generator) == all.end()) all.push_back(generator);
  return all;
}

void Network::train(bool on) const {
  for (const NetworkNode& node : nodes_)
    for (const auto& module : node.modules) module->train(on);
}

void Network::to(torch::Device device) const {
  for (const NetworkNode& node : nodes_)
    for (const auto& module : node.modules) module->to(device);
}

Tensors Network::forward(const Tensors& inputs) const {
  check_inputs(inputs);
  std::vector<size_t> last_use(inputs.size() + nodes_.size(), 0);
  for (size_t n = 0; n < nodes_.size(); ++n)
    for (const Wire wire : nodes_[n].inputs) last_use[index(wire)] = n;
  for (const Wire wire : outputs_) last_use[index(wire)] = nodes_.size();
  Tensors values = inputs;
  values.resize(last_use.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Tensors arguments;
    for (const Wire wire : nodes_[n].inputs) arguments.push_back(values[index(wire)]);
    for (const Wire wire : nodes_[n].inputs)
      if (last_use[index(wire)] == n) values[index(wire)].reset();
    values[inputs.size() + n] = nodes_[n].forward(arguments);
  }
  Tensors results;
  for (const Wire wire : outputs_) results.push_back(values[index(wire)]);
  return results;
}

}  // namespace headroom
