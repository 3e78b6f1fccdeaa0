#include "headroom/core/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/chain.h"
#include "headroom/core/error.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::steps;

/// The graph of docs/formats.md: x(8, resident) -f1-> a(4) -f2-> loss(4); b2: a, loss -> ga(4); b1: ga, x -> gw(2).
Builder tiny() {
  Builder builder("tiny");
  builder.resident("x", 8).value("a", 4).value("loss", 4).value("ga", 4).value("gw", 2);
  builder.op("f1", 5, {"x"}, {"a"});
  builder.op("f2", 3, {"a"}, {"loss"});
  builder.op("b2", 6, {"a", "loss"}, {"ga"}).recompute = false;
  builder.op("b1", 6, {"ga", "x"}, {"gw"});
  builder.outputs({"loss", "gw"});
  return builder;
}

std::string fault(const Graph& graph, const std::string& words) {
  const std::optional<ScheduleError> error = verify(graph, steps(graph, words));
  return error ? std::to_string(error->step) + ": " + error->message : "";
}

TEST(Simulate, CountsTheFormatsExample) {
  const Graph graph = tiny().graph();
  const Simulation result = simulate(graph, steps(graph, "f1 f2 b2 -a b1 -ga"));
  EXPECT_FALSE(result.error);
  // f1: 8+4; f2: 12+4; b2: 16+4; drop a: 20 before, 16 after; b1: 16+2; drop ga: 18 before, 14 after.
  EXPECT_THAT(result.moment_bytes, ElementsAre(12, 16, 20, 20, 18, 18));
  EXPECT_THAT(result.after_bytes, ElementsAre(12, 16, 20, 16, 18, 14));
  EXPECT_EQ(result.peak_bytes, 20);
  EXPECT_EQ(result.peak_step, 2U);
  EXPECT_EQ(result.time_ns, 5 + 3 + 6 + 6);
}

TEST(Simulate, StoreAllIsThatExample) {
  const Graph graph = tiny().graph();
  EXPECT_EQ(store_all(graph), steps(graph, "f1 f2 b2 -a b1 -ga"));
}

TEST(Simulate, ARunOfALivingValueHasBothCopiesInItsMoment) {
  const Graph graph = tiny().graph();
  const Simulation result = simulate(graph, steps(graph, "f1 f1 f2 b2 b1"));
  EXPECT_FALSE(result.error);
  // The second f1: 8 + old a 4 + new a 4 = 16, then 12 again.
  EXPECT_EQ(result.moment_bytes[1], 16);
  EXPECT_EQ(result.after_bytes[1], 12);
  EXPECT_EQ(result.time_ns, 5 + 5 + 3 + 6 + 6);
}

TEST(Simulate, WorkspaceCountsDuringTheRunOnlyAndMayBeNegative) {
  Builder builder = tiny();
  builder.spec().ops[0].workspace_bytes = 100;
  builder.spec().ops[1].workspace_bytes = -3;
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "f1 f2 b2 b1"));
  EXPECT_THAT(result.moment_bytes, ElementsAre(112, 13, 20, 22));
  EXPECT_THAT(result.after_bytes, ElementsAre(12, 16, 20, 22));
  EXPECT_EQ(result.peak_bytes, 112);
}

TEST(Simulate, PeakIsAtLeastWhatIsResident) {
  Builder builder("back");
  builder.resident("x", 10).value("a", 1);
  builder.op("f", 1, {"x"}, {"a"}).workspace_bytes = -5;
  builder.outputs({"a"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "f"));
  EXPECT_THAT(result.moment_bytes, ElementsAre(6));
  EXPECT_EQ(result.peak_bytes, 10);
}

TEST(Simulate, EmptySchedule) {
  Builder builder("nothing");
  builder.resident("x", 10).outputs({"x"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, Schedule{});
  EXPECT_FALSE(result.error);
  EXPECT_EQ(result.peak_bytes, 10);
  EXPECT_FALSE(result.peak_step);
}

TEST(Simulate, AHeldCopyCountsUntilItsHolderGoes) {
  // r writes a(4) and the tape t(1), which holds a; b reads t.
  Builder builder("tape");
  builder.resident("x", 0).value("a", 4).value("t", 1).value("g", 2);
  builder.op("r", 1, {"x"}, {"a", "t"});
  builder.op("b", 1, {"t"}, {"g"});
  builder.holds("t", {"a"}).outputs({"g"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "r -a b -t"));
  EXPECT_FALSE(result.error);
  EXPECT_THAT(result.after_bytes, ElementsAre(5, 5, 7, 2));
  EXPECT_THAT(alive_during(graph, steps(graph, "r -a b -t"), 2),
              ElementsAre(builder.id("x"), builder.id("a"), builder.id("t"), builder.id("g")));
}

TEST(Simulate, ATapeHoldsTheCopyThatItsRunSaw) {
  // f writes a(4); r reads a and writes the tape t(1), which holds a.
  Builder builder("old");
  builder.resident("x", 0).value("a", 4).value("t", 1).value("g", 0);
  builder.op("f", 1, {"x"}, {"a"});
  builder.op("r", 1, {"a"}, {"t"});
  builder.op("b", 1, {"a", "t"}, {"g"});
  builder.holds("t", {"a"}).outputs({"g"});
  const Graph graph = builder.graph();
  // f: a' 4; r: +1; f again: a'' beside a', which t holds; dropping t frees a' and t; a'' stays.
  const Simulation result = simulate(graph, steps(graph, "f r f b -t -a"));
  EXPECT_FALSE(result.error);
  EXPECT_THAT(result.moment_bytes, ElementsAre(4, 5, 9, 9, 9, 4));
  EXPECT_THAT(result.after_bytes, ElementsAre(4, 5, 9, 9, 4, 0));
}

TEST(Simulate, ATapeMadeAgainLetsGoOfWhatTheOldOneHeld) {
  Builder builder("again");
  builder.resident("x", 0).value("a", 4).value("t", 1).value("g", 0);
  builder.op("r", 1, {"x"}, {"a", "t"});
  builder.op("b", 1, {"t"}, {"g"});
  builder.holds("t", {"a"}).outputs({"g"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "r -a r b"));
  EXPECT_THAT(result.moment_bytes, ElementsAre(5, 5, 10, 5));
  EXPECT_THAT(result.after_bytes, ElementsAre(5, 5, 5, 5));
}

TEST(Simulate, HoldingGoesThroughOtherHolders) {
  // u holds t, t holds a: while u lives, all three count.
  Builder builder("deep");
  builder.resident("x", 0).value("a", 4).value("t", 2).value("u", 1).value("g", 0);
  builder.op("r", 1, {"x"}, {"a", "t"});
  builder.op("s", 1, {"t"}, {"u"});
  builder.op("b", 1, {"u"}, {"g"});
  builder.holds("t", {"a"}).holds("u", {"t"}).outputs({"g"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "r s -a -t b -u"));
  EXPECT_FALSE(result.error);
  EXPECT_THAT(result.after_bytes, ElementsAre(6, 7, 7, 7, 7, 0));
}

TEST(Simulate, RunsInPlace) {
  // relu: a(4) -> r(4) in place, with a mask m(1) on the side.
  Builder builder("relu");
  builder.resident("x", 0).value("a", 4).value("r", 4).value("m", 1);
  builder.op("f", 1, {"x"}, {"a"});
  Op& relu = builder.op("relu", 1, {"a"}, {"r", "m"});
  relu.overwrites = {builder.id("a")};
  relu.workspace_bytes = 2;
  builder.outputs({"r", "m"});
  const Graph graph = builder.graph();
  const Simulation result = simulate(graph, steps(graph, "f relu/a"));
  EXPECT_FALSE(result.error);
  // 4 + mask 1 + workspace 2; afterwards r in a's place, and the mask.
  EXPECT_THAT(result.moment_bytes, ElementsAre(4, 7));
  EXPECT_THAT(result.after_bytes, ElementsAre(4, 5));
  EXPECT_THAT(alive_during(graph, steps(graph, "f relu/a"), 1),
              ElementsAre(builder.id("x"), builder.id("r"), builder.id("m")));
  EXPECT_THAT(fault(graph, "f relu/a -a"), HasSubstr("2: drop, value 'a': drops a value that is not alive"));
  EXPECT_THAT(fault(graph, "f relu relu/a"), HasSubstr("'r': runs in place although"));
  EXPECT_THAT(fault(graph, "f relu/x"), HasSubstr("'x': runs over a value that the op does not list"));
  EXPECT_THAT(fault(graph, "relu/a"), HasSubstr("'a': reads a value that is not alive"));
}

TEST(Simulate, DoesNotRunOverWhatIsHeld) {
  Builder builder("held");
  builder.resident("x", 0).value("a", 4).value("t", 1).value("r", 4).value("u", 0);
  builder.op("f", 1, {"x"}, {"a", "t"});
  builder.op("relu", 1, {"a"}, {"r"}).overwrites = {builder.id("a")};
  builder.op("tanh", 1, {"a"}, {"r", "u"}).overwrites = {builder.id("a")};
  builder.holds("t", {"a"}).holds("u", {"a"}).outputs({"r"});
  const Graph graph = builder.graph();
  EXPECT_THAT(fault(graph, "f relu/a"), HasSubstr("another value holds"));
  EXPECT_EQ(fault(graph, "f -t relu/a"), "");
  EXPECT_THAT(fault(graph, "f -t tanh/a"), HasSubstr("one of the op's outputs holds"));
}

TEST(Simulate, SaysWhatIsWrong) {
  const Graph graph = tiny().graph();
  EXPECT_EQ(fault(graph, "f2"), "0: run 'f2', value 'a': reads a value that is not alive");
  EXPECT_EQ(fault(graph, "f1 -x"), "1: drop, value 'x': drops a resident value");
  EXPECT_EQ(fault(graph, "f1 -a -a"), "2: drop, value 'a': drops a value that is not alive");
  EXPECT_EQ(fault(graph, "f1 f2 b2 b2"), "3: run 'b2': runs an op again that may run only once");
  EXPECT_EQ(fault(graph, "f1 f2 b2 b1 -loss"), "5: the step ends without its output, value 'loss'");
  EXPECT_EQ(simulate(graph, steps(graph, "f1 -x f2")).moment_bytes.size(), 1U);
}

TEST(Simulate, RefusesSumsThatDoNotFit) {
  Builder builder("big");
  builder.resident("x", 0).value("a", int64_t{1} << 62).value("t", 0);
  builder.op("f", int64_t{1} << 62, {"x"}, {"a"});
  builder.op("r", 0, {"x"}, {"a", "t"});
  builder.holds("t", {}).outputs({"a"});
  const Graph graph = builder.graph();
  EXPECT_EQ(simulate(graph, steps(graph, "f")).peak_bytes, int64_t{1} << 62);
  EXPECT_THROW(simulate(graph, steps(graph, "f f")), InvalidInput);     // 2^63 bytes in one moment
  EXPECT_THROW(simulate(graph, steps(graph, "f -a f")), InvalidInput);  // 2^63 ns
}

TEST(Simulate, AChainOfTwoByHand) {
  // docs/formats.md's "two" with its second stage given a size.
  Chain chain{"two", 100, 4, 0, {{"conv", 2, 4, 3, 8, 1, 2, 9}, {"loss", 1, 1, 2, 2, 0, 0, 0}}};
  const Graph graph = to_graph(chain);
  const Simulation result = simulate(graph, store_all(graph));
  EXPECT_FALSE(result.error);
  // Resident: w 100 + a0 4 + g2 2 = 106. R1: a1 3 + t1 5 + workspace 1 = 115. R2: 114 + a2 2 + t2 0 = 116.
  // B2: g1 3 + p2 0 = 119, then a2 and t2 go: 117. B1: g0 0 + p1 9 + workspace 2 = 128.
  EXPECT_EQ(result.peak_bytes, 128);
  EXPECT_EQ(result.time_ns, 2 + 1 + 1 + 4);
  EXPECT_EQ(result.after_bytes.back(), 106 + 9);
  EXPECT_EQ(store_all(graph), steps(graph, "R1 R2 B2 -t2 -a2 B1 -g1 -t1 -a1"));
}

}  // namespace
}  // namespace headroom::internal
