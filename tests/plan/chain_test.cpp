#include "headroom/plan/chain/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/steps.h"
#include "tests/plan/random_chain.h"

namespace headroom::internal {
namespace {

using testing::deep_chain;
using testing::Random;
using testing::random_chain;
using testing::text_of;

constexpr int64_t kExactSlots = std::numeric_limits<int64_t>::max();

PlanRequest request_of(int64_t budget_bytes, int threads = 1) {
  PlanRequest request;
  request.budget_bytes = budget_bytes;
  request.limits.threads = threads;
  return request;
}

PlanResult plan_exactly(const Chain& chain, int64_t budget_bytes) {
  return plan_chain(chain, request_of(budget_bytes), {.slots = kExactSlots});
}

/// Returns all ways to reverse the stages i..l, as runs, independently of the planner's tables. `forwards` has the op that
/// runs each stage without keeping a tape.
std::vector<std::vector<OpId>> all_ways(const ChainIds& ids, const std::vector<OpId>& forwards, int i, int l) {
  if (i == l) return {{ids.record(i), ids.backward(i)}};
  std::vector<std::vector<OpId>> ways;
  for (const std::vector<OpId>& rest : all_ways(ids, forwards, i + 1, l)) {
    std::vector<OpId> way = {ids.record(i)};
    way.insert(way.end(), rest.begin(), rest.end());
    way.push_back(ids.backward(i));
    ways.push_back(way);
  }
  for (int j = i; j < l; ++j) {
    const std::vector<std::vector<OpId>> before = all_ways(ids, forwards, i, j);
    for (const std::vector<OpId>& rest : all_ways(ids, forwards, j + 1, l)) {
      for (const std::vector<OpId>& first : before) {
        std::vector<OpId> way;
        for (int k = i; k <= j; ++k) way.push_back(forwards[static_cast<size_t>(k)]);
        way.insert(way.end(), rest.begin(), rest.end());
        way.insert(way.end(), first.begin(), first.end());
        ways.push_back(way);
      }
    }
  }
  return ways;
}

/// Returns the minimum time within each peak over all ways, both from simulate().
std::map<int64_t, int64_t> brute_force_front(const Chain& chain) {
  const Graph graph = to_graph(chain);
  const ChainIds ids(chain.length());
  const auto is_apart = [](const Stage& stage) { return stage.record_workspace_bytes.has_value(); };
  const bool records_apart = std::ranges::any_of(chain.stages, is_apart);
  std::map<int64_t, int64_t> front;
  // A forward runs by F, or by R whose tape is dropped. Which of them takes less memory is the same at every moment.
  for (int by_record = 0; by_record < (records_apart ? 1 << chain.length() : 1); ++by_record) {
    std::vector<OpId> forwards = {OpId{-1}};
    for (int k = 1; k <= chain.length(); ++k)
      forwards.push_back((by_record >> (k - 1) & 1) != 0 ? ids.record(k) : ids.forward(k));
    for (const std::vector<OpId>& runs : all_ways(ids, forwards, 1, chain.length())) {
      const Simulation simulation = simulate(graph, with_drops(graph, runs));
      EXPECT_FALSE(simulation.error.has_value()) << simulation.error->message;
      const auto [place, is_new] = front.try_emplace(simulation.peak_bytes, simulation.time_ns);
      if (!is_new) place->second = std::min(place->second, simulation.time_ns);
    }
  }
  int64_t min_ns = std::numeric_limits<int64_t>::max();
  for (auto& [peak_bytes, time_ns] : front) time_ns = min_ns = std::min(min_ns, time_ns);
  return front;
}

/// Returns the simulation of a plan, which must be valid and within the budget.
Simulation judge(const Graph& graph, const PlanResult& result, int64_t budget_bytes) {
  Simulation simulation;
  EXPECT_TRUE(result.schedule.has_value());
  if (!result.schedule) return simulation;
  simulation = simulate(graph, *result.schedule);
  EXPECT_FALSE(simulation.error.has_value()) << "step " << simulation.error->step << ": " << simulation.error->message;
  EXPECT_LE(simulation.peak_bytes, budget_bytes);
  EXPECT_GE(simulation.time_ns, result.lower_bound_ns);
  return simulation;
}

Stage stage_of(std::string name, int64_t forward_ns, int64_t backward_ns, int64_t output_bytes, int64_t tape_bytes,
               int64_t forward_workspace_bytes = 0, int64_t backward_workspace_bytes = 0) {
  return {std::move(name),          forward_ns, backward_ns, output_bytes, tape_bytes, forward_workspace_bytes,
          backward_workspace_bytes, 0};
}

Chain rotor_a() {
  Chain chain{"rotor-a", 0, 1, 1, {}};
  for (int i = 1; i <= 5; ++i) chain.stages.push_back(stage_of("s" + std::to_string(i), 1, 2, 1, 2));
  chain.stages.push_back(stage_of("loss", 0, 0, 0, 0));
  return chain;
}

Chain rotor_b() {
  return {"rotor-b",
          0,
          4,
          4,
          {stage_of("s1", 2, 4, 3, 8, 1, 2), stage_of("s2", 3, 5, 2, 5, 0, 1), stage_of("s3", 1, 2, 3, 6, 2, 1),
           stage_of("s4", 4, 7, 1, 4, 1, 3), stage_of("s5", 2, 3, 2, 5), stage_of("s6", 5, 9, 1, 2, 1, 2),
           stage_of("loss", 0, 0, 0, 0)}};
}

void expect_row(const Chain& chain, int64_t first_budget_bytes, const std::vector<int64_t>& times_ns) {
  const Graph graph = to_graph(chain);
  EXPECT_EQ(plan_exactly(chain, first_budget_bytes - 1).status, PlanStatus::kInfeasible);
  EXPECT_EQ(plan_exactly(chain, first_budget_bytes - 1).smallest_budget_bytes, first_budget_bytes);
  int64_t budget_bytes = first_budget_bytes;
  for (const int64_t time_ns : times_ns) {
    const PlanResult result = plan_exactly(chain, budget_bytes);
    EXPECT_EQ(result.status, PlanStatus::kOptimal);
    EXPECT_EQ(result.smallest_budget_bytes, first_budget_bytes);
    EXPECT_EQ(judge(graph, result, budget_bytes).time_ns, time_ns) << chain.name << " within " << budget_bytes;
    ++budget_bytes;
  }
}

TEST(PlanChain, PublishedRowA) {
  expect_row(rotor_a(), 6, {25, 20, 19, 18, 17, 17, 16, 15});
  EXPECT_EQ(plan_exactly(rotor_a(), 13).lower_bound_ns, 15);
}

TEST(PlanChain, PublishedRowB) {
  expect_row(rotor_b(), 21, {60, 57, 55, 55, 53, 53, 53, 52, 52, 52, 50, 50, 50, 49, 49});
  const Simulation all = judge(to_graph(rotor_b()), plan_exactly(rotor_b(), 39), 39);
  EXPECT_EQ(all.time_ns, 47);
  EXPECT_EQ(all.peak_bytes, 39);
}

// Two stages of output 3 and tape 5, the last gradient resident (3), no input.
//   Recorded both:  R1 3+5, R2 3+5+5, B2 3+5+5+3 (g1), B1 3+5+3+0 (g0): peak 16, 10 ns forward, 20 backward.
//   Keep a1:        F1 3+3, R2 3+3+5, B2 3+3+5+3 = 14, then with a1, a2, t2 gone R1 3+3 (g1)+5, B1 3+3+5+0: peak 14,
//                   stage 1 forward once more: 4 ns.
TEST(PlanChain, TwoStagesByHand) {
  const Chain chain{"two", 0, 0, 0, {stage_of("one", 4, 8, 3, 5), stage_of("two", 6, 12, 3, 5)}};
  const Graph graph = to_graph(chain);
  const ChainIds ids(2);
  const PlanResult recorded = plan_exactly(chain, 16);
  EXPECT_EQ(recorded.status, PlanStatus::kOptimal);
  EXPECT_EQ(recorded.smallest_budget_bytes, 14);
  EXPECT_EQ(recorded.lower_bound_ns, 30);
  EXPECT_EQ(judge(graph, recorded, 16).time_ns, 30);
  EXPECT_EQ(judge(graph, recorded, 16).peak_bytes, 16);

  const PlanResult kept = plan_exactly(chain, 15);
  EXPECT_EQ(kept.status, PlanStatus::kOptimal);
  EXPECT_EQ(judge(graph, kept, 15).time_ns, 34);
  EXPECT_EQ(judge(graph, kept, 15).peak_bytes, 14);
  const std::vector<Step> expected = {
      Step::run(ids.forward(1)), Step::run(ids.record(2)),  Step::run(ids.backward(2)),  Step::drop(ids.tape(2)),
      Step::drop(ids.output(2)), Step::drop(ids.output(1)), Step::run(ids.record(1)),    Step::run(ids.backward(1)),
      Step::drop(ids.tape(1)),   Step::drop(ids.output(1)), Step::drop(ids.gradient(1)),
  };
  EXPECT_EQ(kept.schedule->steps, expected);

  const PlanResult none = plan_exactly(chain, 13);
  EXPECT_EQ(none.status, PlanStatus::kInfeasible);
  EXPECT_FALSE(none.schedule.has_value());
  EXPECT_EQ(none.smallest_budget_bytes, 14);
}

// One stage: w 7, a0 2 and g1 3 are resident; R1 adds 4 + 1, B1 adds 4 + g0 2 + p1 5 + 6 = 17: 29 at least.
TEST(PlanChain, OneStage) {
  Chain chain{"one", 7, 2, 2, {stage_of("only", 1, 2, 3, 4, 1, 6)}};
  chain.stages[0].gradient_bytes = 5;
  EXPECT_EQ(plan_exactly(chain, 28).status, PlanStatus::kInfeasible);
  const PlanResult result = plan_exactly(chain, 29);
  EXPECT_EQ(result.smallest_budget_bytes, 29);
  EXPECT_EQ(result.status, PlanStatus::kOptimal);
  EXPECT_EQ(judge(to_graph(chain), result, 29).peak_bytes, 29);
}

// The chain of TwoStagesByHand, stage 1 with a workspace of 9 unrecorded and of -4 recorded.
//   Keep a1 by R1 and a drop of t1: 3+5-4 instead of F1's 3+3+9 = 15; then B2 14 as before, and a rerun of R1 3+3+5-4.
TEST(PlanChain, ForwardByRecordingWhereThatIsLeaner) {
  Chain chain{"two", 0, 0, 0, {stage_of("one", 4, 8, 3, 5, 9), stage_of("two", 6, 12, 3, 5)}};
  chain.stages[0].record_workspace_bytes = -4;
  const PlanResult kept = plan_exactly(chain, 15);
  EXPECT_EQ(kept.smallest_budget_bytes, 14);
  EXPECT_EQ(judge(to_graph(chain), kept, 14).time_ns, 34);
  EXPECT_EQ(kept.schedule->steps[0], Step::run(ChainIds(2).record(1)));
  EXPECT_EQ(kept.schedule->steps[1], Step::drop(ChainIds(2).tape(1)));
}

TEST(PlanChain, NothingHasASize) {
  Chain chain{"empty", 0, 0, 0, {}};
  for (int i = 1; i <= 40; ++i) chain.stages.push_back(stage_of("s" + std::to_string(i), 1, 1, 0, 0));
  const PlanResult result = plan_exactly(chain, 0);
  EXPECT_EQ(result.status, PlanStatus::kOptimal);
  EXPECT_EQ(result.smallest_budget_bytes, 0);
  EXPECT_EQ(judge(to_graph(chain), result, 0).time_ns, 80);
}

// Only recording a tape takes memory (1 each, 40 stages), so that every keep is of size 0.
TEST(PlanChain, OutputsHaveNoSize) {
  Chain chain{"tapes", 0, 0, 0, {}};
  for (int i = 1; i <= 40; ++i) chain.stages.push_back(stage_of("s" + std::to_string(i), 1, 1, 0, 1));
  const Graph graph = to_graph(chain);
  // With at most k tapes at a time, the first 40 - k stages run forward once, and again to be recorded.
  for (int64_t k = 1; k <= 40; ++k) {
    const PlanResult result = plan_exactly(chain, k);
    EXPECT_EQ(result.smallest_budget_bytes, 1);
    EXPECT_EQ(judge(graph, result, k).time_ns, 80 + 40 - k);
  }
}

TEST(PlanChain, EqualsBruteForceOnRandomChains) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    const int length = static_cast<int>(random.between(1, seed % 20 == 0 ? 6 : 5));
    const Chain chain = random_chain(random, length);
    const std::map<int64_t, int64_t> front = brute_force_front(chain);
    const Graph graph = to_graph(chain);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text_of(chain));
    const int64_t smallest_bytes = front.begin()->first;
    const int64_t largest_bytes = front.rbegin()->first;
    for (int64_t budget_bytes = smallest_bytes - 2; budget_bytes <= largest_bytes + 1; ++budget_bytes) {
      const PlanResult result = plan_exactly(chain, budget_bytes);
      ASSERT_EQ(result.smallest_budget_bytes, smallest_bytes);
      if (budget_bytes < smallest_bytes) {
        ASSERT_EQ(result.status, PlanStatus::kInfeasible);
        ASSERT_FALSE(result.schedule.has_value());
      } else {
        ASSERT_EQ(result.status, PlanStatus::kOptimal);
        ASSERT_EQ(judge(graph, result, budget_bytes).time_ns, std::prev(front.upper_bound(budget_bytes))->second)
            << "within " << budget_bytes;
      }
    }
  }
}

// A factor on all times changes only the times, even if they do not fit 32 bits.
TEST(PlanChain, LongTimes) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    Chain chain = random_chain(random, static_cast<int>(random.between(2, 12)));
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text_of(chain));
    const int64_t budget_bytes = plan_exactly(chain, 0).smallest_budget_bytes + random.between(0, 10);
    const std::optional<Schedule> expected = plan_exactly(chain, budget_bytes).schedule;
    for (const int64_t factor : {1'000, 30'000'000, 200'000'000, 1'000'000'000}) {
      Chain longer = chain;
      for (Stage& stage : longer.stages) stage.forward_ns *= factor;
      ASSERT_EQ(plan_exactly(longer, budget_bytes).schedule, expected) << "factor " << factor;
    }
  }
}

TEST(PlanChain, StaysWithinTheBudgetWithFewSlots) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, static_cast<int>(random.between(1, 20)), 7);
    const Graph graph = to_graph(chain);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text_of(chain));
    const int64_t smallest_bytes = plan_exactly(chain, 0).smallest_budget_bytes;
    const int64_t largest_bytes = simulate(graph, store_all(graph)).peak_bytes;
    const int64_t budget_bytes = random.between(smallest_bytes, std::max(largest_bytes, smallest_bytes));
    const int64_t slots = random.between(1, 40);
    const PlanResult result = plan_chain(chain, request_of(budget_bytes), {.slots = slots});
    const Simulation simulation = judge(graph, result, budget_bytes);
    ASSERT_EQ(result.smallest_budget_bytes, smallest_bytes);
    const int64_t optimal_ns = judge(graph, plan_exactly(chain, budget_bytes), budget_bytes).time_ns;
    ASSERT_GE(simulation.time_ns, optimal_ns);
    if (result.status == PlanStatus::kOptimal) {
      ASSERT_EQ(simulation.time_ns, optimal_ns);
    } else {
      ASSERT_EQ(result.status, PlanStatus::kFeasible);
    }
    if (HasFailure()) break;
  }
}

TEST(PlanChain, PlansTheSmallestBudgetWithOneSlot) {
  const Chain chain = deep_chain(60);
  const Graph graph = to_graph(chain);
  const int64_t smallest_bytes = plan_chain(chain, request_of(0)).smallest_budget_bytes;
  const PlanResult result = plan_chain(chain, request_of(smallest_bytes), {.slots = 1});
  EXPECT_EQ(result.status, PlanStatus::kFeasible);
  EXPECT_EQ(judge(graph, result, smallest_bytes).peak_bytes, smallest_bytes);
}

TEST(PlanChain, MoreMemoryIsNeverSlower) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const Chain chain = random_chain(random, static_cast<int>(random.between(10, 50)));
    const Graph graph = to_graph(chain);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text_of(chain));
    const int64_t smallest_bytes = plan_exactly(chain, 0).smallest_budget_bytes;
    int64_t min_ns = std::numeric_limits<int64_t>::max();
    for (int64_t budget_bytes = smallest_bytes; budget_bytes <= smallest_bytes + 150; ++budget_bytes) {
      const int64_t time_ns = judge(graph, plan_exactly(chain, budget_bytes), budget_bytes).time_ns;
      ASSERT_LE(time_ns, min_ns);
      min_ns = time_ns;
    }
  }
}

TEST(PlanChain, ThreadsDoNotChangeThePlan) {
  const Chain chain = deep_chain(110);
  const int64_t smallest_bytes = plan_chain(chain, request_of(0)).smallest_budget_bytes;
  for (const int64_t factor : {11, 30}) {
    const int64_t budget_bytes = smallest_bytes * factor / 10;
    const PlanResult single = plan_chain(chain, request_of(budget_bytes, 1));
    ASSERT_TRUE(single.schedule.has_value());
    for (const int threads : {0, 2, 5})
      EXPECT_EQ(single.schedule, plan_chain(chain, request_of(budget_bytes, threads)).schedule);
  }
}

TEST(PlanChain, LongChainsThatFitAreRecorded) {
  Chain chain{"long", 0, 1, 1, {}};
  for (int i = 1; i <= 100'000; ++i) chain.stages.push_back(stage_of("s" + std::to_string(i), 1, 2, 1, 2));
  const PlanResult result = plan_chain(chain, request_of(1'000'000));
  EXPECT_EQ(result.status, PlanStatus::kOptimal);
  EXPECT_EQ(result.smallest_budget_bytes, -1);  // Not computed.
  EXPECT_EQ(judge(to_graph(chain), result, 1'000'000).time_ns, 300'000);
}

void expect_error(const Chain& chain, const PlanRequest& request, const ChainOptions& options,
                  const std::string& part) {
  try {
    plan_chain(chain, request, options);
    ADD_FAILURE() << "expected an error with: " << part;
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(PlanChain, Errors) {
  expect_error(rotor_a(), {}, {}, "expected a budget");
  expect_error(rotor_a(), request_of(10), {.slots = 0}, "slots must be at least 1, found 0");
  expect_error(Chain{}, request_of(10), {}, "at least one stage");

  Chain bad = rotor_a();
  bad.stages[2].tape_bytes = 0;
  expect_error(bad, request_of(10), {}, "tape_bytes");

  Chain slow = rotor_a();
  for (Stage& stage : slow.stages) stage.forward_ns = int64_t{1} << 50;
  expect_error(slow, request_of(8), {}, "2^53");
  EXPECT_EQ(plan_chain(slow, request_of(13)).status, PlanStatus::kOptimal);
  EXPECT_EQ(plan_chain(slow, request_of(5)).status, PlanStatus::kInfeasible);

  Chain uneven = rotor_a();
  uneven.stages[0].record_workspace_bytes = std::numeric_limits<int64_t>::max();
  expect_error(uneven, request_of(10), {}, "64 bits");

  Chain wide = rotor_a();
  for (Stage& stage : wide.stages) stage.tape_bytes += int64_t{1} << 40;
  expect_error(wide, request_of(int64_t{4} << 40), {.slots = kExactSlots}, "fewer slots");

  Chain huge = rotor_a();
  huge.stages[0].tape_bytes = int64_t{1} << 62;
  huge.stages[1].forward_workspace_bytes = huge.stages[1].backward_workspace_bytes = -(int64_t{5} << 60);
  expect_error(huge, request_of(10), {}, "64 bits");

  Chain many{"many", 0, 1, 1, {}};
  for (int i = 1; i <= 5000; ++i) many.stages.push_back(stage_of("s" + std::to_string(i), 1, 2, 1, 2));
  expect_error(many, request_of(1000), {}, "at most 2048 stages, found 5000");
}

}  // namespace
}  // namespace headroom::internal
