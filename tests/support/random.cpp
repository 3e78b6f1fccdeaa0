#include "tests/support/random.h"

#include <algorithm>
#include <string>

namespace headroom::internal::testing {
namespace {

ValueId add_value(GraphSpec& spec, const std::string& name, int64_t bytes) {
  spec.values.push_back(Value{name, bytes, false, {}});
  return value_id(spec.values.size() - 1);
}

void add_input(Op& op, ValueId id) {
  if (std::ranges::find(op.inputs, id) == op.inputs.end()) op.inputs.push_back(id);
}

}  // namespace

GraphSpec random_graph(Random& random, const RandomGraphOptions& options) {
  GraphSpec spec;
  spec.name = "random";
  spec.values.push_back(Value{"x", random.number(0, options.most_bytes), true, {}});
  const ValueId x{0};
  const int n = options.forward_ops;
  std::vector<std::vector<ValueId>> reads(static_cast<size_t>(n));
  std::vector<ValueId> outputs(static_cast<size_t>(n));
  std::vector<ValueId> tapes(static_cast<size_t>(n), ValueId{-1});
  const auto special = [&](int percent) { return options.special && random.chance(percent); };
  for (int i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>(i);
    const std::string number = std::to_string(i + 1);
    Op op{.name = "f" + number, .inputs = {}, .outputs = {}, .overwrites = {}};
    op.time_ns = random.number(0, 9);
    if (special(30)) op.workspace_bytes = random.number(-2, 4);
    op.recompute = !special(10);
    if (i == 0 || random.chance(20)) add_input(op, x);
    if (i > 0) add_input(op, outputs[k - 1]);
    while (i > 1 && random.chance(30)) add_input(op, outputs[static_cast<size_t>(random.number(0, i - 1))]);
    outputs[k] = add_value(spec, "a" + number, random.number(0, options.most_bytes));
    op.outputs = {outputs[k]};
    reads[k] = op.inputs;
    if (special(25)) {
      Op plain = op;
      plain.name = "u" + number;
      plain.recompute = true;
      spec.ops.push_back(plain);
      tapes[k] = add_value(spec, "t" + number, random.number(0, options.most_bytes));
      op.outputs.push_back(tapes[k]);
      for (const ValueId id : op.inputs)
        if (random.chance(60)) spec.values.back().holds.push_back(id);
      if (random.chance(60)) spec.values.back().holds.push_back(outputs[k]);
    } else if (special(40)) {
      for (const ValueId id : op.inputs) {
        if (id == x) continue;
        spec.values[index(outputs[k])].bytes = spec.values[index(id)].bytes;
        op.overwrites = {id};
        break;
      }
    }
    spec.ops.push_back(op);
  }
  ValueId gradient = outputs.back();
  for (int i = n; i-- > 0;) {
    const auto k = static_cast<size_t>(i);
    const std::string number = std::to_string(i + 1);
    Op op{.name = "b" + number, .phase = Phase::kBackward, .inputs = {gradient}, .outputs = {}, .overwrites = {}};
    op.time_ns = random.number(0, 9);
    op.recompute = !special(50);
    for (const ValueId id : reads[k])
      if (random.chance(70)) add_input(op, id);
    if (random.chance(50)) add_input(op, outputs[k]);
    if (tapes[k] != ValueId{-1}) add_input(op, tapes[k]);
    gradient = add_value(spec, "g" + std::to_string(i), random.number(0, options.most_bytes));
    op.outputs = {gradient};
    if (random.chance(50)) {
      op.outputs.push_back(add_value(spec, "p" + number, random.number(0, 3)));
      spec.outputs.push_back(op.outputs.back());
    }
    spec.ops.push_back(op);
  }
  spec.outputs.push_back(gradient);
  return spec;
}

Chain random_chain(Random& random, int length) {
  Chain chain;
  chain.name = "random";
  chain.resident_bytes = random.number(0, 3);
  chain.input_bytes = random.number(0, 9);
  chain.input_gradient_bytes = random.chance(50) ? chain.input_bytes : 0;
  const bool plain = random.chance(30);
  for (int i = 1; i <= length; ++i) {
    Stage stage;
    stage.name = "s" + std::to_string(i);
    stage.forward_ns = random.number(0, 9);
    stage.backward_ns = random.number(0, 9);
    stage.output_bytes = random.number(0, 9);
    stage.tape_bytes = stage.output_bytes + (plain ? 0 : random.number(0, 9));
    if (!plain) {
      if (random.chance(40)) stage.forward_workspace_bytes = random.number(-2, 4);
      if (random.chance(40)) stage.backward_workspace_bytes = random.number(-2, 4);
      if (random.chance(40)) stage.gradient_bytes = random.number(0, 5);
      const int64_t record_workspace_bytes = random.number(-2, 4);
      if (random.chance(20) && record_workspace_bytes != stage.forward_workspace_bytes)
        stage.record_workspace_bytes = record_workspace_bytes;
    }
    chain.stages.push_back(stage);
  }
  return chain;
}

}  // namespace headroom::internal::testing
