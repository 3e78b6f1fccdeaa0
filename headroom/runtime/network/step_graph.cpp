#include "headroom/runtime/network/step_graph.h"

#include <algorithm>
#include <map>
#include <span>

#include "headroom/core/quote.h"
#include "headroom/runtime/network/kernels.h"

namespace headroom {
using namespace internal;
namespace {

constexpr ValueId kNone{-1};

class Builder {
 public:
  explicit Builder(const MeasuredNetwork& measured)
      : network_(measured.network), costs_(measured.costs), buffers_(replayed_buffers(measured)) {
    const Network& network = network_;
    const size_t inputs = network.input_names().size();
    const size_t nodes = network.nodes().size();
    if (network.outputs() != std::vector<Wire>{network.wire_of_node(nodes - 1)})
      throw InvalidInput("network " + quote(network.name()) + ": its one output must be its last node, the loss");
    readers_.resize(inputs + nodes);
    for (size_t n = 0; n < nodes; ++n)
      for (size_t k = 0; k < network.nodes()[n].inputs.size(); ++k)
        if (gets_gradient(n, k)) readers_[index(network.nodes()[n].inputs[k])].push_back(n);
    for (size_t n = 0; n + 1 < nodes; ++n)
      if (readers_[inputs + n].empty())
        throw InvalidInput("network " + quote(network.name()) + ": nothing reads node " +
                           quote(network.nodes()[n].name));
    if (readers_[0].empty()) throw InvalidInput("network " + quote(network.name()) + ": nothing reads its first input");
    gradient_of_wire_.assign(inputs + nodes, kNone);
  }

  StepGraph build() {
    const size_t nodes = network_.nodes().size();
    spec_.name = network_.name();
    add_value("w", costs_.resident_bytes, true);
    const ValueId input = add_value("a0", costs_.input_bytes, true);
    outputs_of_wire_.assign(network_.input_names().size() + nodes, kNone);
    outputs_of_wire_[0] = input;
    gradient_of_wire_.back() = add_value("g" + number(nodes), costs_.nodes.back().output_bytes, true);
    for (size_t n = 0; n < nodes; ++n) add_values(n);
    for (size_t n = 0; n < nodes; ++n) add_forward(n);
    for (size_t n = nodes; n-- > 0;) add_backward(n);
    keep_order();
    spec_.outputs.push_back(gradient_of_wire_[0]);
    for (const ValueId id : parameter_gradients_) spec_.outputs.push_back(id);
    return StepGraph{Graph(std::move(spec_)),  as_chain(),        std::move(ops_),
                     std::move(node_outputs_), std::move(tapes_), gradient_of_wire_.back(),
                     gradient_of_wire_[0]};
  }

 private:
  static std::string number(size_t i) { return std::to_string(i); }

  /// Returns whether input k of node n gets a gradient: it is the first input of the network or the output of a node,
  /// since other inputs are never trained. A wire that the node reads in several places gets its gradient at the first.
  bool gets_gradient(size_t n, size_t k) const {
    const std::vector<Wire>& inputs = network_.nodes()[n].inputs;
    const size_t wire = index(inputs[k]);
    const bool is_first =
        std::find(inputs.begin(), inputs.end(), inputs[k]) - inputs.begin() == static_cast<std::ptrdiff_t>(k);
    return is_first && (wire == 0 || wire >= network_.input_names().size());
  }

  ValueId add_value(std::string name, int64_t bytes, bool resident = false) {
    spec_.values.push_back(Value{std::move(name), bytes, resident, {}});
    return value_id(spec_.values.size() - 1);
  }

  /// Returns the values that the ops of node n read in the graph, without inputs that are part of w.
  std::vector<ValueId> read_by(size_t n) const {
    std::vector<ValueId> ids;
    for (const Wire wire : network_.nodes()[n].inputs) {
      const ValueId id = outputs_of_wire_[index(wire)];
      if (id != kNone && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }

  size_t place_of(size_t n, size_t wire) const {
    const std::vector<Wire>& inputs = network_.nodes()[n].inputs;
    return static_cast<size_t>(std::ranges::find(inputs, static_cast<Wire>(wire)) - inputs.begin());
  }

  size_t wire_of(size_t n) const { return network_.input_names().size() + n; }

  /// Adds the values of node n: a, t, the gradients of wires that node n reads first, and p. For a chain, this is the
  /// order of its graph.
  void add_values(size_t n) {
    const NodeCosts& costs = costs_.nodes[n];
    const ValueId output = add_value("a" + number(n + 1), costs.output_bytes);
    outputs_of_wire_[wire_of(n)] = output;
    node_outputs_.push_back(output);
    const ValueId tape = add_value("t" + number(n + 1), costs.tape_bytes - costs.output_bytes);
    spec_.values.back().holds = read_by(n);
    spec_.values.back().holds.push_back(output);
    tapes_.push_back(tape);
    for (size_t k = 0; k < network_.nodes()[n].inputs.size(); ++k) {
      const size_t wire = index(network_.nodes()[n].inputs[k]);
      if (!gets_gradient(n, k) || gradient_of_wire_[wire] != kNone) continue;
      const std::string name = "g" + number(wire == 0 ? 0 : wire + 1 - network_.input_names().size());
      gradient_of_wire_[wire] = add_value(name, costs.input_gradients[k].bytes);
    }
    parameter_gradients_.push_back(add_value("p" + number(n + 1), costs.parameter_gradient_bytes));
  }

  void add_forward(size_t n) {
    const NodeCosts& costs = costs_.nodes[n];
    Op forward{.name = "F" + number(n + 1), .inputs = read_by(n), .outputs = {node_outputs_[n]}, .overwrites = {}};
    forward.time_ns = costs.forward_ns;
    forward.workspace_bytes = costs.forward_workspace_bytes;
    Op record = forward;
    record.name = "R" + number(n + 1);
    record.workspace_bytes = costs.record_workspace_bytes;
    record.outputs.push_back(tapes_[n]);
    add_op(std::move(forward), StepOp{StepOpKind::kForward, n, kNone, {}, {}});
    add_op(std::move(record), StepOp{StepOpKind::kRecord, n, kNone, {}, {}});
  }

  void add_backward(size_t n) {
    const NodeCosts& costs = costs_.nodes[n];
    StepOp how{StepOpKind::kBackward, n, gradient_of_wire_[wire_of(n)], {}, {}};
    Op op{
        .name = "B" + number(n + 1), .phase = Phase::kBackward, .inputs = read_by(n), .outputs = {}, .overwrites = {}};
    op.inputs.insert(op.inputs.end(), {node_outputs_[n], tapes_[n], how.output_gradient});
    for (size_t k = 0; k < network_.nodes()[n].inputs.size(); ++k) {
      const size_t wire = index(network_.nodes()[n].inputs[k]);
      how.sums.push_back(kNone);
      how.gradients.push_back(kNone);
      if (!gets_gradient(n, k)) continue;
      const auto reader = std::ranges::find(readers_[wire], n);
      how.gradients[k] = gradient_made_by(n, wire);
      if (reader + 1 != readers_[wire].end()) {
        how.sums[k] = gradient_made_by(*(reader + 1), wire);
        op.inputs.push_back(how.sums[k]);
      }
      if (const std::optional<int> with = costs.input_gradients[k].shared_with) {
        spec_.values[index(how.gradients[k])].holds = {
            *with == GradientMemory::kOutputGradient ? how.output_gradient : how.gradients[static_cast<size_t>(*with)]};
      }
      op.outputs.push_back(how.gradients[k]);
    }
    op.outputs.push_back(parameter_gradients_[n]);
    op.time_ns = costs.backward_ns;
    op.workspace_bytes = costs.backward_workspace_bytes;
    op.recompute = false;
    add_op(std::move(op), std::move(how));
  }

  /// Returns the gradient of a wire after reader n has added its own. It is complete if n is the first of the readers.
  ValueId gradient_made_by(size_t n, size_t wire) {
    if (n == readers_[wire].front()) return gradient_of_wire_[wire];
    const auto known = sums_.find({wire, n});
    if (known != sums_.end()) return known->second;
    const std::string name = spec_.values[index(gradient_of_wire_[wire])].name + "." + number(n + 1);
    return sums_[{wire, n}] = add_value(name, costs_.nodes[n].input_gradients[place_of(n, wire)].bytes);
  }

  /// Makes ops run in base order that share more than the values that they read: random numbers, buffers that some node
  /// changes, and sums of parameter gradients.
  void keep_order() {
    const size_t nodes = network_.nodes().size();
    done_.assign(spec_.ops.size(), kNone);
    std::vector<size_t> draws;
    std::vector<size_t> late_draws;
    for (size_t n = 0; n < nodes; ++n)
      if (costs_.nodes[n].draws) draws.push_back(n);
    for (size_t n = nodes; n-- > 0;)
      if (costs_.nodes[n].backward_draws) late_draws.push_back(n);
    keep_order_of(draws, Phase::kForward);
    keep_order_of(late_draws, Phase::kBackward);
    for (const std::vector<size_t>& users : users_of(buffers_)) keep_order_of(users, Phase::kForward);
    std::vector<Tensors> parameters;
    for (const NetworkNode& node : network_.nodes()) parameters.push_back(node.parameters);
    for (std::vector<size_t>& users : users_of(parameters)) {
      std::ranges::reverse(users);
      keep_order_of(users, Phase::kBackward);
    }
  }

  /// Returns for each tensor that several nodes have these nodes, ascending.
  static std::vector<std::vector<size_t>> users_of(const std::vector<Tensors>& by_node) {
    std::map<const c10::StorageImpl*, std::vector<size_t>> users;
    for (size_t n = 0; n < by_node.size(); ++n)
      for (const torch::Tensor& tensor : by_node[n]) {
        std::vector<size_t>& known = users[tensor.storage().unsafeGetStorageImpl()];
        if (known.empty() || known.back() != n) known.push_back(n);
      }
    std::vector<std::vector<size_t>> result;
    for (auto& [storage, nodes] : users)
      if (nodes.size() > 1) result.push_back(std::move(nodes));
    std::ranges::sort(result);
    return result;
  }

  /// Makes the ops of these nodes in one phase run in this order. Where one does not depend on the one before it anyway,
  /// it reads a value of 0 bytes from it.
  void keep_order_of(std::span<const size_t> nodes, Phase phase) {
    for (size_t i = 1; i < nodes.size(); ++i) {
      const std::vector<size_t> before = ops_of(nodes[i - 1], phase);
      const std::vector<size_t> after = ops_of(nodes[i], phase);
      if (depends(after[0], before[0])) continue;
      ValueId& done = done_[before[0]];
      if (done == kNone) {
        done = add_value(spec_.ops[before[0]].name + " done", 0);
        for (const size_t op : before) spec_.ops[op].outputs.push_back(done);
      }
      for (const size_t op : after) spec_.ops[op].inputs.push_back(done);
    }
  }

  std::vector<size_t> ops_of(size_t n, Phase phase) const {
    const size_t nodes = network_.nodes().size();
    if (phase == Phase::kBackward) return {3 * nodes - 1 - n};
    return {2 * n, 2 * n + 1};
  }

  /// Returns whether an op depends on an earlier one, or on another producer of what that one writes.
  bool depends(size_t op, size_t on) const {
    std::vector<std::vector<size_t>> producers(spec_.values.size());
    for (size_t i = on; i < op; ++i)
      for (const ValueId id : spec_.ops[i].outputs) producers[index(id)].push_back(i);
    std::vector<bool> seen(spec_.ops.size());
    std::vector<size_t> stack = {op};
    while (!stack.empty()) {
      const size_t next = stack.back();
      stack.pop_back();
      if (next == on) return true;
      for (const ValueId id : spec_.ops[next].inputs)
        for (const size_t source : producers[index(id)])
          if (!seen[source]) {
            seen[source] = true;
            stack.push_back(source);
          }
    }
    return false;
  }

  /// Returns the chain, if the network is one: each node reads the output of the node before it and no other value that
  /// has a gradient, and gives that output a gradient of the same size in memory of its own.
  std::optional<Chain> as_chain() const {
    Chain chain{network_.name(), costs_.resident_bytes, costs_.input_bytes, 0, {}};
    for (size_t n = 0; n < network_.nodes().size(); ++n) {
      const size_t before = n == 0 ? 0 : wire_of(n - 1);
      if (read_by(n) != std::vector<ValueId>{outputs_of_wire_[before]}) return {};
      const NodeCosts& costs = costs_.nodes[n];
      const GradientMemory& gradient = costs.input_gradients[place_of(n, before)];
      if (n == 0) chain.input_gradient_bytes = gradient.bytes;
      if (gradient.shared_with || gradient.bytes != chain.gradient_bytes(static_cast<int>(n))) return {};
      chain.stages.push_back({.name = network_.nodes()[n].name,
                              .forward_ns = costs.forward_ns,
                              .backward_ns = costs.backward_ns,
                              .output_bytes = costs.output_bytes,
                              .tape_bytes = costs.tape_bytes,
                              .forward_workspace_bytes = costs.forward_workspace_bytes,
                              .backward_workspace_bytes = costs.backward_workspace_bytes,
                              .gradient_bytes = costs.parameter_gradient_bytes});
      if (costs.record_workspace_bytes != costs.forward_workspace_bytes)
        chain.stages.back().record_workspace_bytes = costs.record_workspace_bytes;
    }
    return chain;
  }

  void add_op(Op op, StepOp how) {
    spec_.ops.push_back(std::move(op));
    ops_.push_back(std::move(how));
  }

  const Network& network_;
  const NetworkCosts& costs_;
  GraphSpec spec_;
  std::vector<StepOp> ops_;
  std::vector<std::vector<size_t>> readers_;  ///< By wire: ascending nodes that give it a gradient.
  std::vector<ValueId> outputs_of_wire_;      ///< By wire: its value; none for inputs that are part of w.
  std::vector<ValueId> gradient_of_wire_;
  /// By wire and reader: the sum of gradients that is not complete yet.
  std::map<std::pair<size_t, size_t>, ValueId> sums_;
  std::vector<ValueId> node_outputs_;
  std::vector<ValueId> tapes_;
  std::vector<ValueId> parameter_gradients_;
  std::vector<Tensors> buffers_;  ///< By node: its buffers that some node changes.
  std::vector<ValueId> done_;     ///< By op: the value that says that it, or another run of its node, has run.
};

}  // namespace

StepGraph make_step_graph(const MeasuredNetwork& measured) {
  if (measured.network.nodes().empty() || measured.network.input_names().empty())
    throw InvalidInput("network " + quote(measured.network.name()) + ": needs an input and a node");
  return Builder(measured).build();
}

std::vector<bool> find_taking_over(const StepGraph& step, const Schedule& schedule) {
  const std::vector<Step>& steps = schedule.steps;
  std::vector<bool> result(steps.size(), false);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].is_run()) continue;
    const StepOp& how = step.ops[index(steps[i].op())];
    if (how.kind != StepOpKind::kBackward) continue;
    bool output = false;
    bool gradient = how.output_gradient == step.loss_gradient;
    for (size_t j = i + 1; j < steps.size() && !steps[j].is_run(); ++j) {
      output |= steps[j].value() == step.node_outputs[how.node];
      gradient |= steps[j].value() == how.output_gradient;
    }
    result[i] = output && gradient;
  }
  return result;
}

StepGraph step_for(const StepGraph& step, const NetworkCosts& costs, const Schedule& schedule) {
  const std::vector<bool> taking_over = find_taking_over(step, schedule);
  StepGraph result = step;
  GraphSpec spec = step.graph.spec();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (!schedule.steps[i].is_run() || taking_over[i]) continue;
    const size_t op = index(schedule.steps[i].op());
    const size_t node = step.ops[op].node;
    if (step.ops[op].kind != StepOpKind::kBackward) continue;
    spec.ops[op].workspace_bytes = costs.nodes[node].held_backward_workspace_bytes;
    if (result.chain) result.chain->stages[node].backward_workspace_bytes = spec.ops[op].workspace_bytes;
  }
  result.graph = Graph(std::move(spec));
  return result;
}

Problem make_problem(const StepGraph& step) { return Problem(step.graph, step.chain); }

}  // namespace headroom
