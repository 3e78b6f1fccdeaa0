#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/chain.h"
#include "headroom/core/error.h"
#include "headroom/core/schedule.h"

namespace headroom::internal {

inline size_t below(std::mt19937_64& random, size_t bound) { return random() % bound; }

inline bool same(const Value& a, const Value& b) {
  return a.name == b.name && a.bytes == b.bytes && a.resident == b.resident && a.holds == b.holds;
}

inline bool same(const Op& a, const Op& b) {
  return a.name == b.name && a.phase == b.phase && a.inputs == b.inputs && a.outputs == b.outputs &&
         a.time_ns == b.time_ns && a.workspace_bytes == b.workspace_bytes && a.recompute == b.recompute &&
         a.overwrites == b.overwrites;
}

inline bool same(const Graph& a, const Graph& b) {
  return a.name() == b.name() && std::ranges::equal(a.outputs(), b.outputs()) &&
         std::ranges::equal(a.values(), b.values(), [](const Value& x, const Value& y) { return same(x, y); }) &&
         std::ranges::equal(a.ops(), b.ops(), [](const Op& x, const Op& y) { return same(x, y); });
}

/// Names that a writer must escape correctly.
inline std::string odd_name(std::mt19937_64& random, size_t number) {
  using namespace std::string_literals;
  static const std::array kOdd = {"a b"s,         "q\"uote"s, "</script>"s, "日本"s,    "nul\0nul"s, "-x"s,
                                  "back\\slash"s, "->"s,      "x=1"s,       "😀"s,       "li\nne"s,   "#no"s,
                                  "a,b/c"s,       "it's"s,    "5"s,         "outputs"s, "\x1b[31m"s, "plain.1"s};
  return kOdd[below(random, kOdd.size())] + std::to_string(number);
}

/// Returns a random graph with several producers of a value, holds, overwrites and values in any order.
inline Graph random_graph(std::mt19937_64& random) {
  GraphSpec spec;
  spec.name = odd_name(random, 0);
  const auto add_value = [&](bool resident) {
    const int64_t bytes = below(random, 20) == 0 ? int64_t{1} << 55U : static_cast<int64_t>(4 * below(random, 3));
    spec.values.push_back(Value{odd_name(random, spec.values.size()), bytes, resident, {}});
    return value_id(spec.values.size() - 1);
  };
  for (size_t i = below(random, 3); i > 0; --i) add_value(true);
  for (size_t i = below(random, 8); i > 0; --i) {
    Op op;
    op.name = odd_name(random, spec.ops.size());
    op.phase = below(random, 2) == 0 ? Phase::kForward : Phase::kBackward;
    op.time_ns = static_cast<int64_t>(below(random, 5));
    op.workspace_bytes = static_cast<int64_t>(below(random, 5)) - 2;
    op.recompute = below(random, 3) != 0;
    for (size_t v = 0; v < spec.values.size(); ++v) {
      const size_t kind = below(random, 6);
      if (kind < 2) op.inputs.push_back(value_id(v));
      if (kind == 2 && !spec.values[v].resident) op.outputs.push_back(value_id(v));
    }
    for (size_t fresh = below(random, 3) + (op.outputs.empty() ? 1 : 0); fresh > 0; --fresh)
      op.outputs.push_back(add_value(false));
    std::shuffle(op.inputs.begin(), op.inputs.end(), random);
    std::shuffle(op.outputs.begin(), op.outputs.end(), random);
    for (const ValueId id : op.inputs) {
      const Value& value = spec.values[index(id)];
      if (!value.resident && value.bytes == spec.values[index(op.outputs.front())].bytes) op.overwrites.push_back(id);
    }
    spec.ops.push_back(op);
  }
  // A value may hold earlier values that all its producers read or write.
  for (size_t v = 0; v < spec.values.size(); ++v) {
    if (spec.values[v].resident || below(random, 2) == 0) continue;
    for (size_t held = 0; held < v; ++held) {
      const bool allowed = std::ranges::all_of(spec.ops, [&](const Op& op) {
        const auto has = [](const std::vector<ValueId>& ids, size_t id) {
          return std::ranges::count(ids, value_id(id)) > 0;
        };
        return !has(op.outputs, v) || has(op.inputs, held) || has(op.outputs, held);
      });
      if (allowed) spec.values[v].holds.push_back(value_id(held));
    }
  }
  for (size_t v = 0; v < spec.values.size(); ++v)
    if (below(random, 3) == 0) spec.outputs.push_back(value_id(v));

  std::vector<ValueId> moved(spec.values.size());
  for (size_t v = 0; v < moved.size(); ++v) moved[v] = value_id(v);
  if (below(random, 2) == 0) std::shuffle(moved.begin(), moved.end(), random);
  const auto move_ids = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = moved[index(id)];
  };
  std::vector<Value> values(spec.values.size());
  for (size_t v = 0; v < moved.size(); ++v) {
    move_ids(spec.values[v].holds);
    values[index(moved[v])] = std::move(spec.values[v]);
  }
  spec.values = std::move(values);
  for (Op& op : spec.ops) {
    move_ids(op.inputs);
    move_ids(op.outputs);
    move_ids(op.overwrites);
  }
  move_ids(spec.outputs);
  return Graph(std::move(spec));
}

inline Chain random_chain(std::mt19937_64& random) {
  const auto number = [&] { return below(random, 3) == 0 ? 0 : static_cast<int64_t>(below(random, 100)); };
  Chain chain{odd_name(random, 0), number(), number(), number(), {}};
  for (size_t i = 1 + below(random, 6); i > 0; --i) {
    Stage stage{
        odd_name(random, below(random, 3)), number(), number(), number(), 0, number() - 50, number() - 50, number()};
    stage.tape_bytes = stage.output_bytes + number();
    chain.stages.push_back(stage);
  }
  return chain;
}

/// Returns random steps, valid or not.
inline Schedule random_schedule(std::mt19937_64& random, const Graph& graph) {
  Schedule schedule;
  if (graph.ops().empty()) return schedule;
  for (size_t i = below(random, 60); i > 0; --i) {
    const OpId op = op_id(below(random, graph.ops().size()));
    const ValueId value = value_id(below(random, graph.values().size()));
    const size_t kind = below(random, 3);
    schedule.steps.push_back(kind == 0 ? Step::run(op) : kind == 1 ? Step::drop(value) : Step::run_over(op, value));
  }
  return schedule;
}

/// Returns the message with which `call` throws InvalidInput. Checks that it is one line of bounded length without control
/// characters.
template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidInput& error) {
    const std::string message = error.what();
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 700U) << message;
    EXPECT_TRUE(std::ranges::none_of(message, [](char c) { return static_cast<unsigned char>(c) < 0x20; })) << message;
    return message;
  }
  return "accepted";
}

/// Returns `text` with the first occurrence of `from`, which must exist, replaced.
inline std::string with(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace headroom::internal
