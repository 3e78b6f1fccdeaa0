#include "headroom/plan/planners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/bounds/time_bound.h"
#include "headroom/plan/chain/steps.h"
#include "tests/support/build.h"
#include "tests/support/networks.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Random;

/// Returns rotor-a of the checks: five equal stages and the loss.
Chain five_equal() {
  Chain chain{"five", 0, 1, 1, {}};
  for (int i = 1; i <= 5; ++i) chain.stages.push_back(Stage{"s" + std::to_string(i), 1, 2, 1, 2, 0, 0, 0});
  chain.stages.push_back(Stage{.name = "loss"});
  return chain;
}

TEST(Planners, TableHasEveryNameOnce) {
  std::vector<std::string> names;
  for (const Planner& planner : planners()) names.emplace_back(planner.name);
  EXPECT_THAT(names, ElementsAre("store-all", "even", "sqrt", "binomial", "peak-cubic", "peak-linear", "chain",
                                 "division-tree", "lower-sets", "exhaustive", "auto"));
  EXPECT_EQ(get_planner("chain").name, "chain");
  try {
    get_planner("chains");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no planner 'chains'; there are store-all, even"));
  }
}

TEST(MakePlan, StoreAllDefinesTheBase) {
  const Problem problem = make_problem(five_equal());
  const Plan plan = make_plan(get_planner("store-all"), problem, {});
  EXPECT_EQ(plan.peak_bytes, 13);
  EXPECT_EQ(plan.time_ns, 15);
  EXPECT_EQ(plan.base_time_ns, 15);
  EXPECT_EQ(plan.result.lower_bound_ns, 15);
  EXPECT_EQ(plan.result.status, PlanStatus::kOptimal);
  EXPECT_EQ(plan.result.smallest_budget_bytes, 13);
}

TEST(FindPlanWithoutReruns, IsThePlanOfAutoForStoreAll) {
  Random random(3);
  int compared = 0;
  for (int i = 0; i < 20; ++i) {
    const Problem problem = make_problem(Graph(testing::random_graph(random, {.forward_ops = 6})));
    const std::optional<Plan> plan = find_plan_without_reruns(problem);
    if (!plan) continue;
    ++compared;
    const Plan expected = make_plan(get_planner("auto"), problem, {problem.base_peak_bytes, {}});
    EXPECT_EQ(plan->time_ns, expected.time_ns) << i;
    EXPECT_EQ(plan->time_ns, problem.base_time_ns) << i;
    EXPECT_LE(*plan->peak_bytes, problem.base_peak_bytes) << i;
    EXPECT_EQ(plan->result.status, PlanStatus::kOptimal) << i;
    EXPECT_EQ(plan->result.smallest_budget_bytes, -1) << i;
  }
  EXPECT_GT(compared, 10);
}

TEST(FindPlanWithoutReruns, NoneWhereAnotherProducerIsFaster) {
  // The first producer of y takes 3, the last 5: store-all runs the last.
  GraphSpec spec;
  spec.name = "two";
  spec.values = {Value{"x", 1, true, {}}, Value{"y", 1, false, {}}};
  for (const int64_t time_ns : {3, 5}) {
    Op op{.name = "op" + std::to_string(time_ns), .inputs = {value_id(0)}, .outputs = {value_id(1)}, .overwrites = {}};
    op.time_ns = time_ns;
    spec.ops.push_back(std::move(op));
  }
  spec.outputs = {value_id(1)};
  const Problem problem = make_problem(Graph(spec));
  ASSERT_EQ(problem.base_time_ns, 5);
  EXPECT_FALSE(find_plan_without_reruns(problem));
  EXPECT_EQ(make_plan(get_planner("auto"), problem, {2, {}}).time_ns, 3);
}

TEST(MakePlan, TakesAwayWhatIsAboveTheBudget) {
  const Problem problem = make_problem(five_equal());
  for (const char* name : {"store-all", "even", "sqrt", "peak-cubic", "peak-linear", "division-tree"}) {
    const Plan plan = make_plan(get_planner(name), problem, {5, {}});
    EXPECT_EQ(plan.result.status, PlanStatus::kInfeasible) << name;
    EXPECT_FALSE(plan.result.schedule || plan.peak_bytes || plan.time_ns) << name;
    EXPECT_TRUE(plan.result.checkpoints.empty()) << name;
    EXPECT_GT(plan.result.smallest_budget_bytes, 5) << name;
    const Plan again = make_plan(get_planner(name), problem, {plan.result.smallest_budget_bytes, {}});
    EXPECT_EQ(again.peak_bytes, plan.result.smallest_budget_bytes) << name;
  }
}

TEST(MakePlan, RefusesClearly) {
  const Problem problem = make_problem(five_equal());
  EXPECT_THROW(make_plan(get_planner("chain"), problem, {}), InvalidInput);
  EXPECT_THROW(make_plan(get_planner("auto"), problem, {}), InvalidInput);
  Random random(1);
  const Problem graph = make_problem(Graph(testing::random_graph(random, {.forward_ops = 3})));
  try {
    make_plan(get_planner("peak-linear"), graph, {});
    FAIL();
  } catch (const NotApplicable& refusal) {
    EXPECT_STREQ(refusal.what(), "peak-linear: takes chains, and graph 'random' is not one");
  }
}

TEST(MakePlan, AGraphThatIsAChainIsTakenAsOne) {
  const Chain chain = five_equal();
  GraphSpec spec = to_graph(chain).spec();
  for (Value& value : spec.values) value.name = "v_" + value.name;
  const Problem problem = make_problem(Graph(spec));
  ASSERT_TRUE(problem.chain);
  for (const Planner& planner : planners()) {
    const Plan one = make_plan(planner, problem, {9, {}});
    const Plan other = make_plan(planner, make_problem(chain), {9, {}});
    EXPECT_EQ(one.result.schedule, other.result.schedule) << planner.name;
    EXPECT_EQ(one.result.checkpoints, other.result.checkpoints) << planner.name;
  }
}

/// Plans with every planner that takes the problem, at budgets from 0 to the peak of store-all.
void expect_sound_plans(const Problem& problem, const std::string& where) {
  const int64_t peak_bytes = simulate(problem.graph, store_all(problem.graph)).peak_bytes;
  const int64_t bound_ns = time_lower_bound_ns(problem.graph);
  for (const int64_t budget_bytes : {peak_bytes, peak_bytes * 3 / 4, peak_bytes / 2, int64_t{0}}) {
    std::optional<int64_t> best_ns;
    std::optional<int64_t> exhaustive_ns;
    std::optional<int64_t> smallest_bytes;
    for (const Planner& planner : planners()) {
      Plan plan;
      try {
        plan = make_plan(planner, problem, {budget_bytes, {}});
      } catch (const NotApplicable&) {
        continue;
      }
      const std::string who = std::string(planner.name) + ", " + where + ", budget " + std::to_string(budget_bytes);
      ASSERT_GE(plan.result.lower_bound_ns, bound_ns) << who;
      if (planner.name == "auto") {
        ASSERT_EQ(plan.time_ns.has_value(), best_ns.has_value()) << who;
        ASSERT_LE(plan.time_ns.value_or(0), best_ns.value_or(0)) << who;
        ASSERT_LE(plan.result.smallest_budget_bytes, *smallest_bytes) << who;
      }
      if (plan.result.smallest_budget_bytes > 0)
        smallest_bytes =
            std::min(smallest_bytes.value_or(plan.result.smallest_budget_bytes), plan.result.smallest_budget_bytes);
      ASSERT_EQ(plan.result.schedule.has_value(), plan.time_ns.has_value()) << who;
      if (!plan.time_ns) continue;
      ASSERT_LE(*plan.peak_bytes, budget_bytes) << who;
      ASSERT_GE(*plan.time_ns, bound_ns) << who;
      best_ns = std::min(best_ns.value_or(*plan.time_ns), *plan.time_ns);
      if (planner.name == "exhaustive" && plan.result.status == PlanStatus::kOptimal) exhaustive_ns = plan.time_ns;
    }
    if (exhaustive_ns) {
      ASSERT_EQ(*best_ns, *exhaustive_ns) << "beats every schedule: " << where;
    }
  }
}

TEST(MakePlan, EveryPlannerIsSoundOnRandomChains) {
  for (uint64_t seed = 1; seed <= 150 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 4)));
    expect_sound_plans(make_problem(chain), "seed " + std::to_string(seed) + "\n" + to_text(to_graph(chain)));
  }
}

TEST(MakePlan, EveryPlannerIsSoundOnRandomGraphs) {
  for (uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 5))}));
    expect_sound_plans(make_problem(graph), "seed " + std::to_string(seed) + "\n" + to_text(graph));
  }
}

TEST(MakePlan, ThreadsDoNotChangeTheResult) {
  const Problem problem = make_problem(testing::vgg_bytes(16, 8));
  const int64_t budget_bytes = *make_plan(get_planner("peak-linear"), problem, {}).peak_bytes * 21 / 20;
  for (const Planner& planner : planners()) {
    PlanRequest request{budget_bytes, {}};
    std::set<std::string> schedules;
    try {
      for (const int threads : {1, 2, 3}) {
        request.limits.threads = threads;
        const Plan plan = make_plan(planner, problem, request);
        schedules.insert(plan.result.schedule ? to_text(problem.graph, *plan.result.schedule) : "");
      }
      EXPECT_EQ(schedules.size(), 1U) << planner.name;
    } catch (const NotApplicable&) {
      EXPECT_EQ(planner.name, "exhaustive");
    }
  }
}

TEST(Curve, IsAFront) {
  const Problem problem = make_problem(five_equal());
  // The times of the chain planner from 6 to 12 bytes, and store-all.
  const std::vector<CurvePoint> curve = plan_curve(get_planner("chain"), problem, 8, {});
  EXPECT_THAT(curve, ElementsAre(CurvePoint{6, 25}, CurvePoint{7, 20}, CurvePoint{8, 19}, CurvePoint{9, 18},
                                 CurvePoint{10, 17}, CurvePoint{12, 16}, CurvePoint{13, 15}));
  EXPECT_EQ(plan_curve(get_planner("peak-linear"), problem, 8, {}).size(), 1U);
}

TEST(MakePlan, SizesNearTheLimitGetAVerdict) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  Chain chain{"huge", 0, 1, 1, {}};
  for (int i = 1; i <= 2; ++i) chain.stages.push_back(Stage{"s", kHuge / 4, kHuge / 4, kHuge / 4, kHuge / 4, 0, 0, 0});
  const Problem problem = make_problem(chain);
  const int64_t peak_bytes = simulate(problem.graph, store_all(problem.graph)).peak_bytes;
  for (const Planner& planner : planners()) {
    try {
      const Plan plan = make_plan(planner, problem, {peak_bytes, {}});
      EXPECT_TRUE(plan.peak_bytes && *plan.peak_bytes <= peak_bytes) << planner.name;
    } catch (const InvalidInput& verdict) {
      EXPECT_THAT(verdict.what(), HasSubstr(std::string(planner.name))) << "names who says so";
    }
  }
}

}  // namespace
}  // namespace headroom::internal
