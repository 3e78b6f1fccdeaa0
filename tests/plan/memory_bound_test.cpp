#include "headroom/plan/bounds/memory_bound.h"

#include <gtest/gtest.h>

#include "headroom/io/text.h"

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

}  // namespace
}  // namespace headroom::internal
