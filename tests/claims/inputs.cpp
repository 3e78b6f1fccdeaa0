#include "tests/claims/inputs.h"

#include <algorithm>

#include "headroom/io/text.h"
#include "tests/support/random.h"

namespace headroom::internal::testing {
namespace {

template <typename T>
bool contains(const std::vector<T>& items, const T& item) {
  return std::ranges::find(items, item) != items.end();
}

ValueId pick_value(Random& random, const GraphSpec& spec) {
  return value_id(static_cast<size_t>(random.number(0, std::ssize(spec.values) - 1)));
}

void add_once(std::vector<ValueId>& ids, ValueId id) {
  if (!contains(ids, id)) ids.push_back(id);
}

int64_t random_bytes(Random& random) {
  if (random.chance(20)) return 0;
  return random.chance(5) ? random.number(10, 100) : random.number(1, 9);
}

void add_random_details(Random& random, const GraphSpec& spec, Op& op) {
  op.time_ns = random.chance(5) ? random.number(10, 1000) : random.number(0, 9);
  if (random.chance(15)) op.workspace_bytes = random.number(1, 6);
  if (random.chance(10)) op.workspace_bytes = -random.number(1, 20);
  op.recompute = !random.chance(15);
  if (!random.chance(40)) return;
  for (const ValueId id : op.inputs)
    if (!spec.values[index(id)].resident &&
        spec.values[index(id)].bytes == spec.values[index(op.outputs.front())].bytes)
      op.overwrites.push_back(id);
}

/// Adds an op that reads and writes values of earlier ops: another producer, perhaps of a value that its input needs.
void add_alternative(Random& random, GraphSpec& spec) {
  Op op{.name = "r" + std::to_string(spec.ops.size()), .inputs = {}, .outputs = {}, .overwrites = {}};
  op.phase = spec.ops.back().phase;
  const ValueId output = pick_value(random, spec);
  if (spec.values[index(output)].resident) return;
  op.outputs = {output};
  if (const ValueId other = pick_value(random, spec); random.chance(20) && !spec.values[index(other)].resident)
    add_once(op.outputs, other);
  while (random.chance(60))
    if (const ValueId id = pick_value(random, spec); !contains(op.outputs, id)) add_once(op.inputs, id);
  add_random_details(random, spec, op);
  spec.ops.push_back(op);
}

/// Adds holds. A value may hold values that all of its producers read or write.
void add_random_holds(Random& random, GraphSpec& spec) {
  for (size_t v = 0; v < spec.values.size(); ++v) {
    if (spec.values[v].resident || !random.chance(25)) continue;
    const GraphSpec before = spec;
    for (size_t held = 0; held < spec.values.size(); ++held)
      if (held != v && random.chance(70) && std::ranges::all_of(spec.ops, [&](const Op& op) {
            return !contains(op.outputs, value_id(v)) || contains(op.inputs, value_id(held)) ||
                   contains(op.outputs, value_id(held));
          }))
        add_once(spec.values[v].holds, value_id(held));
    if (lint(spec)) spec = before;
  }
}

GraphSpec wild_graph(Random& random) {
  GraphSpec spec;
  spec.name = "wild";
  for (int64_t i = random.number(0, 2); i > 0; --i)
    spec.values.push_back({"x" + std::to_string(i), random_bytes(random), true, {}});
  const int64_t count = random.number(2, 8);
  while (std::ssize(spec.ops) < count) {
    if (!spec.ops.empty() && random.chance(20)) {
      add_alternative(random, spec);
      continue;
    }
    Op op{.name = "f" + std::to_string(spec.ops.size()), .inputs = {}, .outputs = {}, .overwrites = {}};
    if (std::ssize(spec.ops) * 2 > count) op.phase = Phase::kBackward;
    if (!spec.values.empty() && random.chance(70)) op.inputs.push_back(value_id(spec.values.size() - 1));
    while (!spec.values.empty() && random.chance(45)) add_once(op.inputs, pick_value(random, spec));
    for (bool more = true; more; more = random.chance(20)) {
      const bool same = !op.inputs.empty() && random.chance(30);
      const int64_t bytes = same ? spec.values[index(op.inputs.front())].bytes : random_bytes(random);
      spec.values.push_back({"v" + std::to_string(spec.values.size()), bytes, false, {}});
      op.outputs.push_back(value_id(spec.values.size() - 1));
    }
    add_random_details(random, spec, op);
    spec.ops.push_back(op);
  }
  spec.outputs = {spec.ops.back().outputs.front()};
  while (random.chance(40)) add_once(spec.outputs, pick_value(random, spec));
  add_random_holds(random, spec);
  return spec;
}

GraphSpec training_step(Random& random, int64_t forward_ops) {
  GraphSpec spec = random_graph(random, {.forward_ops = static_cast<int>(forward_ops)});
  const GraphSpec before = spec;
  while (random.chance(40)) {
    add_alternative(random, spec);
    // The op goes to a random position of the base order after the producers of its inputs.
    std::rotate(spec.ops.begin() + random.number(0, std::ssize(spec.ops) - 1), spec.ops.end() - 1, spec.ops.end());
  }
  return lint(spec) ? before : spec;
}

/// Removes a value and all references to it.
void remove_value(GraphSpec& spec, size_t v) {
  spec.values.erase(spec.values.begin() + static_cast<std::ptrdiff_t>(v));
  const auto remove = [&](std::vector<ValueId>& ids) {
    std::erase(ids, value_id(v));
    for (ValueId& id : ids)
      if (index(id) > v) id = value_id(index(id) - 1);
  };
  for (Value& value : spec.values) remove(value.holds);
  for (Op& op : spec.ops)
    for (std::vector<ValueId>* ids : {&op.inputs, &op.outputs, &op.overwrites}) remove(*ids);
  remove(spec.outputs);
}

/// Removes an op and the values that then have no producer.
void remove_op(GraphSpec& spec, size_t i) {
  const std::vector<ValueId> outputs = spec.ops[i].outputs;
  spec.ops.erase(spec.ops.begin() + static_cast<std::ptrdiff_t>(i));
  for (size_t v = spec.values.size(); v-- > 0;)
    if (contains(outputs, value_id(v)) &&
        std::ranges::none_of(spec.ops, [&](const Op& op) { return contains(op.outputs, value_id(v)); }))
      remove_value(spec, v);
}

/// Tries all changes of an input to a smaller one, until none is accepted.
class Shrinker {
 public:
  Shrinker(Input input, const std::function<bool(const Input&)>& breaks) : now_(std::move(input)), breaks_(breaks) {}

  Input run() {
    do {
      changed_ = false;
      now_.chain ? shrink_chain() : shrink_graph();
    } while (changed_);
    return now_;
  }

 private:
  bool accept(const Input& candidate) {
    if (candidate.chain ? lint(*candidate.chain).has_value() : lint(candidate.graph).has_value()) return false;
    if (!breaks_(candidate)) return false;
    now_ = candidate;
    changed_ = true;
    return true;
  }

  template <typename Change>
  bool try_change(const Change& change) {
    Input candidate = now_;
    change(candidate);
    return accept(candidate);
  }

  /// Moves a number closer to 0. `number(input)` returns a reference to it.
  template <typename Number>
  void try_smaller(const Number& number) {
    const auto current = [&] { return number(now_); };
    for (const int64_t smaller : {int64_t{0}, int64_t{1}, current() / 2, current() - (current() > 0 ? 1 : -1)})
      if (std::abs(smaller) < std::abs(current()) && try_change([&](Input& input) { number(input) = smaller; })) return;
  }

  template <typename List>
  void try_shorter(const List& list) {
    for (size_t i = list(now_).size(); i-- > 0;)
      try_change([&](Input& input) { list(input).erase(list(input).begin() + static_cast<std::ptrdiff_t>(i)); });
  }

  void shrink_graph() {
    for (size_t i = now_.graph.ops.size(); i-- > 0;) try_change([&](Input& input) { remove_op(input.graph, i); });
    for (size_t v = now_.graph.values.size(); v-- > 0;) try_change([&](Input& input) { remove_value(input.graph, v); });
    try_shorter([](Input & input) -> auto& { return input.graph.outputs; });
    for (size_t i = 0; i < now_.graph.ops.size(); ++i) {
      const auto op = [i](Input& input) -> Op& { return input.graph.ops[i]; };
      try_shorter([&](Input & input) -> auto& { return op(input).overwrites; });
      try_shorter([&](Input & input) -> auto& { return op(input).inputs; });
      try_shorter([&](Input & input) -> auto& { return op(input).outputs; });
      if (!op(now_).recompute) try_change([&](Input& input) { op(input).recompute = true; });
      if (op(now_).phase != Phase::kForward) try_change([&](Input& input) { op(input).phase = Phase::kForward; });
      try_smaller([&](Input& input) -> int64_t& { return op(input).workspace_bytes; });
      try_smaller([&](Input& input) -> int64_t& { return op(input).time_ns; });
    }
    for (size_t v = 0; v < now_.graph.values.size(); ++v) {
      try_shorter([v](Input & input) -> auto& { return input.graph.values[v].holds; });
      try_smaller([v](Input& input) -> int64_t& { return input.graph.values[v].bytes; });
      // An overwritten input has as many bytes as the first output.
      const int64_t bytes = now_.graph.values[v].bytes;
      for (const int64_t smaller : {int64_t{0}, int64_t{1}, bytes / 2, bytes - 1})
        if (smaller >= 0 && smaller < bytes && try_change([&](Input& input) { resize_all(input, bytes, smaller); }))
          break;
    }
  }

  static void resize_all(Input& input, int64_t from_bytes, int64_t to_bytes) {
    for (Value& value : input.graph.values)
      if (value.bytes == from_bytes) value.bytes = to_bytes;
  }

  void shrink_chain() {
    try_shorter([](Input & input) -> auto& { return input.chain->stages; });
    for (int64_t Chain::*field : {&Chain::resident_bytes, &Chain::input_bytes, &Chain::input_gradient_bytes})
      try_smaller([field](Input& input) -> int64_t& { return (*input.chain).*field; });
    for (size_t i = 0; i < now_.chain->stages.size(); ++i) {
      if (now_.chain->stages[i].record_workspace_bytes)
        try_change([i](Input& input) { input.chain->stages[i].record_workspace_bytes.reset(); });
      for (int64_t Stage::*field :
           {&Stage::tape_bytes, &Stage::output_bytes, &Stage::forward_ns, &Stage::backward_ns,
            &Stage::forward_workspace_bytes, &Stage::backward_workspace_bytes, &Stage::gradient_bytes})
        try_smaller([field, i](Input& input) -> int64_t& { return input.chain->stages[i].*field; });
    }
  }

  Input now_;
  const std::function<bool(const Input&)>& breaks_;
  bool changed_ = false;
};

}  // namespace

Input random_input(uint64_t seed) {
  Random random(seed);
  // Wild graphs find the most faults and take the least time.
  if (seed % 16 == 0) return {{}, random_chain(random, static_cast<int>(random.number(1, 3)))};
  if (seed % 32 == 1) return {training_step(random, random.number(3, 6)), {}};
  if (seed % 128 == 100) return {training_step(random, random.number(7, 9)), {}};
  if (seed % 128 == 36) return {{}, random_chain(random, static_cast<int>(random.number(4, 6)))};
  return {wild_graph(random), {}};
}

std::string to_text(const Input& input) {
  if (!input.chain) return headroom::to_text(Graph(input.graph));
  const bool has_text = std::ranges::none_of(
      input.chain->stages, [](const Stage& stage) { return stage.record_workspace_bytes.has_value(); });
  return has_text ? headroom::to_text(*input.chain) : headroom::to_text(to_graph(*input.chain));
}

Input shrink(Input input, const std::function<bool(const Input&)>& breaks) {
  return Shrinker(std::move(input), breaks).run();
}

}  // namespace headroom::internal::testing
