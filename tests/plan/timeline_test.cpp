#include "headroom/plan/auto/search/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/chain.h"
#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/problem.h"
#include "tests/claims/inputs.h"
#include "tests/support/memory_rules.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::MemoryRules;
using testing::MemoryState;
using testing::Random;

// Store-all: f2 has a1 and a2, 20; f3 a3 as well, 21; b3 g2 as well, 22; b2 has a1, g2, g1, 12. With a1 recomputed
// before b2 (5 ns): f2 20, f3 11, b3 12, b2 12: peak 20.
TEST(Timeline, CountsByHand) {
  const Graph graph = parse_graph_text(
      "graph three\n"
      "value x 0 resident\n"
      "op f1 5: x -> a1=10\n"
      "op f2 6: a1 -> a2=10\n"
      "op f3 7: a2 -> a3=1\n"
      "op b3 1 backward: a2 a3 -> g2=1\n"
      "op b2 1 backward: g2 a1 -> g1=1\n"
      "op b1 1 backward: g1 x -> g0=1\n"
      "outputs g0\n");
  const FlatGraph flat(graph);
  Timeline timeline(flat);
  timeline.assign({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(timeline.moments(), (std::vector<int64_t>{10, 20, 21, 22, 12, 2}));
  EXPECT_EQ(timeline.peak_bytes(), 22);
  EXPECT_EQ(timeline.time_ns(), 21);
  timeline.assign({0, 1, 2, 3, 0, 4, 5});
  EXPECT_EQ(timeline.moments(), (std::vector<int64_t>{10, 20, 11, 12, 11, 12, 2}));
  EXPECT_EQ(timeline.time_ns(), 26);
  ASSERT_NE(timeline.alive(0 + 1, 1), nullptr);
  EXPECT_EQ(timeline.alive(1, 2), nullptr) << "a1 is dropped after f2";
  EXPECT_EQ(to_text(graph, timeline.schedule()), "f1 f2 -a1 f3 b3 -a3 -a2 f1 b2 -a1 -g2 b1 -g1");
}

/// Among all schedules with the same runs, that of the timeline has the minimum peak: `exhaustive` may choose drops and runs
/// in place freely.
TEST(Timeline, TakesNoMoreThanExhaustive) {
  int cases = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 5))}));
    const int64_t budget_bytes = make_problem(graph).base_peak_bytes * random.number(75, 99) / 100;
    std::optional<Schedule> schedule;
    try {
      schedule = ExhaustiveSearch(graph, random.number(0, 1) == 0)
                     .find_faster(budget_bytes, std::numeric_limits<int64_t>::max(), 10'000);
    } catch (const NotApplicable&) {
      continue;
    }
    if (!schedule) continue;
    ++cases;
    std::vector<int32_t> runs;
    for (const Step& step : schedule->steps)
      if (step.is_run()) runs.push_back(static_cast<int32_t>(step.op()));
    const FlatGraph flat(graph);
    Timeline timeline(flat);
    timeline.assign(runs);
    ASSERT_LE(timeline.peak_bytes(), budget_bytes) << "seed " << seed << "\n" << to_text(graph);
  }
  EXPECT_GT(cases, 500);
}

/// Returns random runs until all outputs of the step are written. Each run comes after producers of its inputs.
std::vector<int32_t> random_runs(Random& random, const FlatGraph& flat, const Graph& graph) {
  std::vector<uint8_t> made(graph.values().size(), 0);
  std::vector<uint8_t> ran(graph.ops().size(), 0);
  std::vector<int32_t> runs;
  const auto may_run = [&](int32_t op) {
    if (flat.once[static_cast<size_t>(op)] != 0 && ran[static_cast<size_t>(op)] != 0) return false;
    return std::ranges::all_of(flat.inputs(op), [&](int32_t v) { return made[static_cast<size_t>(v)] != 0; });
  };
  const auto run = [&](int32_t op) {
    runs.push_back(op);
    ran[static_cast<size_t>(op)] = 1;
    for (const int32_t v : flat.outputs(op)) made[static_cast<size_t>(v)] = 1;
  };
  for (const OpId id : base_ops(graph)) {
    for (int i = 0; i < 8 && random.chance(40); ++i) {
      const auto op = static_cast<int32_t>(random.number(0, flat.op_count - 1));
      if (may_run(op)) run(op);
    }
    if (may_run(static_cast<int32_t>(id))) run(static_cast<int32_t>(id));
  }
  return runs;
}

/// Checks that the moments, the memory between runs, the peak and the time are those of schedule() by the literal rules, and
/// that every run that can be in place is.
void expect_as_by_rules(const Timeline& timeline, const Graph& graph, const std::string& where, int& in_place) {
  const Schedule schedule = timeline.schedule();
  const std::string text = where + to_text(graph) + to_text(graph, schedule);
  const testing::Replay expected = testing::replay(graph, schedule);
  ASSERT_TRUE(expected.is_valid()) << text << expected.errors[0];
  ASSERT_EQ(timeline.peak_bytes(), expected.peak_bytes) << text;
  ASSERT_EQ(timeline.peak_bytes(), simulate(graph, schedule).peak_bytes) << text;
  ASSERT_EQ(timeline.time_ns(), expected.time_ns) << text;
  const MemoryRules rules(graph);
  MemoryState state;
  int32_t position = 0;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.is_run()) {
      ASSERT_EQ(timeline.between(position), rules.bytes(state)) << text << "run " << position;
      ASSERT_EQ(timeline.moment(position), expected.moment_bytes[i]) << text << "run " << position;
      ++position;
      in_place += step.is_over() ? 1 : 0;
    }
    for (size_t drop = i + 1; step.is_run() && !step.is_over() && drop < schedule.steps.size(); ++drop) {
      if (schedule.steps[drop].is_run()) break;
      const Step over = Step::run_over(step.op(), schedule.steps[drop].value());
      ASSERT_FALSE(rules.broken_rules(state, over).empty()) << text << "run " << position - 1 << " may be in place";
    }
    rules.apply(state, step);
  }
  ASSERT_EQ(timeline.between(position), rules.bytes(state)) << text;
  for (int32_t first = 0; first < timeline.size(); first += 3)
    for (int32_t last = first; last < timeline.size(); last += 2)
      ASSERT_EQ(timeline.most(first, last),
                *std::max_element(timeline.moments().begin() + first, timeline.moments().begin() + last + 1))
          << text;
}

TEST(Timeline, FollowsTheRules) {
  int in_place = 0;
  size_t most_runs = 0;
  for (uint64_t seed = 0; seed < 4000 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    testing::Input input = testing::random_input(seed);
    if (seed % 4 == 1)
      input = {testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 9))}), {}};
    const Graph graph = input.chain ? to_graph(*input.chain) : Graph(input.graph);
    const FlatGraph flat(graph);
    Timeline timeline(flat);
    for (int i = 0; i < 3 && !HasFatalFailure(); ++i) {
      const std::vector<int32_t> runs = random_runs(random, flat, graph);
      most_runs = std::max(most_runs, runs.size());
      timeline.assign(runs);
      expect_as_by_rules(timeline, graph, "seed " + std::to_string(seed) + "\n", in_place);
    }
  }
  EXPECT_GT(in_place, 1000);
  EXPECT_GT(most_runs, static_cast<size_t>(Timeline::kBlock));
}

}  // namespace
}  // namespace headroom::internal
