#include "headroom/plan/chain/binomial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "headroom/core/simulate.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

/// Returns a chain with a forward of 1 ns, a backward of 0 ns and outputs of a byte, so that time counts forward runs.
Chain uniform_chain(int length) {
  Chain chain{"uniform", 0, 1, 0, {}};
  for (int i = 0; i < length; ++i) chain.stages.push_back(Stage{"s", 1, 0, 1, 1, 0, 0, 0});
  return chain;
}

/// Returns the minimum number of unrecorded forwards, by the recurrence over the position of the next kept state.
int64_t fewest_forwards(int length, int states) {
  static std::map<std::pair<int, int>, int64_t> known;
  if (length <= 1) return 0;
  if (states == 1) return int64_t{length} * (length - 1) / 2;
  const auto [entry, is_new] = known.try_emplace({length, states}, 0);
  if (!is_new) return entry->second;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (int k = 1; k < length; ++k)
    fewest = std::min(fewest, k + fewest_forwards(length - k, states - 1) + fewest_forwards(k, states));
  return known[{length, states}] = fewest;
}

TEST(Binomial, FormulaIsTheLeast) {
  // t(10, 3): beta(3,2) = 10, so r = 2: 2 * 10 - beta(4, 1) = 20 - 5 = 15.
  EXPECT_EQ(binomial_forwards(10, 3), 15);
  for (int length = 1; length <= 60; ++length)
    for (int states = 1; states <= 8; ++states)
      EXPECT_EQ(binomial_forwards(length, states), fewest_forwards(length, states)) << length << ", " << states;
}

TEST(Binomial, RunsAsManyForwardsAsTheFormulaSays) {
  for (int length = 1; length <= 60; ++length) {
    const Chain chain = uniform_chain(length);
    const Graph graph = to_graph(chain);
    for (int states = 1; states <= 12; ++states) {
      const PlanResult plan = plan_binomial(chain, {}, {states});
      const Simulation result = simulate(graph, *plan.schedule);
      ASSERT_FALSE(result.error) << length << ", " << states << ": " << result.error->message;
      EXPECT_EQ(result.time_ns, length + binomial_forwards(length, std::min(states, length)))
          << length << ", " << states;
      // a0 and g{L} are resident; states - 1 kept; then the state that backward starts from, a{i}, g{i} and g{i-1}.
      EXPECT_LE(result.peak_bytes, 2 + (std::min(states, length) - 1) + 4) << length << ", " << states;
    }
  }
}

TEST(Binomial, TakesTheFastestThatFits) {
  const Chain chain = uniform_chain(30);
  const Graph graph = to_graph(chain);
  int64_t previous_ns = std::numeric_limits<int64_t>::max();
  for (int64_t budget_bytes = 1; budget_bytes <= 40; ++budget_bytes) {
    const PlanResult plan = plan_binomial(chain, {budget_bytes, {}});
    ASSERT_EQ(plan.status == PlanStatus::kFeasible, budget_bytes >= plan.smallest_budget_bytes);
    if (!plan.schedule) {
      EXPECT_EQ(plan.status, PlanStatus::kInfeasible);
      continue;
    }
    const Simulation result = simulate(graph, *plan.schedule);
    EXPECT_LE(result.peak_bytes, budget_bytes);
    EXPECT_LE(result.time_ns, previous_ns);
    previous_ns = result.time_ns;
  }
  EXPECT_EQ(previous_ns, 30 + 29) << "with memory for all inputs each stage runs twice but the last";
}

TEST(Binomial, RandomChainsAreValid) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    testing::Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 9)));
    const PlanResult plan = plan_binomial(chain, {});
    const auto error = verify(to_graph(chain), *plan.schedule);
    EXPECT_FALSE(error) << "seed " << seed << ": " << error->message;
  }
}

TEST(Binomial, RefusesWhatItCannotDo) {
  EXPECT_THROW(plan_binomial(uniform_chain(3), {}, {0}), InvalidInput);
  EXPECT_THROW(plan_binomial(uniform_chain(100'000), {}, {1}), NotApplicable);
}

}  // namespace
}  // namespace headroom::internal
