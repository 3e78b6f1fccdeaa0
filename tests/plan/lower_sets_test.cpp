#include "headroom/plan/graph/lower_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "headroom/core/simulate.h"
#include "tests/plan/training_step.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::ForwardSpec;
using testing::path;
using testing::random_forward;
using testing::training_step;

constexpr int64_t kMany = 1'000'000;

ForwardGraph forward_of(const ForwardSpec& spec) { return forward_graph(Graph(training_step(spec)), "lower-sets"); }

/// Tries all increasing sequences of lower sets.
class BruteForce {
 public:
  BruteForce(const ForwardSpec& spec, int64_t bound) : spec_(spec), bound_(bound) { extend(0, 0, 0); }

  std::optional<std::pair<int64_t, int64_t>> best;  ///< time, kept bytes

 private:
  using Set = uint32_t;

  static bool has(Set set, int v) { return (set >> v & 1) != 0; }
  int64_t bytes(Set set) const { return sum(spec_.bytes, set); }
  static int64_t sum(const std::vector<int64_t>& of, Set set) {
    int64_t total = 0;
    for (size_t v = 0; v < of.size(); ++v) total += has(set, static_cast<int>(v)) ? of[v] : 0;
    return total;
  }

  void extend(Set from, int64_t time, int64_t kept) {
    const Set all = (Set{1} << spec_.size()) - 1;
    if (from == all) {
      const std::pair cost(time, kept);
      if (!best || cost < *best) best = cost;
      return;
    }
    for (Set to = from + 1; to <= all; ++to) {
      if ((from & ~to) != 0) continue;
      Set boundary = 0;
      Set readers = 0;
      bool is_lower = true;
      for (const auto& [u, v] : spec_.edges) {
        if (has(to, v) && !has(to, u)) is_lower = false;
        if (has(to, u) && !has(to, v)) {
          boundary |= Set{1} << u;
          readers |= Set{1} << v;
        }
      }
      if (!is_lower) continue;
      Set others = 0;
      for (const auto& [u, v] : spec_.edges) {
        if (has(readers, v) && !has(to, u)) others |= Set{1} << u;
      }
      const Set added = to & ~from;
      if (kept + 2 * bytes(added) + bytes(readers) + bytes(others) > bound_) continue;
      const int64_t again = to == all ? 0 : sum(spec_.times, added & ~boundary);
      extend(to, time + again, kept + bytes(boundary & added));
    }
  }

  const ForwardSpec& spec_;
  int64_t bound_;
};

TEST(LowerSets, ByHand) {
  // 0 -> 1 -> 3, 0 -> 2 -> 3
  const ForwardSpec spec{{1, 2, 4, 8}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {1, 10, 100, 1000}};
  const LowerSets all = lower_sets(forward_of(spec), true, kMany);
  // {}, 0, 01, 02, 012, 0123
  ASSERT_EQ(all.count(), 6);
  EXPECT_EQ(all.size_bytes, (std::vector<int64_t>{0, 1, 3, 5, 7, 15}));
  EXPECT_EQ(all.time_ns, (std::vector<int64_t>{0, 1, 11, 101, 111, 1111}));
  EXPECT_EQ(all.boundary, (std::vector<std::vector<int>>{{}, {0}, {0, 1}, {0, 2}, {1, 2}, {}}));
  // Readers 1, 2; readers 2, 3, of which 3 reads 2 as well; readers 1, 3, of which 3 reads 1 as well; reader 3.
  EXPECT_EQ(all.outside_bytes, (std::vector<int64_t>{0, 6, 12 + 4, 10 + 2, 8, 0}));

  const LowerSets ancestors = lower_sets(forward_of(spec), false, kMany);
  EXPECT_EQ(ancestors.size_bytes, (std::vector<int64_t>{0, 1, 3, 5, 15}));
  // With two targets, the set of all vertices is not the ancestors of any vertex.
  EXPECT_EQ(lower_sets(forward_of({{1, 2, 4}, {{0, 1}, {0, 2}}, {}}), false, kMany).size_bytes,
            (std::vector<int64_t>{0, 1, 3, 5, 7}));
}

TEST(LeastTimeSequence, ByHand) {
  // Path of 4, sizes 2, times 1, 2, 3, 4. All at once needs 16 and no recomputation.
  ForwardSpec spec = path({2, 2, 2, 2});
  spec.times = {1, 2, 3, 4};
  const ForwardGraph forward = forward_of(spec);
  const LowerSets sets = lower_sets(forward, true, kMany);
  const auto search = [&](int64_t bound) { return least_time_sequence(forward, sets, bound, kMany).sequence; };
  EXPECT_EQ(search(16)->sets, std::vector<int>{4});
  EXPECT_EQ(search(16)->time_ns, 0);
  // 15: first {0} (4 + the reader's 2 <= 15) keeping 2 without recomputation, then 2 + 12 = 14.
  EXPECT_EQ(search(15)->sets, (std::vector<int>{1, 4}));
  EXPECT_EQ(search(15)->time_ns, 0);
  EXPECT_EQ(search(15)->kept_bytes, 2);
  // Every vertex kept: the third move has 4 kept, adds 4 and reads 2: 10; the last has 6 + 4. At 9: {0 1} needs 8 + 2 =
  // 10, too much, and so does any way that keeps more than 3 before the third vertex.
  EXPECT_EQ(search(10)->time_ns, 0);
  EXPECT_FALSE(search(9));
}

TEST(LeastTimeSequence, EqualsBruteForce) {
  int found = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const int n = 1 + static_cast<int>(random() % 5);
    const ForwardSpec spec = random_forward(random, n, 20 + random() % 60, seed % 2 == 0 ? 3 : 20, seed % 3 == 0);
    const ForwardGraph forward = forward_of(spec);
    const LowerSets all = lower_sets(forward, true, kMany);
    const LowerSets ancestors = lower_sets(forward, false, kMany);
    const int64_t bound = static_cast<int64_t>(random() % static_cast<uint64_t>(2 * all.size_bytes.back() + 2));
    const std::string input = "seed " + std::to_string(seed) + ", bound " + std::to_string(bound) + ": " + spec.text();
    const BruteForce expected(spec, bound);
    const LowerSetSearch exact = least_time_sequence(forward, all, bound, kMany);
    ASSERT_EQ(exact.sequence.has_value(), expected.best.has_value()) << input;
    const LowerSetSearch approximate = least_time_sequence(forward, ancestors, bound, kMany);
    if (!exact.sequence) {
      ASSERT_FALSE(approximate.sequence) << input;
      continue;
    }
    ++found;
    ASSERT_EQ(std::pair(exact.sequence->time_ns, exact.sequence->kept_bytes), *expected.best) << input;
    if (approximate.sequence) {
      ASSERT_GE(approximate.sequence->time_ns, exact.sequence->time_ns) << input;
    }
  }
  EXPECT_GT(found, 1000);
}

TEST(PlanLowerSets, FitsInSimulation) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    std::mt19937_64 random(seed);
    const int n = 1 + static_cast<int>(random() % 12);
    const ForwardSpec spec = random_forward(random, n, 5 + random() % 40, 20, seed % 2 == 0);
    const Graph graph(training_step(spec));
    const LowerSetOptions options{.exact = seed % 4 == 0};
    const std::string input = "seed " + std::to_string(seed) + ": " + spec.text();

    const PlanResult least = plan_lower_sets(graph, {}, options);
    ASSERT_EQ(least.status, PlanStatus::kFeasible) << input;
    ASSERT_EQ(simulate(graph, *least.schedule).peak_bytes, least.smallest_budget_bytes) << input;
    const Simulation plain = simulate(graph, store_all(graph));
    ASSERT_LE(least.smallest_budget_bytes, plain.peak_bytes) << input;

    int64_t last_ns = std::numeric_limits<int64_t>::max();
    for (int64_t budget = least.smallest_budget_bytes;; budget += 1 + (plain.peak_bytes - budget) / 4) {
      PlanRequest request;
      request.budget_bytes = budget;
      const PlanResult result = plan_lower_sets(graph, request, options);
      ASSERT_EQ(result.status, PlanStatus::kFeasible) << input;
      const Simulation simulation = simulate(graph, *result.schedule);
      ASSERT_FALSE(simulation.error) << input;
      ASSERT_LE(simulation.peak_bytes, budget) << input;
      ASSERT_LE(simulation.time_ns, last_ns) << input;
      last_ns = simulation.time_ns;
      if (budget >= plain.peak_bytes) break;
    }
    ASSERT_EQ(last_ns, plain.time_ns) << input;

    PlanRequest too_small;
    too_small.budget_bytes = least.smallest_budget_bytes - 1;
    const PlanResult none = plan_lower_sets(graph, too_small, options);
    ASSERT_EQ(none.status, PlanStatus::kNotFound) << input;
    ASSERT_FALSE(none.schedule) << input;
    ASSERT_EQ(none.smallest_budget_bytes, least.smallest_budget_bytes) << input;
  }
}

TEST(PlanLowerSets, IsValid) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    testing::Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 10))}));
    for (const bool exact : {false, true}) {
      const PlanResult result = plan_lower_sets(graph, {}, {exact});
      const auto error = verify(graph, *result.schedule);
      ASSERT_FALSE(error) << "seed " << seed << ": " << error->message;
    }
  }
}

TEST(PlanLowerSets, Limits) {
  const Graph graph(training_step(path({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8})));
  PlanRequest request;
  request.limits.max_states = 4;  // and 20 sets
  const PlanResult result = plan_lower_sets(graph, request);
  EXPECT_EQ(result.status, PlanStatus::kTimeout);
  EXPECT_TRUE(result.schedule);

  request.limits.max_states = 1;  // 10 sets; the graph has 13
  EXPECT_THROW(plan_lower_sets(graph, request), NotApplicable);

  // 30 vertices side by side have 2^30 lower sets, and 32 of ancestors.
  const Graph wide(training_step({std::vector<int64_t>(30, 1), {}, {}}));
  EXPECT_THROW(plan_lower_sets(wide, {}, {.exact = true}), NotApplicable);
  EXPECT_EQ(plan_lower_sets(wide, {}).status, PlanStatus::kFeasible);
}

TEST(PlanLowerSets, Refuses) {
  GraphSpec spec = training_step(path({1, 2}));
  for (Op& op : spec.ops) op.phase = Phase::kForward;
  EXPECT_THROW(plan_lower_sets(Graph(spec), {}), NotApplicable);

  const Graph huge(training_step(path({int64_t{1} << 60, int64_t{1} << 60})));
  EXPECT_THROW(plan_lower_sets(huge, {}), NotApplicable);
}

}  // namespace
}  // namespace headroom::internal
