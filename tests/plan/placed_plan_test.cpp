#include "headroom/plan/placed_plan.h"

#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "tests/claims/inputs.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

/// Checks a placed plan, and returns its time, or none without a plan.
std::optional<int64_t> checked_time(const Problem& problem, const PlacedPlan& placed, int64_t budget_bytes,
                                    const std::string& where) {
  EXPECT_EQ(placed.plan.result.schedule.has_value(), placed.placement.has_value()) << where;
  if (!placed.plan.result.schedule) {
    EXPECT_FALSE(placed.plan.peak_bytes || placed.plan.time_ns) << where;
    return std::nullopt;
  }
  const Schedule& schedule = *placed.plan.result.schedule;
  EXPECT_EQ(verify_placement(problem.graph, schedule, *placed.placement), std::nullopt) << where;
  EXPECT_LE(problem.graph.resident_bytes() + placed.placement->arena_bytes, budget_bytes) << where;
  const Simulation simulation = simulate(problem.graph, schedule);
  EXPECT_EQ(placed.plan.peak_bytes, simulation.peak_bytes) << where;
  EXPECT_EQ(placed.plan.time_ns, simulation.time_ns) << where;
  EXPECT_LE(placed.plan.result.lower_bound_ns, simulation.time_ns) << where;
  return simulation.time_ns;
}

Problem problem_of(uint64_t seed) {
  const testing::Input input = testing::random_input(seed);
  return input.chain ? make_problem(*input.chain) : make_problem(Graph(input.graph));
}

TEST(PlacedPlan, MoreMemoryIsNeverSlowerForAuto) {
  int placed_count = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Problem problem = problem_of(seed);
    const PlanLimits limits{.max_states = 200, .effort = Effort::kLow, .threads = 1};
    std::optional<int64_t> last_ns;
    const int64_t most_bytes = problem.base_peak_bytes + 3;
    for (int64_t budget_bytes = problem.graph.resident_bytes(); budget_bytes <= most_bytes; ++budget_bytes) {
      const std::string where = "seed " + std::to_string(seed) + ", budget " + std::to_string(budget_bytes);
      const PlacedPlan placed = make_placed_plan(default_planner(), problem, {budget_bytes, limits}, {}, 1);
      const std::optional<int64_t> time_ns = checked_time(problem, placed, budget_bytes, where);
      if (last_ns) {
        ASSERT_TRUE(time_ns) << where;
        ASSERT_LE(*time_ns, *last_ns) << where;
      }
      if (placed.plan.result.smallest_budget_bytes > 0) {
        ASSERT_EQ(time_ns.has_value(), budget_bytes >= placed.plan.result.smallest_budget_bytes) << where;
      }
      last_ns = time_ns;
      placed_count += time_ns ? 1 : 0;
    }
  }
  EXPECT_GT(placed_count, 200);
}

TEST(PlacedPlan, MoreMemoryIsNeverSlowerOnLargerGraphs) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    testing::Random random(seed);
    const Problem problem =
        make_problem(Graph(testing::random_graph(random, {.forward_ops = 25, .most_bytes = 100, .special = false})));
    const PlanLimits limits{.effort = Effort::kLow, .threads = 1};
    std::optional<int64_t> last_ns;
    for (int64_t share = 30; share <= 103; share += 3) {
      const int64_t budget_bytes = problem.base_peak_bytes * share / 100;
      const std::string where = "seed " + std::to_string(seed) + ", " + std::to_string(share) + " %";
      const PlacedPlan placed = make_placed_plan(default_planner(), problem, {budget_bytes, limits}, {}, 1);
      const std::optional<int64_t> time_ns = checked_time(problem, placed, budget_bytes, where);
      if (last_ns) {
        ASSERT_TRUE(time_ns) << where;
        ASSERT_LE(*time_ns, *last_ns) << where;
      }
      last_ns = time_ns;
    }
    EXPECT_EQ(last_ns, problem.base_time_ns);
  }
}

TEST(PlacedPlan, AllPlannersKeepTheBudget) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Problem problem = problem_of(seed);
    for (const Planner& planner : planners()) {
      for (const int64_t alignment : {1, 4}) {
        const int64_t budget_bytes =
            problem.base_peak_bytes - static_cast<int64_t>(seed % 4) * problem.base_peak_bytes / 8;
        const std::string where = "seed " + std::to_string(seed) + ", " + std::string(planner.name);
        try {
          const PlacedPlan placed = make_placed_plan(planner, problem, {budget_bytes, {.threads = 1}}, {}, alignment);
          checked_time(problem, placed, budget_bytes, where);
          EXPECT_EQ(placed.plan.budget_bytes, budget_bytes) << where;
        } catch (const NotApplicable&) {
          continue;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headroom::internal
