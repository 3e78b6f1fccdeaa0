#include "headroom/core/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/error.h"
#include "headroom/core/schedule.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Random;

Chain two() { return Chain{"two", 100, 4, 0, {{"conv", 2, 4, 3, 8, 1, 2, 9}, {"loss", 5, 6, 1, 1, 0, 0, 0}}}; }

std::vector<std::string> names(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> result;
  for (const ValueId id : ids) result.push_back(graph.value(id).name);
  return result;
}

TEST(ToGraph, IsTheGraphOfTheFormat) {
  const Graph graph = to_graph(two());
  std::vector<std::string> ops;
  for (const Op& op : graph.ops()) ops.push_back(op.name);
  EXPECT_THAT(ops, ElementsAre("F1", "R1", "F2", "R2", "B2", "B1"));
  const ChainIds ids(2);
  const auto bytes = [&](ValueId id) { return graph.value(id).bytes; };
  EXPECT_EQ(bytes(ids.weights()), 100);
  EXPECT_EQ(bytes(ids.output(0)), 4);
  EXPECT_EQ(bytes(ids.output(1)), 3);
  EXPECT_EQ(bytes(ids.tape(1)), 5);
  EXPECT_EQ(bytes(ids.gradient(0)), 0);
  EXPECT_EQ(bytes(ids.gradient(1)), 3);
  EXPECT_EQ(bytes(ids.gradient(2)), 1);
  EXPECT_EQ(bytes(ids.parameter_gradient(1)), 9);
  EXPECT_EQ(graph.resident_bytes(), 100 + 4 + 1);
  EXPECT_THAT(names(graph, graph.value(ids.tape(2)).holds), ElementsAre("a1", "a2"));
  const Op& record = graph.op(ids.record(1));
  EXPECT_THAT(names(graph, record.inputs), ElementsAre("a0"));
  EXPECT_THAT(names(graph, record.outputs), ElementsAre("a1", "t1"));
  EXPECT_EQ(record.time_ns, 2);
  EXPECT_EQ(record.workspace_bytes, 1);
  const Op& backward = graph.op(ids.backward(1));
  EXPECT_EQ(backward.name, "B1");
  EXPECT_THAT(names(graph, backward.inputs), ElementsAre("a0", "a1", "t1", "g1"));
  EXPECT_THAT(names(graph, backward.outputs), ElementsAre("g0", "p1"));
  EXPECT_EQ(backward.phase, Phase::kBackward);
  EXPECT_FALSE(backward.recompute);
  EXPECT_EQ(backward.time_ns, 4);
  EXPECT_EQ(backward.workspace_bytes, 2);
  EXPECT_THAT(names(graph, {graph.outputs().begin(), graph.outputs().end()}), ElementsAre("g0", "p1", "p2"));
}

TEST(ToGraph, RecordingMayHaveAWorkspaceOfItsOwn) {
  Chain chain = two();
  chain.stages[0].record_workspace_bytes = -3;
  const Graph graph = to_graph(chain);
  const ChainIds ids(2);
  EXPECT_EQ(graph.op(ids.forward(1)).workspace_bytes, 1);
  EXPECT_EQ(graph.op(ids.record(1)).workspace_bytes, -3);
  EXPECT_EQ(graph.op(ids.record(2)).workspace_bytes, 0);
  EXPECT_EQ(find_chain(graph)->chain.stages[0].record_workspace_bytes, -3);
  EXPECT_EQ(find_chain(graph)->chain.stages[1].record_workspace_bytes, std::nullopt);
}

TEST(ToGraph, PlainTrainingRecordsEveryStage) {
  const Graph graph = to_graph(two());
  const ChainIds ids(2);
  EXPECT_THAT(base_ops(graph), ElementsAre(ids.record(1), ids.record(2), ids.backward(2), ids.backward(1)));
}

template <typename Change>
std::string problem_after(Change change) {
  Chain chain = two();
  change(chain);
  const std::string problem = lint(chain).value_or("");
  if (!problem.empty()) {
    EXPECT_THROW(to_graph(chain), InvalidInput);
  }
  return problem;
}

TEST(LintChain, SaysWhatIsWrong) {
  EXPECT_EQ(problem_after([](Chain&) {}), "");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages.clear(); }), "a chain has at least one stage, found none");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[1].name = "conv"; }), "");
  EXPECT_EQ(problem_after([](Chain& c) { c.input_bytes = -1; }), "input_bytes must not be negative, found -1");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[1].forward_ns = -1; }),
            "stage 2 'loss': forward_ns must not be negative, found -1");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[0].tape_bytes = 2; }),
            "stage 1 'conv': tape_bytes includes the output and must be at least output_bytes (3), found 2");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[0].forward_workspace_bytes = -7; }), "");
  constexpr int64_t kHalf = int64_t{1} << 62;
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[0].output_bytes = c.stages[0].tape_bytes = kHalf; }),
            "the bytes of the chain's graph do not fit 64 bits");
  EXPECT_EQ(problem_after([](Chain& c) { c.stages[0].forward_ns = kHalf; }),
            "the times of the chain's graph do not fit 64 bits");
}

/// Returns an equal graph with other names and another order of its values and of the ids in its lists.
GraphSpec disguised(const GraphSpec& spec, Random& random) {
  std::vector<size_t> order(spec.values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto shuffle = [&](auto& list) {
    for (size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[static_cast<size_t>(random.number(0, static_cast<int64_t>(i) - 1))]);
  };
  shuffle(order);
  GraphSpec result = spec;
  for (size_t i = 0; i < order.size(); ++i) {
    result.values[order[i]] = spec.values[i];
    result.values[order[i]].name = "v" + std::to_string(i);
  }
  const auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = value_id(order[index(id)]);
    shuffle(ids);
  };
  for (Value& value : result.values) renumber(value.holds);
  for (Op& op : result.ops) {
    op.name = "op " + op.name;
    renumber(op.inputs);
    renumber(op.outputs);
  }
  renumber(result.outputs);
  return result;
}

TEST(FindChain, KnowsAChainInDisguise) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 6)));
    const GraphSpec spec = disguised(to_graph(chain).spec(), random);
    const std::optional<ChainMatch> match = find_chain(Graph(spec));
    ASSERT_TRUE(match) << "seed " << seed;
    Chain expected = chain;
    for (size_t i = 0; i < expected.stages.size(); ++i) expected.stages[i].name = "op F" + std::to_string(i + 1);
    if (match->chain.input_gradient_bytes != chain.input_gradient_bytes) {
      // The two outputs of B1 are indistinguishable, so either may be the gradient of the input.
      std::swap(expected.input_gradient_bytes, expected.stages[0].gradient_bytes);
    }
    EXPECT_EQ(match->chain, expected) << "seed " << seed;
    for (size_t i = 0; i < spec.ops.size(); ++i) EXPECT_EQ(match->graph.ops()[i].name, spec.ops[i].name);
  }
}

TEST(FindChain, KnowsWhatIsNotAChain) {
  const GraphSpec chain = to_graph(two()).spec();
  const auto is_chain_after = [&](auto change) {
    GraphSpec spec = chain;
    change(spec);
    return find_chain(Graph(spec)).has_value();
  };
  const ChainIds ids(2);
  EXPECT_TRUE(is_chain_after([](GraphSpec&) {}));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { s.ops[index(ids.backward(1))].recompute = true; }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { s.values[index(ids.tape(1))].holds.clear(); }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { ++s.ops[index(ids.forward(1))].time_ns; }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { ++s.values[index(ids.gradient(1))].bytes; }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { s.outputs.pop_back(); }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { s.values.push_back({"more", 1, true, {}}); }));
  EXPECT_FALSE(is_chain_after([&](GraphSpec& s) { s.ops[index(ids.backward(2))].inputs.push_back(ids.weights()); }));
  EXPECT_TRUE(is_chain_after([&](GraphSpec& s) { ++s.ops[index(ids.record(1))].workspace_bytes; }));
  EXPECT_FALSE(find_chain(Graph(GraphSpec{})));
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    EXPECT_FALSE(find_chain(Graph(testing::random_graph(random, {.forward_ops = 6})))) << "seed " << seed;
  }
}

}  // namespace
}  // namespace headroom::internal
