#include "headroom/runtime/network/join.h"

#include <algorithm>
#include <map>

#include "headroom/core/quote.h"
#include "headroom/runtime/network/kernels.h"
#include "headroom/runtime/state.h"

namespace headroom::internal {
namespace {

/// Returns by wire the last node that reads it; for outputs of the network, one past the last node.
std::vector<size_t> last_readers(const Network& network) {
  std::vector<size_t> last(network.input_names().size() + network.nodes().size(), 0);
  for (size_t n = 0; n < network.nodes().size(); ++n)
    for (const Wire wire : network.nodes()[n].inputs) last[index(wire)] = n;
  for (const Wire wire : network.outputs()) last[index(wire)] = network.nodes().size();
  return last;
}

/// Returns the nodes of a range whose outputs are read after it.
std::vector<size_t> handed_on(const Network& network, const std::vector<size_t>& last_reader, NodeRange range) {
  std::vector<size_t> nodes;
  for (size_t n = range.first; n <= range.last; ++n)
    if (last_reader[index(network.wire_of_node(n))] > range.last) nodes.push_back(n);
  return nodes;
}

std::string joined_name(const Network& network, NodeRange range) {
  const auto& nodes = network.nodes();
  return nodes[range.first].name + (range.last > range.first + 1 ? "+...+" : "+") + nodes[range.last].name;
}

/// Returns the ranges in order, extended so that each passes on one value, and merged where they have a node in common.
std::vector<NodeRange> completed(const Network& network, std::vector<NodeRange> ranges) {
  const std::vector<size_t> last_reader = last_readers(network);
  std::ranges::sort(ranges, {}, &NodeRange::first);
  std::vector<NodeRange> result;
  for (NodeRange range : ranges) {
    if (!result.empty() && range.first <= result.back().last) {
      range = {result.back().first, std::max(range.last, result.back().last)};
      result.pop_back();
    }
    while (range.last + 1 < network.nodes().size() && handed_on(network, last_reader, range).size() > 1) ++range.last;
    result.push_back(range);
  }
  return result;
}

/// Returns the nodes of a range as one node. `renamed` has the wire of the joined network for each wire before the
/// range.
NetworkNode joined_node(const Network& network, NodeRange range, const std::vector<Wire>& renamed) {
  Network inside(joined_name(network, range));
  NetworkNode node{inside.name(), {}, {}, {}, {}, {}};
  std::map<Wire, Wire> within;
  const Wire first_made = network.wire_of_node(range.first);
  for (size_t n = range.first; n <= range.last; ++n) {
    for (const Wire wire : network.nodes()[n].inputs) {
      if (wire >= first_made || within.contains(wire)) continue;
      within[wire] = inside.add_input(std::to_string(index(wire)));
      node.inputs.push_back(renamed[index(wire)]);
    }
  }
  for (size_t n = range.first; n <= range.last; ++n) {
    NetworkNode part = network.nodes()[n];
    for (Wire& wire : part.inputs) wire = within.at(wire);
    node.modules.insert(node.modules.end(), part.modules.begin(), part.modules.end());
    within[network.wire_of_node(n)] = inside.add_node(std::move(part));
  }
  for (size_t n = range.first; n <= range.last; ++n) {
    const NetworkNode& part = network.nodes()[n];
    node.reads.insert(node.reads.end(), part.reads.begin(), part.reads.end());
    for (const at::Generator& generator : part.generators)
      if (std::ranges::find(node.generators, generator) == node.generators.end()) node.generators.push_back(generator);
    if (!node.annotate_error) node.annotate_error = part.annotate_error;
  }
  node.parameters = inside.parameters();
  node.buffers = inside.buffers();
  inside.set_outputs({within.at(network.wire_of_node(handed_on(network, last_readers(network), range).at(0)))});
  node.forward = [inside](const Tensors& inputs) { return inside.forward(inputs)[0]; };
  return node;
}

}  // namespace

Network join(const Network& network, std::vector<NodeRange> ranges) {
  ranges = completed(network, std::move(ranges));
  if (ranges.empty()) return network;
  Network result(network.name());
  std::vector<Wire> renamed;
  for (const std::string& name : network.input_names()) renamed.push_back(result.add_input(name));
  auto range = ranges.begin();
  for (size_t n = 0; n < network.nodes().size(); ++n) {
    if (range != ranges.end() && n == range->first) {
      const Wire made = result.add_node(joined_node(network, *range, renamed));
      renamed.resize(index(network.wire_of_node(range->last)) + 1, made);
      n = range++->last;
    } else {
      NetworkNode node = network.nodes()[n];
      for (Wire& wire : node.inputs) wire = renamed[index(wire)];
      renamed.push_back(result.add_node(std::move(node)));
    }
  }
  std::vector<Wire> outputs;
  for (const Wire wire : network.outputs()) outputs.push_back(renamed[index(wire)]);
  result.set_outputs(std::move(outputs));
  return result;
}

Network join_to_chain(const Network& network) {
  const size_t inputs = network.input_names().size();
  const size_t nodes = network.nodes().size();
  const std::vector<size_t> last_reader = last_readers(network);
  // By node: how many values, of the first input and of node outputs, are read after it.
  std::vector<int> crossing(nodes + 1, 0);
  for (size_t wire = 0; wire < last_reader.size(); ++wire) {
    if (wire > 0 && wire < inputs) continue;
    const size_t made = wire == 0 ? 0 : wire - inputs;
    for (size_t n = made; n < last_reader[wire]; ++n) ++crossing[n];
  }
  std::vector<NodeRange> ranges;
  size_t first = 0;
  for (size_t n = 0; n < nodes; ++n) {
    if (crossing[n] != 1 && n + 1 < nodes) continue;
    if (n > first) ranges.push_back({first, n});
    first = n + 1;
  }
  return join(network, std::move(ranges));
}

Traits find_traits(const Network& network, const Tensors& inputs) {
  network.check_inputs(inputs);
  const KeptState state(network.buffers(), inputs[0].device());
  OperatorWatch watch(inputs);
  const std::vector<size_t> last_reader = last_readers(network);
  Traits traits;
  std::vector<NodeRange>& joins = traits.joins;
  Tensors values = inputs;
  for (size_t n = 0; n < network.nodes().size(); ++n) {
    const NetworkNode& node = network.nodes()[n];
    Tensors arguments;
    std::vector<int64_t> versions;
    for (const Wire wire : node.inputs) {
      arguments.push_back(values[index(wire)]);
      versions.push_back(version_of(arguments.back()));
    }
    watch.begin(arguments);
    const torch::Tensor output = forward_node(node, arguments, true);
    traits.effects.push_back(watch.end());
    if (!output.defined()) throw InvalidInput("node " + quote(node.name) + " returns no tensor");
    for (size_t k = 0; k < arguments.size(); ++k) {
      const bool changed = version_of(arguments[k]) != versions[k];
      const size_t wire = index(node.inputs[k]);
      if (wire >= inputs.size()) {
        if (changed || output.is_alias_of(arguments[k])) joins.push_back({wire - inputs.size(), n});
        continue;
      }
      if (changed)
        throw InvalidInput("node " + quote(node.name) + " changes the network's input " +
                           quote(network.input_names()[wire]) + " in place");
      if (output.is_alias_of(arguments[k]) && n + 1 < network.nodes().size()) joins.push_back({n, n + 1});
    }
    values.push_back(output);
    for (const Wire wire : node.inputs)
      if (index(wire) >= inputs.size() && last_reader[index(wire)] == n) values[index(wire)].reset();
  }
  return traits;
}

Network with_side_effects(const Network& network, const std::vector<SideEffects>& effects) {
  Tensors written;
  for (const SideEffects& effect : effects)
    for (const torch::Tensor& tensor : effect.written)
      if (!is_alias_in(written, tensor)) written.push_back(tensor);
  Network result(network.name());
  for (const std::string& name : network.input_names()) result.add_input(name);
  for (size_t n = 0; n < network.nodes().size(); ++n) {
    NetworkNode node = network.nodes()[n];
    node.generators = effects[n].generators;
    for (const torch::Tensor& tensor : effects[n].read) {
      if (is_alias_in(node.buffers, tensor)) continue;
      if (is_alias_in(written, tensor)) {
        node.buffers.push_back(tensor);
      } else if (!is_alias_in(node.parameters, tensor) && !tensor.is_inference()) {
        node.reads.push_back({tensor.storage().getWeakStorageImpl(), tensor.unsafeGetTensorImpl()->version_counter(),
                              type_and_shape(tensor)});
      }
    }
    result.add_node(std::move(node));
  }
  result.set_outputs(network.outputs());
  return result;
}

}  // namespace headroom::internal
