#include "headroom/core/chain.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"

namespace headroom {
using namespace internal;
namespace {

/// A sum that notes whether it, or its negative, has left int64.
struct CheckedSum {
  int64_t sum = 0;
  bool overflowed = false;
  void add(int64_t amount, int times = 1) {
    for (; times > 0; --times) overflowed = __builtin_add_overflow(sum, amount, &sum) || overflowed;
    overflowed = overflowed || sum == std::numeric_limits<int64_t>::min();
  }
};

std::optional<std::string> lint(const Stage& stage, const std::string& where) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"forward_ns", stage.forward_ns}, {"backward_ns", stage.backward_ns},       {"output_bytes", stage.output_bytes},
      {"tape_bytes", stage.tape_bytes}, {"gradient_bytes", stage.gradient_bytes},
  };
  for (const auto& [key, amount] : sizes)
    if (amount < 0) return where + ": " + key + " must not be negative, found " + std::to_string(amount);
  if (stage.tape_bytes < stage.output_bytes)
    return where + ": tape_bytes includes the output and must be at least output_bytes (" +
           std::to_string(stage.output_bytes) + "), found " + std::to_string(stage.tape_bytes);
  return {};
}

}  // namespace

std::optional<std::string> lint(const Chain& chain) {
  if (chain.stages.empty()) return "a chain has at least one stage, found none";
  constexpr size_t kMostStages = std::numeric_limits<int32_t>::max() / 8;
  if (chain.stages.size() > kMostStages) return "a chain has at most " + std::to_string(kMostStages) + " stages";
  const std::pair<const char*, int64_t> sizes[] = {
      {"resident_bytes", chain.resident_bytes},
      {"input_bytes", chain.input_bytes},
      {"input_gradient_bytes", chain.input_gradient_bytes},
  };
  CheckedSum most_bytes;
  CheckedSum least_bytes;
  CheckedSum time_ns;
  for (const auto& [key, amount] : sizes) {
    if (amount < 0) return std::string(key) + " must not be negative, found " + std::to_string(amount);
    most_bytes.add(amount);
  }
  for (int i = 1; i <= chain.length(); ++i) {
    const Stage& stage = chain.stage(i);
    const std::string where = "stage " + std::to_string(i) + " " + quote(stage.name);
    if (std::optional<std::string> problem = lint(stage, where)) return problem;
    most_bytes.add(stage.output_bytes);  // These are the bytes of its gradient; the tape includes the output.
    most_bytes.add(stage.tape_bytes);
    most_bytes.add(stage.gradient_bytes);
    for (const int64_t workspace_bytes :
         {stage.forward_workspace_bytes, stage.effective_record_workspace_bytes(), stage.backward_workspace_bytes})
      (workspace_bytes > 0 ? most_bytes : least_bytes).add(workspace_bytes);
    time_ns.add(stage.forward_ns, 2);
    time_ns.add(stage.backward_ns);
  }
  if (most_bytes.overflowed || least_bytes.overflowed) return "the bytes of the chain's graph do not fit 64 bits";
  if (time_ns.overflowed) return "the times of the chain's graph do not fit 64 bits";
  return {};
}

Graph to_graph(const Chain& chain) {
  if (const std::optional<std::string> problem = lint(chain)) throw InvalidInput(*problem);
  const int length = chain.length();
  const ChainIds ids(length);
  GraphSpec spec;
  spec.name = chain.name;
  spec.values.resize(3 + 4 * static_cast<size_t>(length));
  const auto add_value = [&](ValueId id, std::string name, int64_t bytes, std::vector<ValueId> holds = {}) {
    spec.values[index(id)] = Value{std::move(name), bytes, false, std::move(holds)};
  };
  const auto numbered = [](const char* letter, int i) { return letter + std::to_string(i); };
  add_value(ids.weights(), "w", chain.resident_bytes);
  add_value(ids.output(0), "a0", chain.input_bytes);
  for (int i = 1; i <= length; ++i) {
    const Stage& stage = chain.stage(i);
    add_value(ids.output(i), numbered("a", i), stage.output_bytes);
    add_value(ids.tape(i), numbered("t", i), stage.tape_bytes - stage.output_bytes, {ids.output(i - 1), ids.output(i)});
    add_value(ids.parameter_gradient(i), numbered("p", i), stage.gradient_bytes);
  }
  for (int i = 0; i <= length; ++i) add_value(ids.gradient(i), numbered("g", i), chain.gradient_bytes(i));
  for (const ValueId id : {ids.weights(), ids.output(0), ids.gradient(length)}) spec.values[index(id)].resident = true;

  spec.ops.reserve(3 * static_cast<size_t>(length));
  for (int i = 1; i <= length; ++i) {
    const Stage& stage = chain.stage(i);
    Op forward{.name = numbered("F", i), .inputs = {ids.output(i - 1)}, .outputs = {ids.output(i)}, .overwrites = {}};
    forward.time_ns = stage.forward_ns;
    forward.workspace_bytes = stage.forward_workspace_bytes;
    Op record = forward;
    record.name = numbered("R", i);
    record.outputs.push_back(ids.tape(i));
    record.workspace_bytes = stage.effective_record_workspace_bytes();
    spec.ops.push_back(std::move(forward));
    spec.ops.push_back(std::move(record));
  }
  for (int i = length; i >= 1; --i) {
    const Stage& stage = chain.stage(i);
    Op backward{.name = numbered("B", i),
                .phase = Phase::kBackward,
                .inputs = {ids.output(i - 1), ids.output(i), ids.tape(i), ids.gradient(i)},
                .outputs = {ids.gradient(i - 1), ids.parameter_gradient(i)},
                .overwrites = {}};
    backward.time_ns = stage.backward_ns;
    backward.workspace_bytes = stage.backward_workspace_bytes;
    backward.recompute = false;
    spec.ops.push_back(std::move(backward));
  }
  spec.outputs.push_back(ids.gradient(0));
  for (int i = 1; i <= length; ++i) spec.outputs.push_back(ids.parameter_gradient(i));
  return Graph(std::move(spec));
}

namespace {

/// Finds the only chain that a graph could be. Only to_graph() knows the rules of a chain's graph: the caller compares
/// the result, so this class checks only what it needs to continue.
class ChainReader {
 public:
  explicit ChainReader(const Graph& graph) : graph_(graph), length_(static_cast<int>(graph.ops().size() / 3)) {}

  std::optional<ChainMatch> read() {
    if (graph_.ops().empty() || graph_.ops().size() % 3 != 0) return {};
    const size_t length = graph_.ops().size() / 3;
    if (graph_.values().size() != 3 + 4 * length) return {};
    if (!find_values()) return {};
    ChainMatch match{read_chain(), renumbered()};
    if (lint(match.chain) || !equal_but_names(to_graph(match.chain).spec(), match.graph.spec())) return {};
    return match;
  }

 private:
  /// Finds the graph's value for each value of ChainIds, through what the ops read and write.
  bool find_values() {
    const ChainIds ids(length_);
    at_.assign(graph_.values().size(), kNowhere);
    std::vector<uint8_t> taken(graph_.values().size(), 0);
    const auto place = [&](ValueId canonical, ValueId actual) {
      ValueId& slot = at_[index(canonical)];
      if (slot == kNowhere) {
        if (taken[index(actual)] != 0) return false;
        taken[index(actual)] = 1;
        slot = actual;
      }
      return slot == actual;
    };
    for (int i = 1; i <= length_; ++i) {
      const Op& record = graph_.op(ids.record(i));
      const Op& backward = graph_.op(ids.backward(i));
      if (record.inputs.size() != 1 || record.outputs.size() != 2) return false;
      if (backward.inputs.size() != 4 || backward.outputs.size() != 2) return false;
      const auto gradient = std::ranges::find_if(backward.inputs, [&](ValueId id) {
        return id != record.inputs[0] && id != record.outputs[0] && id != record.outputs[1];
      });
      if (gradient == backward.inputs.end()) return false;
      if (!place(ids.output(i - 1), record.inputs[0])) return false;
      // The tape is the output that only R{i} writes.
      const bool swapped = graph_.producers(record.outputs[0]).size() == 1;
      if (!place(ids.output(i), record.outputs[swapped ? 1 : 0])) return false;
      if (!place(ids.tape(i), record.outputs[swapped ? 0 : 1])) return false;
      if (!place(ids.gradient(i), *gradient)) return false;
    }
    for (int i = length_; i >= 1; --i) {
      // The gradient of the stage's input is the output that B{i-1} reads; for B1, it is the first output.
      const Op& backward = graph_.op(ids.backward(i));
      const bool swapped = i > 1 && at_[index(ids.gradient(i - 1))] == backward.outputs[1];
      if (!place(ids.gradient(i - 1), backward.outputs[swapped ? 1 : 0])) return false;
      if (!place(ids.parameter_gradient(i), backward.outputs[swapped ? 0 : 1])) return false;
    }
    const auto weights = std::ranges::find(taken, 0);
    if (weights == taken.end()) return false;
    return place(ids.weights(), value_id(static_cast<size_t>(weights - taken.begin())));
  }

  int64_t bytes(ValueId canonical) const { return graph_.value(at_[index(canonical)]).bytes; }

  Chain read_chain() const {
    const ChainIds ids(length_);
    Chain chain{graph_.name(), bytes(ids.weights()), bytes(ids.output(0)), bytes(ids.gradient(0)), {}};
    for (int i = 1; i <= length_; ++i) {
      const Op& forward = graph_.op(ids.forward(i));
      const Op& record = graph_.op(ids.record(i));
      const Op& backward = graph_.op(ids.backward(i));
      chain.stages.push_back(Stage{
          .name = forward.name,
          .forward_ns = forward.time_ns,
          .backward_ns = backward.time_ns,
          .output_bytes = bytes(ids.output(i)),
          .tape_bytes = bytes(ids.output(i)) + bytes(ids.tape(i)),
          .forward_workspace_bytes = forward.workspace_bytes,
          .backward_workspace_bytes = backward.workspace_bytes,
          .gradient_bytes = bytes(ids.parameter_gradient(i)),
      });
      if (record.workspace_bytes != forward.workspace_bytes)
        chain.stages.back().record_workspace_bytes = record.workspace_bytes;
    }
    return chain;
  }

  /// Returns the graph with its values in the order of ChainIds, and the ids in its lists in the order of to_graph().
  Graph renumbered() const {
    std::vector<ValueId> canonical(at_.size());
    for (size_t i = 0; i < at_.size(); ++i) canonical[index(at_[i])] = value_id(i);
    GraphSpec spec = graph_.spec();
    const auto renumber = [&](std::vector<ValueId>& list) {
      for (ValueId& id : list) id = canonical[index(id)];
      std::ranges::sort(list);
    };
    for (size_t i = 0; i < at_.size(); ++i) spec.values[i] = graph_.value(at_[i]);
    for (Value& value : spec.values) renumber(value.holds);
    for (Op& op : spec.ops) {
      renumber(op.inputs);
      renumber(op.outputs);
      renumber(op.overwrites);
    }
    renumber(spec.outputs);
    return Graph(std::move(spec));
  }

  static bool same_set(std::vector<ValueId> one, std::vector<ValueId> other) {
    std::ranges::sort(one);
    std::ranges::sort(other);
    return one == other;
  }

  static bool equal_but_names(const GraphSpec& one, const GraphSpec& other) {
    const auto same_value = [](const Value& a, const Value& b) {
      return a.bytes == b.bytes && a.resident == b.resident && same_set(a.holds, b.holds);
    };
    const auto same_op = [](const Op& a, const Op& b) {
      return a.phase == b.phase && same_set(a.inputs, b.inputs) && same_set(a.outputs, b.outputs) &&
             a.time_ns == b.time_ns && a.workspace_bytes == b.workspace_bytes && a.recompute == b.recompute &&
             same_set(a.overwrites, b.overwrites);
    };
    return std::ranges::equal(one.values, other.values, same_value) &&
           std::ranges::equal(one.ops, other.ops, same_op) && same_set(one.outputs, other.outputs);
  }

  static constexpr ValueId kNowhere{-1};
  const Graph& graph_;
  int length_;
  std::vector<ValueId> at_;
};

}  // namespace

std::optional<ChainMatch> find_chain(const Graph& graph) { return ChainReader(graph).read(); }

}  // namespace headroom
