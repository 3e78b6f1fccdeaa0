#include "headroom/core/lifetimes.h"

#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;
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
      {builder.id("x"), 0, 6}, {builder.id("a"), 0, 2}, {builder.id("t"), 0, 3},  // replaced: both copies are live during the rerun of f
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

TEST(Lifetimes, WhatAnOverwrittenInputHeldIsInMemoryDuringTheRun) {
  // r writes a(4) and the tape t(2), which holds a; k writes g(2) in the place of t.
  Builder builder("tape");
  builder.resident("x", 0).value("a", 4).value("t", 2).value("g", 2);
  builder.op("r", 1, {"x"}, {"a", "t"});
  builder.op("k", 1, {"t"}, {"g"}).overwrites = {builder.id("t")};
  builder.holds("t", {"a"}).outputs({"g"});
  const Graph graph = builder.graph();
  const Schedule schedule = steps(graph, "r -a k/t");
  const std::vector<Lifetime> expected = {
      {builder.id("x"), 0, 2}, {builder.id("a"), 0, 2}, {builder.id("t"), 0, 1}, {builder.id("g"), 2, 2}};
  EXPECT_EQ(lifetimes(graph, schedule), expected);
  EXPECT_EQ(simulate(graph, schedule).moment_bytes[2], 4 + 2);  // a, and g in the place of t
}

TEST(Lifetimes, NoSteps) {
  EXPECT_TRUE(lifetimes(small().graph(), {}).empty());
  EXPECT_TRUE(find_reruns(small().graph(), {}).empty());
}

}  // namespace
}  // namespace headroom::internal
