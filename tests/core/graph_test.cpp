#include "headroom/core/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"
#include "headroom/core/schedule.h"
#include "tests/support/build.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Builder two_ops() {
  Builder builder("g");
  builder.resident("x", 1).value("a", 2).value("b", 2);
  builder.op("f", 1, {"x"}, {"a"});
  builder.op("h", 1, {"a"}, {"b"});
  builder.outputs({"b"});
  return builder;
}

template <typename Change>
std::string problem_after(Change change) {
  Builder builder = two_ops();
  change(builder.spec());
  return lint(builder.spec()).value_or("");
}

TEST(Lint, TakesWhatIsRight) {
  EXPECT_EQ(lint(two_ops().spec()), std::nullopt);
  EXPECT_EQ(lint(GraphSpec{}), std::nullopt) << "a step in which nothing happens";
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    testing::Random random(seed);
    EXPECT_EQ(lint(testing::random_graph(random, {.forward_ops = 6})), std::nullopt) << "seed " << seed;
  }
}

TEST(Lint, Names) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[2].name = "a"; }), "two values are named 'a'");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].name = "f"; }), "two ops are named 'f'");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[1].name = ""; }), "value 1 has an empty name");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].name = ""; }), "op 1 has an empty name");
}

TEST(Lint, Ids) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].inputs = {ValueId{9}}; }),
            "op 'f': inputs: there is no value number 9");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.outputs = {ValueId{-1}}; }),
            "outputs of the graph: there is no value number -1");
  EXPECT_EQ(problem_after([](GraphSpec& s) {
              s.ops[1].inputs = {ValueId{1}, ValueId{1}};
            }),
            "op 'h': inputs: value 'a' is listed twice");
  EXPECT_EQ(problem_after([](GraphSpec& s) {
              s.outputs = {ValueId{2}, ValueId{2}};
            }),
            "outputs of the graph: value 'b' is listed twice");
}

TEST(Lint, Producers) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].outputs = {ValueId{0}}; }),
            "op 'f' writes value 'x', which is resident");
  EXPECT_EQ(problem_after([](GraphSpec& s) {
              s.values.push_back({"c", 1, false, {}});
            }),
            "value 'c' is neither resident nor written by any op");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].outputs.clear(); }), "op 'h': outputs must not be empty");
}

TEST(Lint, Order) {
  EXPECT_THAT(problem_after([](GraphSpec& s) { std::swap(s.ops[0], s.ops[1]); }),
              HasSubstr("op 'h' reads value 'a', which no earlier op writes"));
  EXPECT_THAT(problem_after([](GraphSpec& s) { s.ops[0].inputs = {ValueId{2}}; }),
              HasSubstr("op 'f' reads value 'b', which no earlier op writes"))
      << "a cycle";
  // k reads what h writes (b), and so does f, which h waits for.
  EXPECT_EQ(problem_after([](GraphSpec& s) {
              s.values.push_back({"c", 0, false, {}});
              s.ops[0].inputs = {ValueId{2}};
              s.ops.push_back(s.ops[1]);
              s.ops[2].name = "k";
              s.ops[2].inputs = {ValueId{2}};
              s.ops[2].outputs = {ValueId{3}};
            }),
            "op 'f' reads value 'b', which no earlier op writes, and no order is possible, because of a cycle of ops: "
            "'f' reads 'b' of 'h', 'h' reads 'a' of 'f'");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].outputs.push_back(ValueId{1}); }),
            "op 'h' both reads and writes value 'a'");
}

TEST(Lint, Overwrites) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].overwrites = {ValueId{1}}; }), "");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[1].overwrites = {ValueId{2}}; }),
            "op 'h': overwrites value 'b', which is not among its inputs");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].overwrites = {ValueId{0}}; }),
            "op 'f': overwrites value 'x', which is resident");
  EXPECT_EQ(problem_after([](GraphSpec& s) {
              s.values[2].bytes = 3;
              s.ops[1].overwrites = {ValueId{1}};
            }),
            "op 'h': overwrites value 'a', which has 2 bytes, not the 3 of its first output 'b'");
}

TEST(Lint, Holds) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[2].holds = {ValueId{1}}; }), "");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[2].holds = {ValueId{0}}; }),
            "value 'b' holds value 'x', which its producer op 'h' neither reads nor writes");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[0].holds = {ValueId{1}}; }),
            "value 'x': holds must be empty for a resident value");
  EXPECT_THAT(problem_after([](GraphSpec& s) { s.values[2].holds = {ValueId{2}}; }), HasSubstr("holds itself"));
  EXPECT_THAT(problem_after([](GraphSpec& s) {
                s.values.push_back({"c", 1, false, {ValueId{2}}});
                s.values[2].holds = {ValueId{3}};
                s.ops[1].outputs.push_back(ValueId{3});
              }),
              HasSubstr("holds itself"));
}

TEST(Lint, Numbers) {
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[1].bytes = -1; }),
            "value 'a': bytes must not be negative, found -1");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].time_ns = -5; }),
            "op 'f': time_ns must not be negative, found -5");
  constexpr int64_t kHalf = int64_t{1} << 62;
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[1].bytes = s.values[2].bytes = kHalf; }),
            "the bytes of all values and workspaces do not fit 64 bits");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].workspace_bytes = s.ops[1].workspace_bytes = -kHalf; }),
            "the bytes of all values and workspaces do not fit 64 bits");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.ops[0].time_ns = s.ops[1].time_ns = kHalf; }),
            "the times of all ops do not fit 64 bits");
  EXPECT_EQ(problem_after([](GraphSpec& s) { s.values[1].bytes = kHalf; }), "");
}

TEST(Graph, ThrowsWhatLintFinds) {
  Builder builder = two_ops();
  builder.spec().values[1].bytes = -1;
  EXPECT_THROW(builder.graph(), InvalidInput);
}

TEST(Graph, KnowsWhoWritesReadsAndHolds) {
  Builder builder = two_ops();
  builder.op("k", 1, {"x"}, {"a"});
  builder.holds("b", {"a"});
  const Graph graph = builder.graph();
  EXPECT_THAT(graph.producers(builder.id("a")), ElementsAre(OpId{0}, OpId{2}));
  EXPECT_THAT(graph.consumers(builder.id("x")), ElementsAre(OpId{0}, OpId{2}));
  EXPECT_THAT(graph.consumers(builder.id("b")), ElementsAre());
  EXPECT_THAT(graph.holders(builder.id("a")), ElementsAre(builder.id("b")));
  EXPECT_EQ(graph.resident_bytes(), 1);
  EXPECT_TRUE(graph.is_output(builder.id("b")));
  EXPECT_FALSE(graph.is_output(builder.id("a")));
}

TEST(BaseOps, LeavesOutWhatIsNotNeededAndTakesTheLastProducer) {
  Builder builder = two_ops();
  builder.value("idle", 1);
  builder.op("idle", 1, {"x"}, {"idle"});
  EXPECT_THAT(base_ops(builder.graph()), ElementsAre(OpId{0}, OpId{1}));

  Builder twice("twice");
  twice.resident("x", 1).value("a", 2).value("b", 2);
  twice.op("f", 1, {"x"}, {"a"});
  twice.op("r", 1, {"x"}, {"a"});
  twice.op("h", 1, {"a"}, {"b"});
  twice.op("late", 1, {"x"}, {"a"});
  twice.outputs({"b"});
  EXPECT_THAT(base_ops(twice.graph()), ElementsAre(OpId{1}, OpId{2}));
}

TEST(WithDrops, DropsAfterTheLastUseBeforeTheNextRun) {
  const Graph graph = two_ops().graph();
  EXPECT_EQ(store_all(graph), testing::steps(graph, "f h -a"));
  const std::vector<OpId> runs = {OpId{0}, OpId{0}, OpId{1}, OpId{0}};
  EXPECT_EQ(with_drops(graph, runs), testing::steps(graph, "f -a f h -a f -a"));
}

TEST(WithEarlyDrops, MovesDropsToTheLastUseAndLeavesRunsInPlace) {
  Builder builder("places");
  builder.resident("x", 1).value("a", 2).value("b", 2).value("c", 2).value("d", 2);
  builder.op("f", 1, {"x"}, {"a"});
  builder.op("relu", 1, {"a"}, {"b"}).overwrites = {builder.id("a")};
  builder.op("g", 1, {"b"}, {"c"});
  builder.op("h", 1, {"c"}, {"d"});
  builder.outputs({"d"});
  const Graph graph = builder.graph();
  EXPECT_EQ(with_early_drops(graph, testing::steps(graph, "f relu/a g h -c -b")),
            testing::steps(graph, "f relu/a g -b h -c"));
  EXPECT_EQ(with_early_drops(graph, testing::steps(graph, "f relu g -a h f")),
            testing::steps(graph, "f relu -a g -b h -c f -a"));
}

TEST(Quote, StaysOneShortLine) {
  EXPECT_EQ(quote("conv1"), "'conv1'");
  EXPECT_EQ(quote("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_LT(quote(std::string(10000, 'n')).size(), 100U);
  EXPECT_LT(quote(std::string(10000, '\n')).size(), 400U);
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xC3\xA4";
  EXPECT_EQ(quote(umlauts).size() % 2, 1U) << "no character cut in two";
}

}  // namespace
}  // namespace headroom::internal
