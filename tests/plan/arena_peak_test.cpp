#include "headroom/plan/place/arena_peak.h"

#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "tests/claims/inputs.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using testing::steps;

TEST(ArenaPeak, ByHand) {
  Builder builder("step");
  builder.resident("x", 1000).value("a", 70).value("b", 100).value("y", 30).value("dy", 30).value("db", 100);
  builder.value("dx", 500).value("end", 0);
  builder.op("f", 1, {"x"}, {"a"}).workspace_bytes = 10;
  builder.op("g", 1, {"a"}, {"b"});
  builder.op("h", 1, {"b"}, {"y"});
  builder.op("rest", 1, {"y"}, {"dy"}).workspace_bytes = 5;
  builder.op("hb", 1, {"b", "dy"}, {"db"}).phase = Phase::kBackward;
  builder.op("fb", 1, {"a", "db"}, {"dx"}).phase = Phase::kBackward;
  builder.op("sum", 1, {"dx"}, {"end"}).phase = Phase::kBackward;
  builder.spec().ops[3].phase = Phase::kBackward;
  builder.spec().ops[6].workspace_bytes = 400;
  builder.outputs({"y", "dx", "end"});
  const Graph graph = builder.graph();
  const Schedule schedule = steps(graph, "f g h rest hb -b -dy fb -a -db sum");
  const std::vector<bool> is_outside = {false, false, false, true, false, false, true};
  // In the arena lie a, b, db and the workspace of f. They need most during hb: a, b and db, 270. Aligned to 64, the two
  // larger ones take 128 each and the last one ends at its own size: 128 + 128 + 70.
  // Beside it at the peak are y and dx, 530. During the sum, 530 and its workspace, without the arena.
  const ArenaPeak exact = find_arena_peak(graph, schedule, is_outside, 1);
  EXPECT_EQ(exact.arena_bytes, 270);
  EXPECT_EQ(exact.peak_bytes, 1000 + 530 + 400);
  const ArenaPeak aligned = find_arena_peak(graph, schedule, is_outside, 64);
  EXPECT_EQ(aligned.arena_bytes, 326);
  EXPECT_EQ(aligned.peak_bytes, 1000 + 530 + 400);
  builder.spec().ops[6].workspace_bytes = 0;
  EXPECT_EQ(find_arena_peak(builder.graph(), schedule, is_outside, 64).peak_bytes, 1000 + 530 + 326);
}

/// The arena is there at the peak, so no step takes less with it; without ops outside, no more than all together.
TEST(ArenaPeak, IsBetweenThePeakAndTheSumOfTheArenaAndWhatIsLeft) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const testing::Input input = testing::random_input(seed);
    if (input.chain) continue;
    const Graph graph(input.graph);
    const Schedule schedule = store_all(graph);
    const Simulation simulation = simulate(graph, schedule);
    const ArenaPeak found = find_arena_peak(graph, schedule, std::vector<bool>(graph.ops().size(), false), 1);
    EXPECT_GE(found.peak_bytes, simulation.peak_bytes) << "seed " << seed;
    EXPECT_LE(found.peak_bytes, found.arena_bytes + simulation.after_bytes.back()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace headroom::internal
