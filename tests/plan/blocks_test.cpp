#include "headroom/plan/auto/blocks.h"

#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "headroom/core/chain.h"
#include "headroom/plan/auto/auto.h"
#include "headroom/plan/auto/front.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;

struct NetOptions {
  int odd_block = -1;  ///< a block that is wider than the others
  int reach = 1;       ///< blocks back to the stream that the second addend comes from
};

std::string name(const char* what, int block) { return what + std::to_string(block); }

/// Returns a residual network: each block normalises the stream h, widens it, applies a function with a mask that all blocks
/// read, narrows it and adds it to the stream. A block has ten ops, forward and backward.
Graph make_net(int blocks, NetOptions options = {}) {
  Builder builder("net");
  const auto backward = [&](const std::string& op, int64_t time_ns, const std::vector<std::string>& inputs,
                            const std::string& output, int64_t bytes) -> Op& {
    builder.value(output, bytes);
    Op& made = builder.op(op, time_ns, inputs, {output});
    made.phase = Phase::kBackward;
    return made;
  };
  builder.resident("x", 4).value("mask", 2).value("h0", 4);
  builder.op("draw", 1, {"x"}, {"mask"}).recompute = false;
  builder.op("embed", 3, {"x"}, {"h0"});
  for (int i = 1; i <= blocks; ++i) {
    const int64_t wide = i == options.odd_block ? 20 : 16;
    builder.resident(name("w", i), 8).value(name("n", i), 4).value(name("s", i), 1).value(name("u", i), wide);
    builder.value(name("a", i), wide).value(name("d", i), 4).value(name("h", i), 4);
    builder.op(name("norm", i), 2, {name("h", i - 1)}, {name("n", i), name("s", i)});
    builder.holds(name("n", i), {name("s", i)});
    builder.op(name("up", i), 30, {name("n", i), name("w", i)}, {name("u", i)});
    builder.op(name("act", i), 5, {name("u", i), "mask"}, {name("a", i)});
    builder.op(name("down", i), 30, {name("a", i), name("w", i)}, {name("d", i)}).workspace_bytes = 3;
    Op& add = builder.op(name("add", i), 2, {name("h", std::max(i - options.reach, 0)), name("d", i)}, {name("h", i)});
    add.overwrites = {builder.id(name("d", i))};
  }
  const std::string last = name("h", blocks);
  backward("loss", 9, {last}, name("g", blocks), 4);
  std::vector<std::string> gradients;
  for (int i = blocks; i >= 1; --i) {
    const int64_t wide = i == options.odd_block ? 20 : 16;
    backward(name("b_down", i), 30, {name("g", i), name("w", i)}, name("ga", i), wide);
    Op& act = backward(name("b_act", i), 5, {name("ga", i), name("u", i), "mask"}, name("gu", i), wide);
    act.overwrites = {builder.id(name("ga", i))};
    backward(name("b_weight", i), 30, {name("gu", i), name("n", i)}, name("gw", i), 8);
    backward(name("b_up", i), 30, {name("gu", i), name("w", i)}, name("gn", i), 4);
    backward(name("b_norm", i), 3, {name("gn", i), name("h", i - 1), name("s", i), name("g", i)}, name("g", i - 1), 4);
    gradients.push_back(name("gw", i));
  }
  builder.outputs(gradients);
  return builder.graph();
}

/// Describes a graph without names and ids: for each op its costs, its outputs, and the sources of the values that it
/// reads, may overwrite and holds.
using Source = std::tuple<int64_t, int64_t, int64_t>;  ///< op, output, bytes
struct OpShape {
  int64_t time_ns;
  int64_t workspace_bytes;
  bool recompute;
  Phase phase;
  std::vector<std::vector<Source>> sources;
  std::vector<bool> is_output;
  bool operator==(const OpShape&) const = default;
};

std::vector<OpShape> shape_of(const Graph& graph) {
  const auto sources = [&](const std::vector<ValueId>& ids) {
    std::vector<Source> found;
    for (const ValueId id : ids) {
      const Value& value = graph.value(id);
      if (value.resident) {
        found.emplace_back(-1, -1, value.bytes);
        continue;
      }
      const OpId op = graph.producers(id).front();
      const auto output = std::ranges::find(graph.op(op).outputs, id) - graph.op(op).outputs.begin();
      found.emplace_back(static_cast<int64_t>(op), output, value.bytes);
    }
    return found;
  };
  std::vector<OpShape> shapes;
  for (const Op& op : graph.ops()) {
    OpShape shape{op.time_ns, op.workspace_bytes, op.recompute, op.phase, {}, {}};
    shape.sources = {sources(op.inputs), sources(op.outputs), sources(op.overwrites)};
    for (const ValueId id : op.outputs) {
      shape.sources.push_back(sources(graph.value(id).holds));
      shape.is_output.push_back(graph.is_output(id));
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

int32_t op_named(const Graph& graph, const std::string& wanted) {
  const auto op = std::ranges::find(graph.ops(), wanted, &Op::name);
  return static_cast<int32_t>(op - graph.ops().begin());
}

std::vector<int32_t> plain_runs(const Graph& graph) {
  std::vector<int32_t> runs(graph.ops().size());
  std::iota(runs.begin(), runs.end(), 0);
  return runs;
}

/// Returns store-all with reruns: in all or some blocks, the ops `again` run before the op `before` in backward.
template <typename IsIn>
std::vector<int32_t> runs_with(const Graph& graph, int blocks, const char* again, const char* before, IsIn is_in) {
  std::vector<int32_t> runs = plain_runs(graph);
  for (int i = 1; i <= blocks; ++i) {
    if (!is_in(i)) continue;
    const auto place = std::ranges::find(runs, op_named(graph, name(before, i)));
    runs.insert(place, op_named(graph, name(again, i)));
  }
  return runs;
}

TEST(Blocks, AreFoundButTheFirstAndTheLastOfThem) {
  const Graph graph = make_net(40);
  const std::optional<Blocks> blocks = find_blocks(graph, 30);
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->count, 40);
  EXPECT_EQ(blocks->forward.length, 5);
  EXPECT_EQ(blocks->backward.length, 5);
  EXPECT_EQ(graph.ops()[static_cast<size_t>(blocks->op_at({2, 1, false}))].name, "up3");
  EXPECT_EQ(graph.ops()[static_cast<size_t>(blocks->op_at({2, 1, true}))].name, "b_act3");
  // The first block reads the output of embed, the last that of loss.
  EXPECT_EQ(blocks->first_equal, 1);
  EXPECT_EQ(blocks->equal_count, 38);
}

TEST(Blocks, EndAtOneThatIsNotEqual) {
  const std::optional<Blocks> blocks = find_blocks(make_net(40, {.odd_block = 21}), 15);
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->count, 20);
  EXPECT_EQ(blocks->equal_count, 18);
  EXPECT_FALSE(find_blocks(make_net(40, {.odd_block = 21}), 30));
}

TEST(Blocks, MayReadOthersAsFarAway) {
  const std::optional<Blocks> blocks = find_blocks(make_net(40, {.reach = 3}), 30);
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->equal_count, 36);
}

TEST(Blocks, AreNotFoundWhereValuesHaveSeveralProducers) {
  Chain chain{"chain", 1, 1, 0, std::vector<Stage>(40, Stage{})};
  for (size_t i = 0; i < chain.stages.size(); ++i) chain.stages[i].name = "s" + std::to_string(i);
  EXPECT_FALSE(find_blocks(make_problem(chain).graph, 2));
}

TEST(Fold, LeavesTheSameNetworkWithFewerBlocks) {
  for (const int reach : {1, 2}) {
    const std::optional<Folding> folding = fold(make_net(45, {.reach = reach}), 12, 32);
    ASSERT_TRUE(folding);
    const int at_the_ends = 1 + reach;
    EXPECT_EQ(shape_of(folding->graph), shape_of(make_net(12 + at_the_ends, {.reach = reach}))) << "reach " << reach;
  }
}

TEST(Fold, NeedsEnoughBlocks) { EXPECT_FALSE(fold(make_net(33), 12, 32)); }

TEST(Unfold, GivesPlainTrainingForPlainTraining) {
  const Graph graph = make_net(40);
  const std::optional<Folding> folding = fold(graph, 12, 32);
  ASSERT_TRUE(folding);
  const std::vector<int32_t> few = plain_runs(folding->graph);
  EXPECT_EQ(unfold(*folding, few, few, 100), plain_runs(graph));
}

TEST(Unfold, HasEveryBlockDoTheSame) {
  const Graph graph = make_net(40);
  const std::optional<Folding> folding = fold(graph, 12, 32);
  ASSERT_TRUE(folding);
  const auto every = [](int) { return true; };
  const std::vector<int32_t> few = runs_with(make_net(14), 14, "up", "b_act", every);
  EXPECT_EQ(unfold(*folding, few, few, 100), runs_with(graph, 40, "up", "b_act", every));
}

// Each of the 12 blocks stands for four of 48. The first two of these four follow the first plan.
TEST(Unfold, MixesTwoPlans) {
  const Graph graph = make_net(50);
  const std::optional<Folding> folding = fold(graph, 12, 32);
  ASSERT_TRUE(folding);
  const std::vector<int32_t> with = runs_with(make_net(14), 14, "up", "b_act", [](int) { return true; });
  const std::vector<int32_t> without = plain_runs(folding->graph);
  const auto is_in = [](int i) { return i == 1 || i == 50 || (i - 2) % 4 < 2; };
  EXPECT_EQ(unfold(*folding, with, without, 50), runs_with(graph, 50, "up", "b_act", is_in));
}

TEST(PlanAuto, PlansDeepNetworksByFewOfTheirBlocks) {
  const Problem problem(make_net(120));
  const FlatGraph flat(problem.graph);
  const PlanLimits limits{.threads = 1};
  const AutoFront folded{.plans = search_front(problem, flat, limits)};
  const AutoFront whole{.plans = search_fronts(flat, {}, limits, {}).back()};
  EXPECT_LE(folded.plans.front().peak_bytes, whole.plans.front().peak_bytes * 101 / 100);
  for (int percent = 95; percent >= 50; percent -= 5) {
    const int64_t budget_bytes = problem.base_peak_bytes * percent / 100;
    const std::optional<JudgedRuns> by_few = pick_within(flat, folded, budget_bytes);
    const std::optional<JudgedRuns> by_all = pick_within(flat, whole, budget_bytes);
    ASSERT_TRUE(by_few) << percent << " %";
    ASSERT_TRUE(by_all) << percent << " %";
    EXPECT_LE(by_few->peak_bytes, budget_bytes);
    EXPECT_LE(by_few->time_ns, by_all->time_ns * 101 / 100) << percent << " %";
  }
}

}  // namespace
}  // namespace headroom::internal
