#include "headroom/plan/graph/segments.h"

#include <gtest/gtest.h>

#include <random>

#include "headroom/core/chain.h"
#include "headroom/core/simulate.h"
#include "tests/plan/training_step.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::ForwardSpec;
using testing::path;
using testing::training_step;

std::string names(const Graph& graph, const std::vector<OpId>& runs) {
  std::string out;
  for (const OpId id : runs) out += (out.empty() ? "" : " ") + graph.op(id).name;
  return out;
}

std::string runs_of(const Graph& graph, const Segments& segments) {
  const ForwardGraph forward = forward_graph(graph, "test");
  const Schedule schedule = segment_schedule(graph, forward, segments);
  const auto error = verify(graph, schedule);
  EXPECT_FALSE(error) << error->message;
  return names(graph, segment_runs(graph, forward, segments));
}

TEST(Segments, OfAPath) {
  const Graph graph(training_step(path({1, 1, 1, 1, 1})));
  // One segment: store-all.
  EXPECT_EQ(runs_of(graph, {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, 0}), "f0 f1 f2 f3 f4 b4 b3 b2 b1 b0");
  // b2 reads a1 and a2; a2 is kept, so a1 and a0 are recomputed before it.
  EXPECT_EQ(runs_of(graph, {{0, 0, 0, 1, 1}, {0, 0, 1, 0, 0}, 1}), "f0 f1 f2 f3 f4 b4 b3 f0 f1 b2 b1 b0");
  EXPECT_EQ(runs_of(graph, {{0, 0, 1, 1, 2}, {0, 1, 0, 1, 0}, 2}), "f0 f1 f2 f3 f4 b4 f2 b3 b2 f0 b1 b0");
  // All kept: store-all.
  EXPECT_EQ(runs_of(graph, {{0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, 4}), "f0 f1 f2 f3 f4 b4 b3 b2 b1 b0");
  // Nothing kept: b3 needs values of other segments, which run as a whole.
  EXPECT_EQ(runs_of(graph, {{0, 0, 1, 1, 2}, {0, 0, 0, 0, 0}, 2}), "f0 f1 f2 f3 f4 f0 f1 f2 f3 b4 b3 b2 b1 b0");
}

TEST(Segments, OfBranches) {
  // 0 -> 1 -> 3, 0 -> 2 -> 3, with the branches in separate segments.
  const Graph graph(training_step(ForwardSpec{{1, 1, 1, 1}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {}}));
  EXPECT_EQ(runs_of(graph, {{0, 1, 2, 3}, {1, 0, 0, 0}, 3}), "f0 f1 f2 f3 f1 f2 b3 b2 b1 b0");
  EXPECT_EQ(runs_of(graph, {{0, 1, 2, 2}, {1, 0, 0, 0}, 2}), "f0 f1 f2 f3 f1 b3 b2 b1 b0");
}

TEST(Segments, OfAChainRecordWhenMadeAgain) {
  Chain chain;
  chain.name = "chain";
  for (int i = 1; i <= 4; ++i)
    chain.stages.push_back({.name = "s" + std::to_string(i), .output_bytes = 1, .tape_bytes = 3});
  const Graph graph = to_graph(chain);
  EXPECT_EQ(runs_of(graph, {{0, 0, 1, 1}, {0, 1, 0, 0}, 1}), "F1 F2 R3 R4 B4 B3 R1 R2 B2 B1");
  EXPECT_EQ(runs_of(graph, {{0, 0, 0, 0}, {0, 0, 0, 0}, 0}), "R1 R2 R3 R4 B4 B3 B2 B1");
  EXPECT_EQ(runs_of(graph, {{0, 1, 2, 3}, {1, 1, 1, 0}, 3}), "F1 F2 F3 R4 B4 R3 B3 R2 B2 R1 B1");
}

TEST(Segments, AnOpThatRunsOnceStays) {
  GraphSpec spec = training_step(path({1, 1, 1}));
  spec.ops[1].recompute = false;
  EXPECT_EQ(runs_of(Graph(spec), {{0, 0, 1}, {0, 0, 0}, 1}), "f0 f1 f2 b2 f0 b1 b0");
}

TEST(Segments, AStepOutputStays) {
  GraphSpec spec = training_step(path({1, 1, 1}));
  spec.outputs.push_back(value_id(1));
  EXPECT_EQ(runs_of(Graph(spec), {{0, 0, 1}, {0, 0, 0}, 1}), "f0 f1 f2 f1 b2 b1 b0");
}

TEST(Segments, WhatOnlyBackwardReadsWaitsForIt) {
  // 0 -> 1 -> 2 and 0 -> 3 with nothing forward after 3.
  const Graph graph(training_step(ForwardSpec{{1, 1, 1, 1}, {{0, 1}, {0, 3}, {1, 2}}, {}}));
  EXPECT_EQ(runs_of(graph, {{0, 1, 1, 2}, {1, 0, 0, 0}, 1}), "f0 f1 f2 f3 b3 b2 b1 b0");
  // In the last segment it is recorded at once, but after f1 and f2, because first runs keep the base order. If it is
  // kept, it runs at once.
  EXPECT_EQ(runs_of(graph, {{0, 1, 1, 2}, {1, 0, 0, 0}, 2}), "f0 f1 f2 f3 b3 f1 f2 b2 b1 b0");
  EXPECT_EQ(runs_of(graph, {{0, 1, 1, 2}, {1, 0, 0, 1}, 1}), "f0 f1 f2 f3 b3 b2 b1 b0");
}

TEST(Segments, ForwardBetweenBackward) {
  GraphSpec spec = training_step(path({1, 1, 1}));
  spec.values.push_back({.name = "e", .bytes = 1, .holds = {}});
  const ValueId e = value_id(spec.values.size() - 1);
  Op early{.name = "early", .phase = Phase::kBackward, .inputs = {value_id(3)}, .outputs = {e}, .overwrites = {}};
  spec.ops.insert(spec.ops.begin() + 2, early);
  spec.outputs.push_back(e);
  // f2 has not run when `early` needs a1, and runs for b2, which reads a2.
  EXPECT_EQ(runs_of(Graph(spec), {{0, 0, 0}, {0, 0, 0}, 1}), "f0 f1 early f2 b2 b1 b0");
  // Forward computes a1 for f2, whose output is kept; `early` and all later ops read the recomputed a1.
  EXPECT_EQ(runs_of(Graph(spec), {{0, 0, 0}, {0, 0, 1}, 1}), "f0 f1 f0 f1 early f2 b2 b1 b0");
}

TEST(Segments, AnyChoiceIsValid) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    testing::Random random(seed);
    const GraphSpec spec = testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 9))});
    const Graph graph(spec);
    const ForwardGraph forward = forward_graph(graph, "test");
    Segments segments;
    const int count = static_cast<int>(random.number(1, forward.size()));
    for (int v = 0; v < forward.size(); ++v) {
      segments.segment.push_back(static_cast<int>(random.number(0, count - 1)));
      segments.keep.push_back(random.chance(40) ? 1 : 0);
    }
    segments.last = static_cast<int>(random.number(0, count));
    const auto error = verify(graph, segment_schedule(graph, forward, segments));
    ASSERT_FALSE(error) << "seed " << seed << ": step " << error->step << ", " << error->message;
  }
}

TEST(Segments, KeepingAllIsPlainTraining) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const ForwardSpec spec = testing::random_forward(random, 2 + static_cast<int>(random() % 10), 30, 9, false);
    const Graph graph(training_step(spec));
    const ForwardGraph forward = forward_graph(graph, "test");
    const auto n = static_cast<size_t>(forward.size());
    std::vector<int> segment(n);
    for (int& s : segment) s = static_cast<int>(random() % n);
    EXPECT_EQ(segment_schedule(graph, forward, {segment, std::vector<uint8_t>(n, 1), 0}), store_all(graph))
        << spec.text();
  }
}

TEST(Segments, LongPathsDoNotRecurse) {
  const int n = 50'000;
  const Graph graph(training_step(path(std::vector<int64_t>(static_cast<size_t>(n), 1))));
  const ForwardGraph forward = forward_graph(graph, "test");
  Segments segments;
  for (int v = 0; v < n; ++v) {
    segments.segment.push_back(v / 500);
    segments.keep.push_back(v % 500 == 499 ? 1 : 0);
  }
  segments.last = segments.segment.back();
  // All segments but the last rerun, without their kept ends.
  EXPECT_EQ(segment_runs(graph, forward, segments).size(), static_cast<size_t>(2 * n + (n - 500) / 500 * 499));
}

}  // namespace
}  // namespace headroom::internal
