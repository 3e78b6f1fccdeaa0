#include "headroom/plan/auto/auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/auto/search/search.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/chain/chain.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/planners.h"
#include "tests/support/build.h"
#include "tests/support/networks.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using testing::Random;

/// f1 f2 f3 | b3 b2 b1: b3 reads a2 and a3, b2 reads a1. a1 and a2 are of 10 bytes, the rest of 1.
Graph three_stages() {
  Builder builder("three");
  builder.resident("x", 0).value("a1", 10).value("a2", 10).value("a3", 1);
  builder.value("g2", 1).value("g1", 1).value("g0", 1);
  builder.op("f1", 5, {"x"}, {"a1"});
  builder.op("f2", 6, {"a1"}, {"a2"});
  builder.op("f3", 7, {"a2"}, {"a3"});
  builder.op("b3", 1, {"a2", "a3"}, {"g2"}).phase = Phase::kBackward;
  builder.op("b2", 1, {"g2", "a1"}, {"g1"}).phase = Phase::kBackward;
  builder.op("b1", 1, {"g1", "x"}, {"g0"}).phase = Phase::kBackward;
  builder.outputs({"g0"});
  return builder.graph();
}

TEST(RunSearch, DescendsAndPrunesByHand) {
  const Graph graph = three_stages();
  const FlatGraph flat(graph);
  RunSearch search(flat);
  search.assign({0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(search.descend(20, {}));
  EXPECT_EQ(search.timeline().runs(), (std::vector<int32_t>{0, 1, 2, 3, 0, 4, 5}));
  search.prune(21);
  EXPECT_EQ(search.timeline().size(), 7) << "without the rerun b3 takes 22";
  search.prune(22);
  EXPECT_EQ(search.timeline().size(), 6);
  search.assign({0, 1, 2, 3, 4, 5});
  EXPECT_FALSE(search.descend(19, {})) << "f2 alone takes 20";
  search.assign({0, 1, 2, 3, 4, 5});
  search.remember();
  EXPECT_FALSE(search.ruin()) << "nothing runs twice";
}

struct Against {
  int cases = 0;
  int equal = 0;
  int smallest = 0;
  int smallest_equal = 0;
};

/// The front, without `exhaustive`, against the optimum at three budgets; never below it, and neither is the bound
/// above.
void compare_with_exhaustive(const Problem& problem, Effort effort, const std::string& where, Against& against) {
  const Graph& graph = problem.graph;
  const FlatGraph flat(graph);
  const Front front = search_front(problem, flat, {.effort = effort, .threads = 1});
  PlanRequest request;
  request.budget_bytes = 0;
  const int64_t smallest_bytes = plan_exhaustive(graph, request).smallest_budget_bytes;
  ASSERT_GE(front.front().peak_bytes, smallest_bytes) << where;
  ASSERT_LE(peak_lower_bound_bytes(flat), smallest_bytes) << where;
  ++against.smallest;
  against.smallest_equal += front.front().peak_bytes == smallest_bytes ? 1 : 0;
  for (int third = 0; third < 3; ++third) {
    request.budget_bytes = smallest_bytes + (problem.base_peak_bytes - smallest_bytes) * third / 3;
    const PlanResult optimum = plan_exhaustive(graph, request);
    if (optimum.status != PlanStatus::kOptimal) continue;
    const int64_t optimum_ns = simulate(graph, *optimum.schedule).time_ns;
    const MemoryBound bound = memory_bound(graph, *request.budget_bytes, {.max_cuts = 100});
    ASSERT_TRUE(bound.is_feasible) << where << "budget " << *request.budget_bytes;
    ASSERT_LE(bound.time_ns, optimum_ns) << where << "budget " << *request.budget_bytes;
    int64_t found_ns = std::numeric_limits<int64_t>::max();
    for (const JudgedRuns& plan : front)
      if (plan.peak_bytes <= *request.budget_bytes) found_ns = plan.time_ns;
    ASSERT_GE(found_ns, optimum_ns) << where << "budget " << *request.budget_bytes;
    ++against.cases;
    against.equal += found_ns == optimum_ns ? 1 : 0;
  }
}

/// For --gtest_output.
void record(const Against& against) {
  ::testing::Test::RecordProperty("cases", against.cases);
  ::testing::Test::RecordProperty("equal", against.equal);
  ::testing::Test::RecordProperty("graphs", against.smallest);
  ::testing::Test::RecordProperty("smallest_equal", against.smallest_equal);
}

TEST(AutoFront, AgainstExhaustiveOnRandomChains) {
  Against against;
  for (uint64_t seed = 1; seed <= 150 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(2, 5)));
    compare_with_exhaustive(make_problem(chain), Effort::kNormal, "seed " + std::to_string(seed) + "\n", against);
  }
  record(against);
  EXPECT_GE(against.equal, against.cases * 99 / 100);
  EXPECT_EQ(against.smallest_equal, against.smallest);
}

TEST(AutoFront, AgainstExhaustiveOnRandomGraphs) {
  Against against;
  for (uint64_t seed = 1; seed <= 150 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(
        random, {.forward_ops = static_cast<int>(random.number(3, 6)), .special = random.chance(50)}));
    compare_with_exhaustive(make_problem(graph), Effort::kNormal,
                            "seed " + std::to_string(seed) + "\n" + to_text(graph) + "\n", against);
  }
  record(against);
  // The search alone; plan_auto() asks `exhaustive` for graphs as small as these.
  EXPECT_GE(against.equal, against.cases * 98 / 100);
}

/// A U-shaped network: what goes down is read again on the way up, n levels each.
Graph u_shape(int n) {
  Builder builder("u");
  builder.resident("x", 4);
  const auto name = [](const char* letter, int i) { return letter + std::to_string(i); };
  for (int i = 1; i <= 2 * n; ++i) builder.value(name("a", i), 8 * (1 + (7 * i) % 5)).value(name("g", i), 4);
  for (int i = 1; i <= 2 * n; ++i) {
    std::vector<std::string> inputs = {i == 1 ? "x" : name("a", i - 1)};
    if (i > n && 2 * n - i > 0) inputs.push_back(name("a", 2 * n - i));
    builder.op(name("f", i), 3 + (11 * i) % 7, inputs, {name("a", i)});
  }
  for (int i = 2 * n; i >= 1; --i) {
    std::vector<std::string> inputs = {name("a", i)};
    if (i > 1) inputs.push_back(name("a", i - 1));
    if (i < 2 * n) inputs.push_back(name("g", i + 1));
    builder.op(name("b", i), 5, inputs, {name("g", i)}).phase = Phase::kBackward;
  }
  builder.outputs({"g1"});
  return builder.graph();
}

TEST(PlanAuto, MoreMemoryIsNeverSlowerAndTheCurveIsTheFront) {
  const Problem problem = make_problem(u_shape(15));
  const std::vector<CurvePoint> curve = plan_curve(get_planner("auto"), problem, 5, {});
  ASSERT_GE(curve.size(), 5U);
  EXPECT_LT(curve.front().peak_bytes, problem.base_peak_bytes / 2);
  EXPECT_EQ(curve.back().time_ns, problem.base_time_ns);
  int64_t last_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i <= 20; ++i) {
    const int64_t budget_bytes =
        curve.front().peak_bytes + (problem.base_peak_bytes - curve.front().peak_bytes) * i / 20;
    const Plan plan = make_plan(get_planner("auto"), problem, {budget_bytes, {}});
    ASSERT_TRUE(plan.time_ns);
    EXPECT_LE(*plan.peak_bytes, budget_bytes);
    EXPECT_LE(*plan.time_ns, last_ns);
    EXPECT_GE(*plan.time_ns, plan.result.lower_bound_ns);
    EXPECT_EQ(plan.result.smallest_budget_bytes, curve.front().peak_bytes);
    last_ns = *plan.time_ns;
  }
  EXPECT_EQ(last_ns, problem.base_time_ns);
}

/// Also where `exhaustive` has reached its limit at some budgets and not at others: with few states it does at most.
TEST(PlanAuto, MoreMemoryIsNeverSlowerOnSmallGraphs) {
  int exact = 0;
  int limited = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    const bool is_chain = random.chance(30);
    const Problem problem =
        is_chain ? make_problem(testing::random_chain(random, static_cast<int>(random.number(2, 4))))
                 : make_problem(Graph(testing::random_graph(
                       random, {.forward_ops = static_cast<int>(random.number(3, 6)), .special = random.chance(50)})));
    PlanRequest request;
    request.limits = {.max_states = random.number(1, 1'000), .effort = Effort::kLow, .threads = 1};
    const int64_t less = random.number(50, 99);
    const int64_t more = random.number(less, 99);
    std::optional<int64_t> last_ns;
    for (const int64_t percent : {less, more}) {
      request.budget_bytes = problem.base_peak_bytes * percent / 100;
      const Plan plan = make_plan(get_planner("auto"), problem, request);
      exact += plan.result.status == PlanStatus::kOptimal ? 1 : 0;
      limited += plan.result.status == PlanStatus::kTimeout ? 1 : 0;
      if (last_ns) {
        ASSERT_TRUE(plan.time_ns) << "seed " << seed << ", " << percent << " %";
        ASSERT_LE(*plan.time_ns, *last_ns) << "seed " << seed << ", " << percent << " %\n" << to_text(problem.graph);
      }
      last_ns = plan.time_ns;
    }
  }
  EXPECT_GT(exact, 500);
  EXPECT_GT(limited, 500);
}

TEST(PlanAuto, MoreEffortIsNeverSlowerHereAndThreadsDoNotMatter) {
  const Problem problem = make_problem(u_shape(20));
  PlanRequest request;
  request.budget_bytes = problem.base_peak_bytes / 2;
  std::vector<int64_t> times;
  for (const Effort effort : {Effort::kLow, Effort::kNormal, Effort::kHigh}) {
    request.limits.effort = effort;
    request.limits.threads = 1;
    const Plan one = make_plan(get_planner("auto"), problem, request);
    request.limits.threads = 3;
    const Plan other = make_plan(get_planner("auto"), problem, request);
    EXPECT_EQ(one.result.schedule, other.result.schedule);
    times.push_back(*one.time_ns);
  }
  EXPECT_GE(times[0], times[1]);
  EXPECT_GE(times[1], times[2]);
}

TEST(PlanAuto, NeverWorseThanTheChainsOptimum) {
  for (const int depth : {11, 16}) {
    const Problem problem = make_problem(testing::vgg_bytes(depth, 8));
    const int64_t least_bytes = plan_chain(*problem.chain, {0, {}}).smallest_budget_bytes;
    for (int i = 0; i <= 7; ++i) {
      const PlanRequest request{least_bytes + (problem.base_peak_bytes - least_bytes) * i / 7, {}};
      const Plan chain = make_plan(get_planner("chain"), problem, request);
      const Plan plan = make_plan(get_planner("auto"), problem, request);
      EXPECT_LE(*plan.time_ns, *chain.time_ns) << "VGG-" << depth << " within " << *request.budget_bytes;
      EXPECT_LE(plan.result.smallest_budget_bytes, least_bytes);
    }
  }
}

/// Blocks of the same shape, sizes of many bytes that no number of slots divides: where `chain` rounds, it loses.
Chain equal_blocks(int length, Random& random) {
  Chain chain;
  chain.name = "blocks";
  chain.input_bytes = 1'000'003;
  const int64_t output_bytes = random.number(1'000'000, 9'000'000);
  for (int i = 0; i < length; ++i) {
    Stage stage;
    stage.name = "s" + std::to_string(i);
    stage.output_bytes = output_bytes;
    stage.tape_bytes = output_bytes + (i % 4 == 3 ? 3 : 5) * 1'234'567;
    stage.forward_ns = 1'000'000 + 1'000 * (i % 3);
    stage.backward_ns = 2 * stage.forward_ns;
    chain.stages.push_back(std::move(stage));
  }
  return chain;
}

TEST(PlanAuto, MakesOneFrontForAllBudgets) {
  const Problem problem = make_problem(u_shape(12));
  const FlatGraph flat(problem.graph);
  const PlanLimits limits{.effort = Effort::kLow, .threads = 1};
  const std::shared_ptr<const AutoFront> front = problem.cache->get<AutoFronts>().get(problem, flat, limits);
  for (int64_t budget_bytes = problem.base_peak_bytes; budget_bytes > 0; budget_bytes -= problem.base_peak_bytes / 7) {
    const Plan plan = make_plan(get_planner("auto"), problem, {budget_bytes, limits});
    const Plan fresh = make_plan(get_planner("auto"), Problem(problem.graph, problem.chain), {budget_bytes, limits});
    EXPECT_EQ(plan.result.schedule, fresh.result.schedule) << budget_bytes;
    EXPECT_EQ(plan.result.smallest_budget_bytes, fresh.result.smallest_budget_bytes) << budget_bytes;
  }
  EXPECT_EQ(auto_curve(problem, limits), auto_curve(Problem(problem.graph, problem.chain), limits));
  EXPECT_EQ(problem.cache->get<AutoFronts>().get(problem, flat, limits), front);
  const Problem copy = problem;
  EXPECT_EQ(copy.cache->get<AutoFronts>().get(copy, FlatGraph(copy.graph), limits), front);
  EXPECT_NE(problem.cache->get<AutoFronts>().get(problem, flat, {.effort = Effort::kNormal, .threads = 1}), front);
}

/// At the very peak of each plan that another planner has within budgets at random.
TEST(PlanAuto, NeverSlowerThanAnotherPlannerAtAnyBudget) {
  Random random(5);
  std::vector<Problem> problems;
  for (const int length : {12, 18, 24}) problems.push_back(make_problem(equal_blocks(length, random)));
  problems.push_back(make_problem(u_shape(12)));
  int compared = 0;
  for (const Problem& problem : problems) {
    const PlanLimits limits{.effort = Effort::kLow, .threads = 1};
    const FlatGraph flat(problem.graph);
    const AutoFront front = make_auto_front(problem, flat, limits);
    for (int i = 0; i < 30; ++i) {
      const PlanRequest request{random.number(front.plans.front().peak_bytes, problem.base_peak_bytes), limits};
      for (const Planner& planner : planners()) {
        if (planner.name == "auto" || planner.name == "exhaustive") continue;
        if (!planner.takes_graphs && !problem.chain) continue;
        const Plan other = make_plan(planner, problem, request);
        if (!other.time_ns) continue;
        ++compared;
        const std::optional<JudgedRuns> plan = pick_within(flat, front, *other.peak_bytes);
        ASSERT_TRUE(plan) << planner.name << " within " << *request.budget_bytes;
        ASSERT_LE(plan->time_ns, *other.time_ns) << planner.name << " at " << *other.peak_bytes;
      }
    }
  }
  EXPECT_GT(compared, 300);
}

/// What `auto` returns at high effort, at two budgets of small graphs and chains.
TEST(PlanAuto, HasTheOptimumOfSmallInputsAtHighEffort) {
  int cases = 0;
  int equal = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const Problem problem =
        random.chance(50) ? make_problem(testing::random_chain(random, static_cast<int>(random.number(2, 7))))
                          : make_problem(Graph(testing::random_graph(
                                random, {.forward_ops = static_cast<int>(random.number(3, 10)), .special = false})));
    PlanRequest request;
    request.limits = {.max_states = 100'000, .effort = Effort::kHigh, .threads = 1};
    for (const int share : {80, 90}) {
      request.budget_bytes = problem.base_peak_bytes * share / 100;
      const auto values =
          std::ranges::count_if(problem.graph.values(), [](const Value& value) { return !value.resident; });
      if (values > static_cast<int64_t>(ExhaustiveLimits::kMostValues)) continue;
      const Plan optimum = make_plan(get_planner("exhaustive"), problem, request);
      if (optimum.result.status != PlanStatus::kOptimal) continue;
      const Plan plan = make_plan(get_planner("auto"), problem, request);
      ASSERT_TRUE(!plan.time_ns || *plan.time_ns >= *optimum.time_ns) << "seed " << seed;
      ASSERT_LE(plan.result.lower_bound_ns, *optimum.time_ns) << "seed " << seed;
      ++cases;
      equal += plan.time_ns == optimum.time_ns ? 1 : 0;
    }
  }
  RecordProperty("cases", cases);
  EXPECT_GE(cases, 20);
  EXPECT_GE(equal * 100, cases * 99);
}

// u_shape(4) has 16 values: `exhaustive` is asked, and gives up after ten states.
TEST(PlanAuto, ALimitThatIsReachedGivesTheBestPlanSoFar) {
  const Problem problem = make_problem(u_shape(4));
  PlanRequest request;
  request.budget_bytes = problem.base_peak_bytes * 3 / 4;
  const Plan optimum = make_plan(get_planner("auto"), problem, request);
  ASSERT_EQ(optimum.result.status, PlanStatus::kOptimal);
  ASSERT_GT(*optimum.time_ns, optimum.base_time_ns) << "something must run again";
  request.limits.max_states = 10;
  const Plan plan = make_plan(get_planner("auto"), problem, request);
  EXPECT_EQ(plan.result.status, PlanStatus::kTimeout);
  ASSERT_TRUE(plan.time_ns);
  EXPECT_GE(*plan.time_ns, *optimum.time_ns);
  request.budget_bytes = problem.base_peak_bytes;
  EXPECT_EQ(make_plan(get_planner("auto"), problem, request).result.status, PlanStatus::kOptimal) << "plain training";
  request.budget_bytes = 0;
  EXPECT_EQ(make_plan(get_planner("auto"), problem, request).result.status, PlanStatus::kInfeasible);
}

/// Runs `auto` at some budgets, which must be sound.
void expect_sound(const Graph& graph, const std::string& what) {
  const Problem problem = make_problem(graph);
  for (const int64_t budget_bytes :
       {problem.base_peak_bytes, problem.base_peak_bytes / 4 * 3, problem.base_peak_bytes / 2, int64_t{0}}) {
    const Plan plan = make_plan(get_planner("auto"), problem, {budget_bytes, {}});
    EXPECT_EQ(plan.time_ns.has_value(), plan.result.schedule.has_value()) << what;
    if (plan.time_ns) {
      EXPECT_GE(*plan.time_ns, plan.result.lower_bound_ns) << what;
    } else {
      EXPECT_LT(budget_bytes, problem.base_peak_bytes) << what;
      EXPECT_GT(plan.result.smallest_budget_bytes, budget_bytes) << what;
    }
  }
}

/// The slow producer is listed last, so that store-all runs it: 1000 + 20. The other takes 1 + 20.
TEST(PlanAuto, RunsTheFastestProducer) {
  Builder builder("slow_last");
  builder.resident("x", 1).value("a0", 1);
  builder.op("fast", 1, {"x"}, {"a0"});
  builder.op("slow", 1000, {"x"}, {"a0"});
  for (int i = 1; i <= 20; ++i) {
    const std::string number = std::to_string(i);
    builder.value("a" + number, 1).op("f" + number, 1, {"a" + std::to_string(i - 1)}, {"a" + number});
  }
  builder.outputs({"a20"});
  const Plan plan = make_plan(get_planner("auto"), make_problem(builder.graph()), {100, {}});
  EXPECT_EQ(plan.time_ns, 21);
  EXPECT_EQ(plan.result.status, PlanStatus::kOptimal);
}

/// The faster producer reads something else, which an op of its own makes: 1 + 2 + 20 instead of 1000 + 20.
TEST(PlanAuto, RunsWhatTheFastestProducerReads) {
  Builder builder("slow_last");
  builder.resident("x", 1).value("b", 1).value("a0", 1);
  builder.op("other", 1, {"x"}, {"b"});
  builder.op("fast", 2, {"b"}, {"a0"});
  builder.op("slow", 1000, {"x"}, {"a0"});
  for (int i = 1; i <= 20; ++i) {
    const std::string number = std::to_string(i);
    builder.value("a" + number, 1).op("f" + number, 1, {"a" + std::to_string(i - 1)}, {"a" + number});
  }
  builder.outputs({"a20"});
  EXPECT_EQ(make_plan(get_planner("auto"), make_problem(builder.graph()), {100, {}}).time_ns, 23);
}

/// At every point of the curve, on graphs that `exhaustive` does not take; and a higher effort is no slower at any.
TEST(PlanAuto, ReachesItsCurveAndHigherEffortsAreNoSlower) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    Random random(seed);
    const Problem problem = make_problem(Graph(testing::random_graph(
        random, {.forward_ops = static_cast<int>(random.number(21, 24)), .most_bytes = 100, .special = false})));
    const FlatGraph flat(problem.graph);
    std::vector<AutoFront> fronts;
    for (const Effort effort : {Effort::kLow, Effort::kNormal, Effort::kHigh})
      fronts.push_back(make_auto_front(problem, flat, {.effort = effort, .threads = 1}));
    for (const CurvePoint& point : auto_curve(problem, {.threads = 1})) {
      int64_t last_ns = std::numeric_limits<int64_t>::max();
      for (size_t i = 0; i < fronts.size(); ++i) {
        const std::optional<JudgedRuns> plan = pick_within(flat, fronts[i], point.peak_bytes);
        const int64_t time_ns = plan ? plan->time_ns : std::numeric_limits<int64_t>::max();
        EXPECT_LE(time_ns, last_ns) << "effort " << i << " at " << point.peak_bytes << ", seed " << seed;
        if (i == 1) {
          EXPECT_LE(time_ns, point.time_ns) << "at " << point.peak_bytes << ", seed " << seed;
        }
        last_ns = time_ns;
      }
    }
  }
}

TEST(PlanAuto, OneGiantLayer) {
  Builder builder("giant");
  builder.resident("x", 1).value("a", 1'000'000).value("g", 1);
  builder.op("f", 5, {"x"}, {"a"});
  builder.op("b", 6, {"a"}, {"g"}).phase = Phase::kBackward;
  for (int i = 0; i < 30; ++i) {  // too many for `exhaustive`
    builder.value("s" + std::to_string(i), 1);
    builder.op("o" + std::to_string(i), 1, {"x"}, {"s" + std::to_string(i)});
  }
  builder.outputs({"g"});
  const Problem problem = make_problem(builder.graph());
  EXPECT_EQ(make_plan(get_planner("auto"), problem, {1'000'002, {}}).result.status, PlanStatus::kOptimal);
  EXPECT_EQ(make_plan(get_planner("auto"), problem, {1'000'001, {}}).result.status, PlanStatus::kInfeasible);
  expect_sound(builder.graph(), "giant");
}

TEST(PlanAuto, ThousandsOfSinks) {
  Builder builder("sinks");
  builder.resident("x", 1).value("a", 10);
  builder.op("f", 5, {"x"}, {"a"});
  std::vector<std::string> outputs;
  for (int i = 0; i < 3000; ++i) {
    outputs.push_back("s" + std::to_string(i));
    builder.value(outputs.back(), i % 3);
    builder.op("o" + std::to_string(i), i % 2, {"a"}, {outputs.back()});
  }
  builder.outputs(outputs);
  expect_sound(builder.graph(), "sinks");
}

TEST(PlanAuto, NoTimeNoBytes) {
  GraphSpec spec = u_shape(12).spec();
  for (Op& op : spec.ops) op.time_ns = 0;
  expect_sound(Graph(spec), "no time");
  for (Value& value : spec.values) value.bytes = 0;
  expect_sound(Graph(spec), "no time, no bytes");
}

TEST(PlanAuto, SizesAndTimesNearTheLargest) {
  GraphSpec spec = u_shape(12).spec();
  const auto values = static_cast<int64_t>(spec.values.size());
  for (Value& value : spec.values) value.bytes = (int64_t{1} << 62) / values;
  expect_sound(Graph(spec), "sizes");
  const auto ops = static_cast<int64_t>(spec.ops.size());
  for (Op& op : spec.ops) op.time_ns = (int64_t{1} << 62) / ops;
  expect_sound(Graph(spec), "sizes and times");
}

TEST(PlanAuto, AValueLargerThanTheBudget) {
  for (const int n : {2, 12}) {  // with `exhaustive` and without
    GraphSpec spec = u_shape(n).spec();
    spec.values[3].bytes = 1'000'000;
    const Problem problem = make_problem(Graph(spec));
    const Plan plan = make_plan(get_planner("auto"), problem, {999'999, {}});
    EXPECT_EQ(plan.result.status, PlanStatus::kInfeasible);
    EXPECT_FALSE(plan.result.schedule);
    expect_sound(Graph(spec), "one large value");
  }
}

TEST(PlanAuto, OneValueNearTheLargest) {
  GraphSpec spec = u_shape(12).spec();
  spec.values[5].bytes = (int64_t{1} << 62) - 1'000;
  expect_sound(Graph(spec), "one value near 2^62");
  spec.ops[3].time_ns = (int64_t{1} << 62) - 1'000;
  expect_sound(Graph(spec), "and one op");
}

TEST(PlanAuto, OpsThatRunOnce) {
  GraphSpec spec = u_shape(12).spec();
  for (Op& op : spec.ops) op.recompute = false;
  const Problem problem = make_problem(Graph(spec));
  const Plan plan = make_plan(get_planner("auto"), problem, {problem.base_peak_bytes - 1, {}});
  EXPECT_EQ(plan.result.status, PlanStatus::kInfeasible) << "nothing can be made again";
  expect_sound(Graph(spec), "once");
}

}  // namespace
}  // namespace headroom::internal
