#include "headroom/plan/exact/exhaustive.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/chain.h"
#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/bounds/time_bound.h"
#include "headroom/plan/planners.h"
#include "tests/support/build.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using testing::Random;

/// Tries all sequences of at most `max_runs` runs, with `keep_order` those in which first runs of needed groups follow the
/// base order, with drops as early as possible, and records peak and time of the valid ones.
class AllSequences {
 public:
  AllSequences(const Graph& graph, size_t max_runs, bool keep_order)
      : graph_(graph), groups_(find_needed_groups(graph)), most_(max_runs), keep_order_(keep_order) {
    extend(0);
  }

  /// Returns the minimum time within a budget, or nothing.
  std::optional<int64_t> least_time(int64_t budget_bytes) const {
    std::optional<int64_t> least;
    for (const auto& [peak_bytes, time_ns] : found_)
      if (peak_bytes <= budget_bytes && (!least || time_ns < *least)) least = time_ns;
    return least;
  }
  int64_t least_peak() const { return std::ranges::min_element(found_)->first; }

 private:
  void extend(size_t first_runs) {
    const Schedule schedule = with_drops(graph_, runs_);
    const Simulation result = simulate(graph_, schedule);
    // A missing input is an error. A missing output at the end can still be computed.
    if (result.error && result.error->step < schedule.steps.size()) return;
    if (!result.error) found_.emplace_back(result.peak_bytes, result.time_ns);
    if (runs_.size() == most_) return;
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const auto group = static_cast<size_t>(groups_.group_of_op[i]);
      const size_t order = needed_before(group);
      if (keep_order_ && groups_.needed[group] != 0 && order > first_runs) continue;
      const bool first = groups_.needed[group] != 0 && order == first_runs;
      runs_.push_back(op_id(i));
      extend(first_runs + (first ? 1 : 0));
      runs_.pop_back();
    }
  }
  size_t needed_before(size_t group) const {
    return static_cast<size_t>(
        std::count(groups_.needed.begin(), groups_.needed.begin() + static_cast<std::ptrdiff_t>(group), 1));
  }

  const Graph& graph_;
  NeededGroups groups_;
  size_t most_;
  bool keep_order_;
  std::vector<OpId> runs_;
  std::vector<std::pair<int64_t, int64_t>> found_;
};

class ExhaustiveOrders : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Orders, ExhaustiveOrders, ::testing::Bool(),
                         [](const auto& order) { return order.param ? "Kept" : "Any"; });

TEST_P(ExhaustiveOrders, EqualsAllSequencesOfRuns) {
  const bool keep_order = GetParam();
  int compared = 0;
  for (uint64_t seed = 1; seed <= 800; ++seed) {
    Random random(seed);
    GraphSpec spec = testing::random_graph(random, {.forward_ops = 2});
    for (Op& op : spec.ops) op.overwrites.clear();
    const Graph graph(spec);
    const size_t max_runs = base_ops(graph).size() + 2;
    const AllSequences all(graph, max_runs, keep_order);
    const int64_t peak_bytes = simulate(graph, store_all(graph)).peak_bytes;
    for (int64_t budget_bytes = graph.resident_bytes(); budget_bytes <= peak_bytes; ++budget_bytes) {
      const PlanResult plan = plan_exhaustive(graph, {budget_bytes, {.keep_order = keep_order}});
      const std::optional<int64_t> expected = all.least_time(budget_bytes);
      const std::string where =
          "seed " + std::to_string(seed) + ", budget " + std::to_string(budget_bytes) + "\n" + to_text(graph);
      ASSERT_TRUE(plan.schedule || !expected) << where;
      if (!plan.schedule) {
        ASSERT_EQ(plan.status, PlanStatus::kInfeasible) << where;
        ASSERT_GT(plan.smallest_budget_bytes, budget_bytes) << where;
        continue;
      }
      const Simulation result = simulate(graph, *plan.schedule);
      ASSERT_FALSE(result.error) << where << result.error->message;
      ASSERT_LE(result.peak_bytes, budget_bytes) << where;
      ASSERT_EQ(result.time_ns, plan.lower_bound_ns) << where;
      ASSERT_GE(result.time_ns, time_lower_bound_ns(graph)) << where;
      const auto runs = std::ranges::count_if(plan.schedule->steps, [](const Step& step) { return step.is_run(); });
      if (static_cast<size_t>(runs) > max_runs) continue;  // More runs than the reference tries.
      ASSERT_TRUE(expected) << where;
      ASSERT_EQ(result.time_ns, *expected) << where;
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000);
}

/// The plan with the minimum peak takes more time than store-all, which is no bound for other plans.
TEST(Exhaustive, WithoutABudgetNoBoundIsAboveAFasterPlan) {
  int slower = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const Problem problem = make_problem(Graph(testing::random_graph(random, {.forward_ops = 4})));
    const Plan plan = make_plan(get_planner("exhaustive"), problem, {});
    EXPECT_EQ(plan.result.status, PlanStatus::kOptimal);
    EXPECT_LE(plan.result.lower_bound_ns, problem.base_time_ns) << to_text(problem.graph);
    slower += *plan.time_ns > problem.base_time_ns ? 1 : 0;
  }
  EXPECT_GT(slower, 10);
}

TEST(Exhaustive, FindsWhatTheSmallestBudgetIs) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = 3}));
    const int64_t smallest = plan_exhaustive(graph, {}).smallest_budget_bytes;
    EXPECT_EQ(plan_exhaustive(graph, {smallest, {}}).status, PlanStatus::kOptimal) << to_text(graph);
    EXPECT_EQ(plan_exhaustive(graph, {smallest - 1, {}}).status, PlanStatus::kInfeasible) << to_text(graph);
  }
}

TEST(Exhaustive, MoreMemoryIsNeverSlower) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = 4}));
    int64_t previous_ns = std::numeric_limits<int64_t>::max();
    const int64_t peak_bytes = simulate(graph, store_all(graph)).peak_bytes;
    for (int64_t budget_bytes = 0; budget_bytes <= peak_bytes; ++budget_bytes) {
      const PlanResult plan = plan_exhaustive(graph, {budget_bytes, {}});
      if (!plan.schedule) continue;
      EXPECT_LE(plan.lower_bound_ns, previous_ns) << to_text(graph);
      previous_ns = plan.lower_bound_ns;
    }
    EXPECT_LE(previous_ns, simulate(graph, store_all(graph)).time_ns) << to_text(graph);
  }
}

TEST(Exhaustive, RunsInPlaceWhereThatHelps) {
  // a(4) -> r(4): in place the peak is 4, otherwise 8.
  Builder builder("relu");
  builder.resident("x", 0).value("a", 4).value("r", 4);
  builder.op("f", 1, {"x"}, {"a"});
  builder.op("relu", 1, {"a"}, {"r"}).overwrites = {builder.id("a")};
  builder.outputs({"r"});
  const Graph graph = builder.graph();
  const PlanResult plan = plan_exhaustive(graph, {});
  EXPECT_EQ(plan.smallest_budget_bytes, 4);
  EXPECT_EQ(*plan.schedule, testing::steps(graph, "f relu/a"));
}

TEST(Exhaustive, StopsAtItsLimits) {
  Random random(1);
  const Graph big(testing::random_graph(random, {.forward_ops = 40}));
  EXPECT_THROW(plan_exhaustive(big, {}), NotApplicable);
  const Graph graph(testing::random_graph(random, {.forward_ops = 7}));
  EXPECT_EQ(plan_exhaustive(graph, {std::nullopt, {.max_states = 10}}).status, PlanStatus::kTimeout);

  Builder builder("deep");
  builder.resident("x", 0).value("a", 4).value("t", 2).value("u", 1);
  builder.op("r", 1, {"x"}, {"a", "t"});
  builder.op("s", 1, {"t"}, {"u"});
  builder.holds("t", {"a"}).holds("u", {"t"}).outputs({"u"});
  EXPECT_THROW(plan_exhaustive(builder.graph(), {}), NotApplicable);
}

TEST(LowerBound, CountsTheFastestOfAlternatives) {
  Builder builder("ways");
  builder.resident("x", 0).value("a", 1).value("t", 1).value("z", 1).value("b", 1);
  builder.op("z", 7, {"x"}, {"z"});
  builder.op("slow", 9, {"z"}, {"a", "t"});
  builder.op("fast", 4, {"x"}, {"a"});
  builder.op("end", 1, {"a"}, {"b"});
  builder.outputs({"b"});
  // `z` is read by `slow` only, so nothing needs it; a takes at least 4, b 1.
  EXPECT_EQ(time_lower_bound_ns(builder.graph()), 5);
  Chain chain{"two", 0, 1, 1, {{"s1", 2, 3, 1, 1, 0, 0, 0}, {"s2", 5, 7, 1, 1, 0, 0, 0}}};
  EXPECT_EQ(time_lower_bound_ns(to_graph(chain)), 2 + 3 + 5 + 7);
}

}  // namespace
}  // namespace headroom::internal
