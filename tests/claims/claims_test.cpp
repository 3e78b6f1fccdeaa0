#include "tests/claims/claims.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/io/text.h"
#include "tests/claims/all_schedules.h"
#include "tests/claims/inputs.h"
#include "tests/support/memory_rules.h"

/// Tests the parts of the test of claims with values derived by hand.
namespace headroom::internal::testing {
namespace {

/// "peak/time peak/time ..."
std::string front(const std::string& text, Order order) {
  const auto points = search_all_schedules(parse_graph_text("graph g\n" + text), order, 100'000);
  if (!points) return "limit";
  std::string result;
  for (const BestTime& point : *points)
    result += (result.empty() ? "" : " ") + std::to_string(point.peak_bytes) + "/" + std::to_string(point.time_ns);
  return result;
}

// In order: all kept 17; b recomputed 16 (fa fb -b fs -a fb bg); a and b 10 (fa -a fb -b fa fs -a fb bg).
// In any order fa fs -a fb bg: 8, 9, 9, 10.
TEST(AllSchedules, KeepsTheOrderOfFirstRunsOrNot) {
  const std::string text =
      "op fa 5: -> a=8\n"
      "op fb 5: -> b=8\n"
      "op fs 1: a -> s=1\n"
      "op bg 1: b s -> g=1\n"
      "outputs g\n";
  EXPECT_EQ(front(text, Order::kKeep), "10/22 16/17 17/12");
  EXPECT_EQ(front(text, Order::kAny), "10/12");
}

// f cannot run again: a stays beside b and c, 3+5+1. Otherwise f -a g h -b f k: 3, 5, 6, 4, 4.
TEST(AllSchedules, RunsOnceOnly) {
  const std::string rest =
      ": -> a=3\n"
      "op g 1: -> b=5\n"
      "op h 1: b -> c=1\n"
      "op k 1: a c -> d=0\n"
      "outputs d\n";
  EXPECT_EQ(front("op f 1 once" + rest, Order::kKeep), "9/4");
  EXPECT_EQ(front("op f 1" + rest, Order::kKeep), "6/5 9/4");
  EXPECT_EQ(front("op f 1 once" + rest, Order::kAny), "6/4");
}

// Moments: f 2-1, g 2+2. In place: f, g/v 2, f 2+2-1.
TEST(AllSchedules, RunsInPlaceAndGivesMemoryBack) {
  EXPECT_EQ(front("op f 1 workspace=-1: -> v=2\nop g 0 over=v: v -> w=2\noutputs v w\n", Order::kKeep), "3/2 4/1");
}

// t and r, which both write b, are one group; mk and c are needed by r alone and free to run at any time.
// t c -b mk r/a: the first b is held by its tape, beside a or the second b. t c -b -tape mk r/a -b t: one byte at a time.
TEST(AllSchedules, CountsCopiesThatAreHeld) {
  const std::string text =
      "op mk 0: -> a=1\n"
      "op t 1: -> b=1 tape=0\n"
      "op c 0: b -> c=0\n"
      "op r 0 over=a: c a -> b d=0\n"
      "hold tape b\n"
      "outputs tape d\n";
  EXPECT_EQ(front(text, Order::kKeep), "1/2 2/1");
}

// k runs beside all that t holds: t, s held by it, a held by s, and its own output.
TEST(AllSchedules, CountsWhatHeldCopiesHold) {
  const std::string text =
      "op f 1: -> a=4\n"
      "op g 1: a -> s=1\nhold s a\n"
      "op h 1: s -> t=1\nhold t s\n"
      "op k 1: t -> o=2\n"
      "outputs o\n";
  EXPECT_EQ(front(text, Order::kKeep), "8/4");
}

// {u, r} is listed around p, so that either may come first; b comes last.
TEST(AllSchedules, OrdersGroupsThatAreListedApart) {
  const Graph graph = parse_graph_text(
      "graph g\n"
      "op u 3: -> a=1\n"
      "op p 1: -> e=1\n"
      "op r 1: e -> a\n"
      "op q 1: -> d=1\n"
      "op b 1: a e d -> g=1\n"
      "outputs g\n");
  const auto keeps_order = [&](const char* schedule) {
    const Schedule steps = parse_schedule_text(schedule, graph);
    EXPECT_TRUE(replay(graph, steps).is_valid()) << schedule;
    return keeps_base_order(graph, steps);
  };
  EXPECT_TRUE(keeps_order("u p q b"));
  EXPECT_TRUE(keeps_order("p r q b"));
  EXPECT_FALSE(keeps_order("p q r b"));
  EXPECT_FALSE(keeps_order("u q p b"));
}

TEST(ClaimInputs, AreValidAndHaveEveryFeature) {
  int chains = 0;
  int held = 0;
  int in_place = 0;
  int once = 0;
  int gives_back = 0;
  int alternatives = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Input input = random_input(seed);
    if (input.chain) {
      ++chains;
      EXPECT_FALSE(lint(*input.chain)) << seed;
      continue;
    }
    ASSERT_FALSE(lint(input.graph)) << seed << *lint(input.graph);
    const Graph graph(input.graph);
    held += std::ranges::any_of(graph.values(), [](const Value& value) { return !value.holds.empty(); });
    in_place += std::ranges::any_of(graph.ops(), [](const Op& op) { return !op.overwrites.empty(); });
    once += std::ranges::any_of(graph.ops(), [](const Op& op) { return !op.recompute; });
    gives_back += std::ranges::any_of(graph.ops(), [](const Op& op) { return op.workspace_bytes < 0; });
    for (size_t v = 0; v < graph.values().size(); ++v) alternatives += graph.producers(value_id(v)).size() > 1 ? 1 : 0;
  }
  EXPECT_GT(std::min({chains, held, in_place, once, gives_back, alternatives}), 10);
}

TEST(ClaimInputs, ShrinkToWhatMatters) {
  const auto runs_in_place = [](const Input& input) {
    return std::ranges::any_of(input.graph.ops, [](const Op& op) { return !op.overwrites.empty(); });
  };
  uint64_t seed = 0;
  while (!runs_in_place(random_input(seed)) || random_input(seed).graph.ops.size() < 6) ++seed;
  const Input small = shrink(random_input(seed), runs_in_place);
  ASSERT_EQ(small.graph.ops.size(), 2U) << to_text(small);
  EXPECT_EQ(small.graph.ops[0].time_ns + small.graph.ops[1].time_ns, 0);
  EXPECT_EQ(small.graph.values.size(), 2U);
  EXPECT_EQ(small.graph.values[0].bytes, 0);
}

}  // namespace
}  // namespace headroom::internal::testing
