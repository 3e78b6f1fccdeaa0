#include "headroom/core/lifetimes.h"

#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "tests/support/build.h"
#include "tests/support/random.h"

namespace headroom {
namespace {

using testing::Builder;
using testing::Random;
using testing::steps;

Builder small() {
  Builder builder("small");
  builder.resident("x", 8).value("a", 4).value("t", 1).value("b", 4).value("g", 2);
  builder.op("f", 1, {"x"}, {"a", "t"});
  builder.op("h", 1, {"a"}, {"b"}).overwrites = {builder.id("a")};
  builder.op("k", 1, {"b", "t"}, {"g"}).phase = Phase::kBackward;
  builder.holds("t", {"a"});
  builder.outputs({"g"});
  return builder;
}

TEST(Lifetimes, ByHand) {
  Builder builder = small();
  builder.spec().values[2].holds.clear();
  const Graph graph = builder.graph();
  // steps:                               0 1  2  3 4 5  6
  const Schedule schedule = steps(graph, "f h -a f k -b -a");
  const std::vector<Lifetime> expected = {
      {builder.id("x"), 0, 6}, {builder.id("a"), 0, 2}, {builder.id("t"), 0, 3},  // replaced: both copies are there while f runs again
      {builder.id("b"), 1, 5}, {builder.id("a"), 3, 6}, {builder.id("t"), 3, 6}, {builder.id("g"), 4, 6},
  };
  EXPECT_EQ(lifetimes(graph, schedule), expected);
  EXPECT_EQ(find_reruns(graph, schedule), (std::vector<uint8_t>{0, 0, 0, 1, 0, 0, 0}));
}

TEST(Lifetimes, WhatIsHeldStaysAndWhatIsOverwrittenGoes) {
  Builder builder = small();
  {
    const Graph graph = builder.graph();
    const Schedule schedule = steps(graph, "f h -a k -t");
    EXPECT_EQ(lifetimes(graph, schedule)[1], (Lifetime{builder.id("a"), 0, 4}));  // held by t
  }
  builder.spec().values[2].holds.clear();
  const Graph graph = builder.graph();
  EXPECT_EQ(lifetimes(graph, steps(graph, "f h/a k"))[1], (Lifetime{builder.id("a"), 0, 0}));
}

TEST(Lifetimes, NoSteps) {
  EXPECT_TRUE(lifetimes(small().graph(), {}).empty());
  EXPECT_TRUE(find_reruns(small().graph(), {}).empty());
}

/// A schedule of random steps, each of them possible; it may end too early.
Schedule random_steps(Random& random, const Graph& graph, size_t length) {
  Schedule schedule;
  const auto values = static_cast<int64_t>(graph.values().size());
  const auto ops = static_cast<int64_t>(graph.ops().size());
  for (int attempt = 0; attempt < 400 && schedule.steps.size() < length; ++attempt) {
    Step step = Step::drop(static_cast<ValueId>(random.number(0, values - 1)));
    if (random.chance(70)) {
      const auto id = static_cast<OpId>(random.number(0, ops - 1));
      const Op& op = graph.op(id);
      step = op.overwrites.empty() || random.chance(30) ? Step::run(id) : Step::run_over(id, op.overwrites.front());
    }
    schedule.steps.push_back(step);
    const Simulation simulation = simulate(graph, schedule);
    if (simulation.error && simulation.error->step < schedule.steps.size()) schedule.steps.pop_back();
  }
  return schedule;
}

TEST(Lifetimes, AddUpToWhatTheSimulatorCounts) {
  size_t runs = 0;
  size_t in_place = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {static_cast<int>(random.number(2, 6)), 9, true}));
    const Schedule schedule = random_steps(random, graph, 30);
    const Simulation simulation = simulate(graph, schedule);
    const std::vector<Lifetime> lives = lifetimes(graph, schedule);
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
      int64_t bytes = 0;
      for (const Lifetime& life : lives)
        if (life.first_step <= i && i <= life.last_step) bytes += graph.value(life.value).bytes;
      const Step& step = schedule.steps[i];
      if (step.is_run()) bytes += graph.op(step.op()).workspace_bytes;
      ASSERT_EQ(bytes, simulation.moment_bytes[i]) << "seed " << seed << ", step " << i;
      runs += step.is_run() ? 1U : 0U;
      in_place += step.is_over() ? 1U : 0U;
    }
  }
  EXPECT_GT(runs, 3000U);
  EXPECT_GT(in_place, 30U);
}

}  // namespace
}  // namespace headroom
