#include "headroom/plan/bounds/memory_bound.h"

#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/bounds/time_bound.h"
#include "headroom/plan/exact/exhaustive.h"
#include "tests/claims/inputs.h"

namespace headroom::internal {
namespace {

// b3 reads a2 and a3, b2 reads a1. While b3 runs, a2, a3 and g2 take 12 bytes, and a1 is needed later: keeping it takes 10
// bytes, recomputing it 5 ns, half a nanosecond per byte. Within 20 bytes there is room for 8 of them, which costs at least
// 1 ns. Within 19 there is no room for f2.
TEST(MemoryBound, ByHand) {
  const Graph graph = parse_graph_text(R"(
    graph three
    value x 0 resident
    op f1 5: x -> a1=10
    op f2 6: a1 -> a2=10
    op f3 7: a2 -> a3=1
    op b3 1 backward: a2 a3 -> g2=1
    op b2 1 backward: g2 a1 -> g1=1
    op b1 1 backward: g1 x -> g0=1
    outputs g0
  )");
  EXPECT_EQ(memory_bound(graph, 22).time_ns, 21);
  EXPECT_EQ(memory_bound(graph, 21).time_ns, 22) << "0.5, and times are whole";
  EXPECT_EQ(memory_bound(graph, 20).time_ns, 22);
  EXPECT_FALSE(memory_bound(graph, 19).is_feasible);
}

// While s runs, u and v are live beside a. In base order b (20 bytes) has been made before, and r, which is listed after s,
// reads it: 4 + 1 + 20 bytes, or b is recomputed, which takes 5 ns more. In any order b is made after s.
TEST(MemoryBound, HasNoCostForWhatCanRunLater) {
  const Graph graph = parse_graph_text(R"(
    graph branches
    op a 1: -> u=4
    op b 5: -> w=20
    op s 1: u -> v=1
    op r 1: v w -> out=1
    outputs out
  )");
  for (const bool keep_order : {false, true}) {
    const MemoryBoundParameters parameters{.keep_order = keep_order};
    EXPECT_EQ(memory_bound(graph, 25, parameters).time_ns, 8);
    EXPECT_EQ(memory_bound(graph, 24, parameters).time_ns, keep_order ? 9 : 8) << "1/4 of 5 ns, rounded up";
    EXPECT_EQ(memory_bound(graph, 22, parameters).time_ns, keep_order ? 9 : 8);
    EXPECT_FALSE(memory_bound(graph, 21, parameters).is_feasible) << "r needs 22 bytes";
  }
}

// The bounds of both classes are at most the times that a search over all schedules of the class finds.
TEST(MemoryBound, IsAtMostTheOptimum) {
  int tight = 0;
  int differ = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const testing::Input input = testing::random_input(seed);
    if (input.chain || !is_exhaustible(Graph(input.graph))) continue;
    const Graph graph(input.graph);
    const int64_t peak_bytes = simulate(graph, store_all(graph)).peak_bytes;
    for (int64_t budget_bytes = peak_bytes / 3; budget_bytes <= peak_bytes; budget_bytes += 2) {
      int64_t bounds_ns[2] = {0, 0};
      for (const bool keep_order : {false, true}) {
        const MemoryBound bound = memory_bound(graph, budget_bytes, {.keep_order = keep_order, .max_cuts = 100});
        const PlanResult best =
            plan_exhaustive(graph, {budget_bytes, {.max_states = 20'000, .keep_order = keep_order}});
        const std::string where =
            "seed " + std::to_string(seed) + ", budget " + std::to_string(budget_bytes) + "\n" + to_text(graph);
        ASSERT_TRUE(bound.is_feasible || best.status != PlanStatus::kOptimal) << where;
        bounds_ns[keep_order ? 1 : 0] = bound.time_ns;
        if (best.status != PlanStatus::kOptimal) continue;
        ASSERT_LE(bound.time_ns, best.lower_bound_ns) << where << "keep_order " << keep_order;
        tight += bound.time_ns == best.lower_bound_ns && bound.time_ns > time_lower_bound_ns(graph) ? 1 : 0;
      }
      differ += bounds_ns[0] < bounds_ns[1] ? 1 : 0;
    }
  }
  EXPECT_GT(tight, 15);
  EXPECT_GT(differ, 10);
}

}  // namespace
}  // namespace headroom::internal
