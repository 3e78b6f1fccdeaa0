#include "headroom/runtime/step_graph.h"

#include <algorithm>
#include <map>

#include "headroom/core/quote.h"

namespace headroom {
namespace {

constexpr ValueId kNone{-1};

class Builder {
 public:
  Builder(const Network& network, const NetworkCosts& costs) : network_(network), costs_(costs) {
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
    spec_.outputs.push_back(gradient_of_wire_[0]);
    for (const ValueId id : parameter_gradients_) spec_.outputs.push_back(id);
    return StepGraph{Graph(std::move(spec_)), std::move(ops_),          std::move(node_outputs_),
                     std::move(tapes_),       gradient_of_wire_.back(), gradient_of_wire_[0]};
  }

 private:
  static std::string number(size_t i) { return std::to_string(i); }

  /// Whether input k of node n is the first input of the network or what another node made: others are never trained. A
  /// wire that the node reads in several places gets its gradient at the first.
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

  /// The values of node n that planning knows as inputs of ops: what it reads, without inputs that are part of w.
  std::vector<ValueId> read_by(size_t n) const {
    std::vector<ValueId> ids;
    for (const Wire wire : network_.nodes()[n].inputs) {
      const ValueId id = outputs_of_wire_[index(wire)];
      if (id != kNone && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }

  /// The one reader's, or a sum of several, each as large.
  int64_t gradient_bytes(size_t wire) const {
    int64_t bytes = 0;
    for (const size_t n : readers_[wire])
      for (size_t k = 0; k < network_.nodes()[n].inputs.size(); ++k)
        if (index(network_.nodes()[n].inputs[k]) == wire)
          bytes = std::max(bytes, costs_.nodes[n].input_gradient_bytes[k]);
    if (readers_[wire].size() == 1 || wire < network_.input_names().size()) return bytes;
    return costs_.nodes[wire - network_.input_names().size()].output_bytes;
  }

  size_t wire_of(size_t n) const { return network_.input_names().size() + n; }

  /// a, t, the gradients of wires that node n reads first, p: for a chain the order of its graph.
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
      gradient_of_wire_[wire] = add_value(name, gradient_bytes(wire));
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
    add_op(std::move(forward), StepOp{StepOpKind::kForward, n, {}, kNone});
    add_op(std::move(record), StepOp{StepOpKind::kRecord, n, {}, kNone});
  }

  void add_backward(size_t n) {
    const NodeCosts& costs = costs_.nodes[n];
    const size_t wire = wire_of(n);
    if (readers_[wire].size() > 1) add_sum(wire);
    StepOp how{StepOpKind::kBackward, n, {}, gradient_of_wire_[wire]};
    Op op{
        .name = "B" + number(n + 1), .phase = Phase::kBackward, .inputs = read_by(n), .outputs = {}, .overwrites = {}};
    op.inputs.insert(op.inputs.end(), {node_outputs_[n], tapes_[n], how.output_gradient});
    for (size_t k = 0; k < network_.nodes()[n].inputs.size(); ++k) {
      const size_t input = index(network_.nodes()[n].inputs[k]);
      ValueId gradient = kNone;
      if (gets_gradient(n, k)) {
        gradient = readers_[input].size() == 1
                       ? gradient_of_wire_[input]
                       : add_value("d" + number(n + 1) + "." + number(k), costs.input_gradient_bytes[k]);
        if (readers_[input].size() > 1) parts_of_wire_[input].push_back(gradient);
        if (costs.passes_gradient_on[k]) spec_.values[index(gradient)].holds = {how.output_gradient};
        op.outputs.push_back(gradient);
      }
      how.gradients.push_back(gradient);
    }
    op.outputs.push_back(parameter_gradients_[n]);
    op.time_ns = costs.backward_ns;
    op.workspace_bytes = costs.backward_workspace_bytes;
    op.recompute = false;
    add_op(std::move(op), std::move(how));
    if (n == 0 && readers_[0].size() > 1) add_sum(0);
  }

  /// The parts were appended as the readers' backwards were added: in the order in which autograd would add them.
  void add_sum(size_t wire) {
    Op op{.name = "S" + number(wire),
          .phase = Phase::kBackward,
          .inputs = parts_of_wire_[wire],
          .outputs = {},
          .overwrites = {}};
    op.outputs = {gradient_of_wire_[wire]};
    op.recompute = false;
    add_op(std::move(op), StepOp{StepOpKind::kSum, wire, parts_of_wire_[wire], gradient_of_wire_[wire]});
  }

  void add_op(Op op, StepOp how) {
    spec_.ops.push_back(std::move(op));
    ops_.push_back(std::move(how));
  }

  const Network& network_;
  const NetworkCosts& costs_;
  GraphSpec spec_;
  std::vector<StepOp> ops_;
  std::vector<std::vector<size_t>> readers_;  ///< by wire: nodes that give it a gradient, ascending
  std::vector<ValueId> outputs_of_wire_;      ///< by wire: its value; none for inputs that are part of w
  std::vector<ValueId> gradient_of_wire_;
  std::map<size_t, std::vector<ValueId>> parts_of_wire_;
  std::vector<ValueId> node_outputs_;
  std::vector<ValueId> tapes_;
  std::vector<ValueId> parameter_gradients_;
};

}  // namespace

StepGraph make_step_graph(const Network& network, const NetworkCosts& costs) {
  if (network.nodes().empty() || network.input_names().empty())
    throw InvalidInput("network " + quote(network.name()) + ": needs an input and a node");
  return Builder(network, costs).build();
}

Problem make_problem(const StepGraph& step) {
  GraphSpec as_chain = step.graph.spec();
  for (size_t i = 0; i + 1 < as_chain.ops.size(); ++i)
    if (step.ops[i].kind == StepOpKind::kForward) as_chain.ops[i].workspace_bytes = as_chain.ops[i + 1].workspace_bytes;
  Problem problem{step.graph, std::nullopt};
  if (std::optional<ChainMatch> match = find_chain(Graph(std::move(as_chain)))) {
    for (size_t v = 0; v < problem.graph.values().size(); ++v)
      HEADROOM_ASSERT(match->graph.values()[v].name == problem.graph.values()[v].name);
    problem.chain = std::move(match->chain);
  }
  return problem;
}

}  // namespace headroom
