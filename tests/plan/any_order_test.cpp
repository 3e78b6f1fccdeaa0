#include "headroom/plan/auto/any_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/auto/search/search.h"
#include "headroom/plan/auto/starts.h"
#include "headroom/plan/planners.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Random;

/// Returns a step of `count` ops that each read up to two outputs of earlier ops, of 1 to 20 bytes. The outputs that no op
/// reads are those of the step. Most of its ops can run in another order.
Graph layered_graph(Random& random, int count) {
  GraphSpec spec;
  spec.name = "layered";
  std::vector<uint8_t> is_read(static_cast<size_t>(count), 0);
  for (int i = 0; i < count; ++i) {
    spec.values.push_back({"v" + std::to_string(i), random.number(1, 20), false, {}});
    Op op;
    op.name = "f" + std::to_string(i);
    op.time_ns = random.number(1, 9);
    op.outputs = {ValueId{i}};
    for (int k = 0; k < 2 && i > 0; ++k) {
      const auto id = static_cast<ValueId>(random.number(std::max(0, i - 12), i - 1));
      if (std::ranges::find(op.inputs, id) == op.inputs.end()) op.inputs.push_back(id);
      is_read[index(id)] = 1;
    }
    spec.ops.push_back(op);
  }
  for (int i = 0; i < count; ++i)
    if (is_read[static_cast<size_t>(i)] == 0) spec.outputs.push_back(ValueId{i});
  return Graph(spec);
}

std::vector<int32_t> sorted(std::vector<int32_t> runs) {
  std::ranges::sort(runs);
  return runs;
}

TEST(AnyOrder, IsFreeWhereNothingAsksForTheOrder) {
  const std::string chain = "graph g\nop f 1: -> a=1\nop g 1: a -> b=1\nop h 1: b a -> c=1\noutputs c\n";
  EXPECT_FALSE(has_order_freedom(parse_graph_text(chain)));
  EXPECT_TRUE(
      has_order_freedom(parse_graph_text("graph g\nop f 1: -> a=1\nop g 1: -> b=1\nop h 1: b a -> c=1\noutputs c\n")));
  EXPECT_FALSE(has_order_freedom(
      parse_graph_text("graph g\nop f 1: -> a=1 order=0\nop g 1: order -> b=1\nop h 1: b a -> c=1\noutputs c\n")))
      << "a value of 0 bytes keeps f before g";
  EXPECT_FALSE(
      has_order_freedom(parse_graph_text("graph g\nop f 1: -> a=1\nop g 1: -> b=1\nop h 1: a -> c=1\noutputs c\n")))
      << "no schedule has to run g";
}

// b is live from fb to bg. Sinking fb to before bg leaves 8 + 1 bytes for fs instead of 8 + 8 + 1.
TEST(Reordering, SinksARunToItsFirstReader) {
  const Graph graph = parse_graph_text(
      "graph g\nop fa 5: -> a=8\nop fb 5: -> b=8\nop fs 1: a -> s=1\nop bg 1: b s -> g=1\noutputs g\n");
  const FlatGraph flat(graph);
  RunSearch search(flat);
  search.assign({0, 1, 2, 3});
  EXPECT_EQ(search.timeline().peak_bytes(), 17);
  search.reorder(10);
  EXPECT_EQ(search.timeline().runs(), (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(search.timeline().peak_bytes(), 10);
}

// d (9) is live while big (10) is. Within 19 bytes both c and d are made after s: d alone would leave c (9) in its place.
TEST(Reordering, SinksABranch) {
  const Graph graph = parse_graph_text(
      "graph g\nop c 1: -> c=9\nop d 1: c -> d=9\nop big 1: -> big=10\nop s 1: big -> s=1\n"
      "op out 1: d s -> out=1\noutputs out\n");
  const FlatGraph flat(graph);
  RunSearch search(flat);
  search.assign({0, 1, 2, 3, 4});
  EXPECT_EQ(search.timeline().peak_bytes(), 20);  // d, big and s
  search.reorder(19);
  EXPECT_EQ(search.timeline().runs(), (std::vector<int32_t>{2, 3, 0, 1, 4}));
  EXPECT_EQ(search.timeline().peak_bytes(), 19);  // s, c and d
}

TEST(Reordering, KeepsTheRunsAndNeverRaisesThePeak) {
  int lower = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const Graph graph = seed % 2 == 0 ? layered_graph(random, static_cast<int>(random.number(5, 60)))
                                      : Graph(testing::random_graph(random, {.forward_ops = 8}));
    const FlatGraph flat(graph);
    const std::vector<int32_t> base = runs_of(store_all(graph));
    RunSearch search(flat);
    search.assign(base);
    const int64_t before_bytes = search.timeline().peak_bytes();
    search.reorder(before_bytes * 9 / 10);
    const std::string where = "seed " + std::to_string(seed) + "\n" + to_text(graph);
    ASSERT_EQ(sorted(search.timeline().runs()), sorted(base)) << where;
    const Simulation result = simulate(graph, search.timeline().schedule());
    ASSERT_FALSE(result.error) << where << result.error->message;
    ASSERT_EQ(result.peak_bytes, search.timeline().peak_bytes()) << where;
    lower += result.peak_bytes < before_bytes ? 1 : 0;
  }
  EXPECT_GT(lower, 20);
}

/// Returns a step of ops with two outputs each, which read outputs of earlier ops, and runs of it: every op once, and
/// `reruns` of them once more at a random later position.
std::pair<Graph, std::vector<int32_t>> random_runs(Random& random, int count, int reruns) {
  GraphSpec spec;
  spec.name = "pairs";
  std::vector<int32_t> runs;
  for (int i = 0; i < count; ++i) {
    Op op;
    op.name = "f" + std::to_string(i);
    op.time_ns = 1;
    for (int k = 0; k < 2; ++k) {
      op.outputs.push_back(ValueId{2 * i + k});
      spec.values.push_back({"v" + std::to_string(2 * i + k), random.number(1, 20), false, {}});
      const auto id = static_cast<ValueId>(random.number(0, std::max(1, 2 * i) - 1));
      if (i > 0 && std::ranges::find(op.inputs, id) == op.inputs.end()) op.inputs.push_back(id);
    }
    spec.ops.push_back(op);
    runs.push_back(i);
  }
  spec.outputs = {ValueId{2 * count - 1}};
  for (int i = 0; i < reruns; ++i) {
    const int64_t first = random.number(0, std::ssize(runs) - 1);
    const int64_t again = random.number(first + 1, std::ssize(runs));
    runs.insert(runs.begin() + again, runs[static_cast<size_t>(first)]);
  }
  return {Graph(spec), runs};
}

TEST(Reordering, KeepsSequencesWithRerunsValid) {
  for (uint64_t seed = 1; seed <= 6000; ++seed) {
    Random random(seed);
    const auto [graph, runs] = random_runs(random, static_cast<int>(4 + seed % 20), static_cast<int>(1 + seed % 7));
    const FlatGraph flat(graph);
    RunSearch search(flat);
    search.assign(runs);
    for (const int percent : {95, 80, 50}) {
      search.reorder(search.timeline().peak_bytes() * percent / 100);
      for (int32_t p = 0; p < search.timeline().size(); ++p)
        ASSERT_TRUE(search.timeline().is_ready(search.timeline().run(p), p))
            << "seed " << seed << ", target " << percent << " %, run " << p << "\n"
            << to_text(graph);
    }
  }
}

TEST(ListOrders, AreValidOrdersOfTheSameRuns) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const Graph graph = layered_graph(random, static_cast<int>(random.number(2, 60)));
    const std::vector<int32_t> base = runs_of(store_all(graph));
    for (const bool backwards : {false, true}) {
      const std::vector<int32_t> order = greedy_order(FlatGraph(graph), base, backwards);
      ASSERT_EQ(sorted(order), sorted(base)) << "seed " << seed << "\n" << to_text(graph);
      std::vector<OpId> ops;
      for (const int32_t op : order) ops.push_back(static_cast<OpId>(op));
      ASSERT_FALSE(simulate(graph, with_drops(graph, ops)).error) << "seed " << seed << "\n" << to_text(graph);
    }
  }
}

// The classes are compared at budgets of all sizes on graphs that are too large for proofs.
TEST(AnyOrder, IsNeverWorseThanWithTheOrderKept) {
  int faster = 0;
  int smaller = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const Problem problem = make_problem(layered_graph(random, static_cast<int>(random.number(45, 90))));
    for (const Effort effort : {Effort::kLow, Effort::kNormal}) {
      int64_t last_ns = 0;
      for (int percent = 100; percent >= 30; percent -= 5) {
        const int64_t budget_bytes = problem.base_peak_bytes * percent / 100;
        PlanRequest request{budget_bytes, {.effort = effort, .threads = 1}};
        const Plan any = make_plan(default_planner(), problem, request);
        request.limits.keep_order = true;
        const Plan kept = make_plan(default_planner(), problem, request);
        const std::string where = "seed " + std::to_string(seed) + ", " + std::to_string(percent) + " %\n";
        ASSERT_LE(any.result.lower_bound_ns, kept.result.lower_bound_ns) << where;
        ASSERT_LE(any.result.smallest_budget_bytes, kept.result.smallest_budget_bytes) << where;
        smaller += any.result.smallest_budget_bytes < kept.result.smallest_budget_bytes ? 1 : 0;
        ASSERT_TRUE(any.time_ns || !kept.time_ns) << where;
        if (!any.time_ns) continue;
        ASSERT_GE(*any.time_ns, last_ns) << where;
        last_ns = *any.time_ns;
        ASSERT_LE(any.result.lower_bound_ns, *any.time_ns) << where;
        if (!kept.time_ns) continue;
        ASSERT_LE(*any.time_ns, *kept.time_ns) << where;
        faster += *any.time_ns < *kept.time_ns ? 1 : 0;
      }
    }
  }
  EXPECT_GT(faster, 50);
  EXPECT_GT(smaller, 50);
}

}  // namespace
}  // namespace headroom::internal
