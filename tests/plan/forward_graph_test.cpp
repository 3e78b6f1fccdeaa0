#include "headroom/plan/graph/forward_graph.h"

#include <gtest/gtest.h>

#include "headroom/core/chain.h"
#include "headroom/plan/plan.h"
#include "tests/plan/training_step.h"

namespace headroom::internal {
namespace {

using testing::ForwardSpec;
using testing::path;
using testing::training_step;

std::string error_of(const Graph& graph) {
  try {
    forward_graph(graph, "planner");
  } catch (const NotApplicable& error) {
    return error.what();
  }
  return "";
}

TEST(ForwardGraph, VerticesAndEdges) {
  // 0 -> 1 -> 3, 0 -> 2 -> 3
  const Graph graph(training_step(ForwardSpec{{4, 5, 6, 7}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {1, 2, 3, 4}}));
  const ForwardGraph forward = forward_graph(graph, "planner");
  ASSERT_EQ(forward.size(), 4);
  EXPECT_EQ(forward.base.size(), 8u);
  EXPECT_EQ(forward.successors, (std::vector<std::vector<int>>{{1, 2}, {3}, {3}, {}}));
  EXPECT_EQ(forward.predecessors, (std::vector<std::vector<int>>{{}, {0}, {0}, {1, 2}}));
  for (int v = 0; v < 4; ++v) {
    EXPECT_EQ(forward.vertex(v).op, op_id(static_cast<size_t>(v)));
    EXPECT_EQ(forward.vertex(v).size_bytes, 4 + v);
    EXPECT_EQ(forward.vertex(v).kept_bytes, 4 + v);
    EXPECT_EQ(forward.vertex(v).time_ns, 1 + v);
  }
}

TEST(ForwardGraph, OfAChainKeepsOutputsWithoutTapes) {
  Chain chain;
  chain.name = "chain";
  chain.stages = {{.name = "s1", .forward_ns = 3, .output_bytes = 4, .tape_bytes = 10},
                  {.name = "s2", .forward_ns = 5, .output_bytes = 6, .tape_bytes = 6}};
  const ForwardGraph forward = forward_graph(to_graph(chain), "planner");
  const ChainIds ids(2);
  ASSERT_EQ(forward.size(), 2);
  // R1 writes a1 (4) and t1 (6), both read by B1. Forward reads only a1, which is all that F1 writes.
  EXPECT_EQ(forward.vertex(0).op, ids.record(1));
  EXPECT_EQ(forward.vertex(0).size_bytes, 10);
  EXPECT_EQ(forward.vertex(0).kept_bytes, 4);
  EXPECT_EQ(forward.vertex(0).kept, std::vector<ValueId>{ids.output(1)});
  // No forward op reads an output of R2, so keeping it keeps all of them.
  EXPECT_EQ(forward.vertex(1).kept, (std::vector<ValueId>{ids.output(2), ids.tape(2)}));
}

TEST(ForwardGraph, WhatNoChoiceChangesCostsNothing) {
  GraphSpec spec = training_step(path({4, 5, 6}));
  spec.ops[0].recompute = false;
  spec.outputs.push_back(value_id(3));  // a1
  const ForwardGraph forward = forward_graph(Graph(spec), "planner");
  EXPECT_EQ(forward.vertex(0).size_bytes, 0);
  EXPECT_EQ(forward.vertex(0).time_ns, 0);
  EXPECT_EQ(forward.vertex(1).size_bytes, 0);
  EXPECT_EQ(forward.vertex(1).time_ns, 1);
  EXPECT_EQ(forward.vertex(2).size_bytes, 6);
}

TEST(ForwardGraph, SeveralOutputsAreKeptTogether) {
  // f0 also writes m, which only b0 reads. No op writes a0 alone.
  GraphSpec spec = training_step(path({4, 5}));
  spec.values.push_back({.name = "m", .bytes = 2, .holds = {}});
  spec.ops[0].outputs.push_back(value_id(5));
  spec.ops[3].inputs.push_back(value_id(5));
  const ForwardGraph forward = forward_graph(Graph(spec), "planner");
  EXPECT_EQ(forward.vertex(0).size_bytes, 6);
  EXPECT_EQ(forward.vertex(0).kept, (std::vector<ValueId>{value_id(1), value_id(5)}));
}

TEST(ForwardGraph, AReaderTakesTheLastProducerBeforeIt) {
  // f0 writes a0 for f1; then h writes a0 from a1, for f2.
  GraphSpec spec = training_step(path({4, 5, 6}));
  Op again{.name = "h", .inputs = {value_id(3)}, .outputs = {value_id(1)}, .overwrites = {}};
  spec.ops.insert(spec.ops.begin() + 2, again);
  spec.ops[3].inputs = {value_id(1)};
  const ForwardGraph forward = forward_graph(Graph(spec), "planner");
  EXPECT_EQ(forward.successors, (std::vector<std::vector<int>>{{1}, {2}, {3}, {}}));
}

TEST(ForwardGraph, Refuses) {
  GraphSpec spec = training_step(path({1, 2}));
  for (Op& op : spec.ops) op.phase = Phase::kForward;
  EXPECT_EQ(error_of(Graph(spec)), "planner needs backward ops; graph 'step' has none");
  for (Op& op : spec.ops) op.phase = Phase::kBackward;
  EXPECT_EQ(error_of(Graph(spec)), "planner needs forward ops; graph 'step' has none");
  // A forward op whose outputs nothing needs is not part of the graph.
  spec.ops[0].phase = Phase::kForward;
  spec.ops[1].inputs = {ValueId{0}};
  spec.ops[2].inputs = {value_id(3)};
  spec.ops[3].inputs = {value_id(4)};
  EXPECT_EQ(error_of(Graph(spec)), "planner needs forward ops; graph 'step' has none");
}

TEST(LeanestProducer, FewestBytesThenTimeThenOrder) {
  GraphSpec spec;
  spec.name = "producers";
  spec.values = {{.name = "x", .resident = true, .holds = {}},
                 {.name = "y", .resident = true, .holds = {}},
                 {.name = "a", .bytes = 4, .holds = {}},
                 {.name = "b", .bytes = 3, .holds = {}},
                 {.name = "c", .bytes = 2, .holds = {}}};
  const ValueId x{0}, y{1}, a{2}, b{3}, c{4};
  const auto op = [&](std::string name, std::vector<ValueId> inputs, std::vector<ValueId> outputs, int64_t time,
                      bool recompute = true) {
    Op made{.name = std::move(name), .inputs = std::move(inputs), .outputs = std::move(outputs), .overwrites = {}};
    made.time_ns = time;
    made.recompute = recompute;
    spec.ops.push_back(made);
  };
  op("other input", {y}, {a}, 1);
  op("once", {x}, {a}, 1, false);
  op("pair slow", {x}, {a, c}, 9);
  op("pair", {x}, {a, c}, 5);
  op("pair too", {x}, {a, c}, 5);
  op("all", {x}, {a, b, c}, 1);
  spec.outputs = {a, b, c};
  const Graph graph(spec);
  const OpId all{5};
  const auto leanest = [&](std::vector<ValueId> wanted) { return graph.op(leanest_producer(graph, all, wanted)).name; };
  EXPECT_EQ(leanest({a}), "pair");
  EXPECT_EQ(leanest({c, a}), "pair");
  EXPECT_EQ(leanest({b}), "all");
  EXPECT_EQ(leanest({a, b}), "all");
}

}  // namespace
}  // namespace headroom::internal
