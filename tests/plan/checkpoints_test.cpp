#include "headroom/plan/chain/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/even.h"
#include "headroom/plan/chain/peak_cubic.h"
#include "headroom/plan/chain/peak_linear.h"
#include "headroom/plan/chain/sqrt.h"
#include "tests/support/build.h"
#include "tests/support/networks.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using ::testing::ElementsAre;
using testing::Random;
using testing::steps;

Chain uniform_chain(int length) {
  Chain chain{"uniform", 0, 1, 1, {}};
  for (int i = 0; i < length; ++i) chain.stages.push_back(Stage{"s" + std::to_string(i + 1), 1, 2, 1, 1, 0, 0, 0});
  return chain;
}

int64_t simulated_peak(const Chain& chain, const std::vector<int>& checkpoints, bool reentrant) {
  const Simulation result = simulate(to_graph(chain), checkpoint_schedule(chain.length(), checkpoints, {reentrant}));
  EXPECT_FALSE(result.error) << result.error->message;
  return result.peak_bytes;
}

std::vector<int> subset_of(int bits, int length) {
  std::vector<int> subset;
  for (int i = 1; i < length; ++i)
    if ((bits >> (i - 1) & 1) != 0) subset.push_back(i);
  return subset;
}

TEST(CheckpointSchedule, RunsSegmentsAgain) {
  const Graph graph = to_graph(uniform_chain(5));
  const std::vector<int> checkpoints = {2, 3};
  EXPECT_EQ(checkpoint_schedule(5, checkpoints),
            steps(graph,
                  "F1 F2 -a1 F3 R4 R5 B5 -t5 -a5 B4 -t4 -a4 -g4 -a3 R3 B3 -t3 -a3 -g3 -a2 "
                  "R1 R2 B2 -t2 -a2 -g2 B1 -t1 -a1 -g1"));
  EXPECT_EQ(checkpoint_schedule(5, {}), steps(graph,
                                              "R1 R2 R3 R4 R5 B5 -t5 -a5 B4 -t4 -a4 -g4 B3 -t3 -a3 -g3 "
                                              "B2 -t2 -a2 -g2 B1 -t1 -a1 -g1"));
}

TEST(CheckpointSchedule, ReentrantSegmentsKeepTheirEnd) {
  const Graph graph = to_graph(uniform_chain(3));
  const std::vector<int> checkpoints = {2};
  EXPECT_EQ(checkpoint_schedule(3, checkpoints, {.reentrant = true}),
            steps(graph, "F1 F2 -a1 R3 B3 -t3 -a3 -a2 R1 R2 B2 -t2 B1 -t1 -a1 -g1 -a2 -g2"));
}

TEST(CheckpointSchedule, RefusesWhatIsNoSubset) {
  for (const std::vector<int>& wrong : {std::vector<int>{0}, {3}, {2, 1}, {1, 1}, {-1}})
    EXPECT_THROW(checkpoint_schedule(3, wrong), InvalidInput) << wrong.front();
}

TEST(CheckpointSchedule, EverySubsetIsValid) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, 6);
    const Graph graph = to_graph(chain);
    for (int bits = 0; bits < 32; ++bits)
      for (const bool reentrant : {false, true}) {
        const auto error = verify(graph, checkpoint_schedule(6, subset_of(bits, 6), {reentrant}));
        ASSERT_FALSE(error) << "seed " << seed << ", subset " << bits << ": " << error->message;
      }
  }
}

TEST(Even, PartsAsCheckpointSequentialDoes) {
  // 10 stages in 3 segments: 3, 3 and the last with 4.
  EXPECT_THAT(plan_even(uniform_chain(10), {}, {{}, 3}).checkpoints, ElementsAre(3, 6));
  EXPECT_THAT(plan_even(uniform_chain(10), {}, {{}, 1}).checkpoints, ElementsAre());
  EXPECT_THAT(plan_even(uniform_chain(3), {}, {{}, 3}).checkpoints, ElementsAre(1, 2));
  EXPECT_THROW(plan_even(uniform_chain(3), {}, {{}, 4}), InvalidInput);
  EXPECT_THROW(plan_even(uniform_chain(3), {}, {{}, 0}), InvalidInput);
}

TEST(Even, TakesTheBestNumberOfSegments) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 9)));
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int k = 1; k <= chain.length(); ++k)
      least = std::min(least, simulated_peak(chain, plan_even(chain, {}, {{}, k}).checkpoints, false));
    EXPECT_EQ(simulated_peak(chain, plan_even(chain, {}).checkpoints, false), least) << "seed " << seed;
  }
}

TEST(Sqrt, KeepsAboutTheSquareRoot) {
  // 100 stages of 1 byte: x = 99 kept, y = 1, B from 7.0 to 14.1: segments of 8 to 15 stages.
  const PlanResult plan = plan_sqrt(uniform_chain(100), {});
  EXPECT_GE(plan.checkpoints.size(), 6U);
  EXPECT_LE(plan.checkpoints.size(), 12U);
  EXPECT_LE(simulated_peak(uniform_chain(100), plan.checkpoints, false), 2 + 12 + 15 + 2);
}

TEST(PeakCubic, PublishedOptimumOnVgg19) {
  const Chain chain = testing::vgg_elements(19);
  ASSERT_EQ(chain.length(), 24);
  EXPECT_THAT(plan_peak_cubic(chain, {}).checkpoints, ElementsAre(3, 6));
}

/// Returns the best of all subsets: minimum peak, then minimum recomputation, then fewest checkpoints.
struct Best {
  int64_t peak_bytes = std::numeric_limits<int64_t>::max();
  int64_t time_ns = 0;
  size_t count = 0;
  auto operator<=>(const Best&) const = default;
};

Best judged(const Graph& graph, int length, const std::vector<int>& checkpoints, bool reentrant) {
  const Simulation result = simulate(graph, checkpoint_schedule(length, checkpoints, {reentrant}));
  return Best{result.peak_bytes, result.time_ns, checkpoints.size()};
}

void expect_best_of_all_subsets(const Chain& chain, bool reentrant, const std::string& where) {
  Best best;
  const Graph graph = to_graph(chain);
  for (int bits = 0; bits < 1 << (chain.length() - 1); ++bits)
    best = std::min(best, judged(graph, chain.length(), subset_of(bits, chain.length()), reentrant));
  const PlanResult plan = plan_peak_linear(chain, {}, {reentrant});
  const Best found = judged(graph, chain.length(), plan.checkpoints, reentrant);
  ASSERT_EQ(plan.status, PlanStatus::kOptimal);
  ASSERT_EQ(found.peak_bytes, best.peak_bytes) << where;
  ASSERT_EQ(found.time_ns, best.time_ns) << where;
  ASSERT_EQ(found.count, best.count) << where;
}

TEST(PeakLinear, EqualsAllSubsets) {
  for (uint64_t seed = 1; seed <= 2000 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 7)));
    for (const bool reentrant : {false, true})
      expect_best_of_all_subsets(chain, reentrant, "seed " + std::to_string(seed) + (reentrant ? ", reentrant" : ""));
  }
}

TEST(PeakLinear, EqualsAllSubsetsByTheQueue) {
  // Without forward workspaces, and with none below 0, the linear algorithm is exact.
  for (uint64_t seed = 1; seed <= 1500 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    Chain chain = testing::random_chain(random, static_cast<int>(random.number(1, 9)));
    for (Stage& stage : chain.stages) {
      stage.forward_workspace_bytes = 0;
      stage.record_workspace_bytes = std::nullopt;
      stage.backward_workspace_bytes = std::max<int64_t>(stage.backward_workspace_bytes, 0);
    }
    expect_best_of_all_subsets(chain, false, "seed " + std::to_string(seed));
  }
}

TEST(PeakLinear, LongChains) {
  const PlanResult plan = plan_peak_linear(uniform_chain(20'000), {});
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  // Between sqrt(2n) = 200 and twice that: checkpoints before the segment, its outputs, two gradients.
  const int64_t peak = simulated_peak(uniform_chain(20'000), plan.checkpoints, false);
  EXPECT_GT(peak, 190);
  EXPECT_LT(peak, 210);
  EXPECT_THROW(plan_peak_linear(uniform_chain(20'000), {}, {.reentrant = true}), NotApplicable);
  Chain uneven = uniform_chain(20'000);
  uneven.stages[100].forward_workspace_bytes = 1'000'000;
  EXPECT_EQ(plan_peak_linear(uneven, {}).status, PlanStatus::kFeasible);
}

TEST(Reentrant, PublishedMemoryOfVgg) {
  // Feng & Huang's measured memory at batch 64, net of weights: 3565 MB and 2781 MB. The model: the first conv output
  // of 784 MiB 4.5 and 3.5 times, and the input of 36.75 MiB.
  constexpr int64_t kUnit = int64_t{784} << 20;
  constexpr int64_t kInput = int64_t{64} * 3 * 224 * 224 * 4;
  for (const int depth : {13, 16, 19}) {
    const Chain chain = testing::vgg_bytes(depth, 64);
    const std::vector<int> theirs = plan_peak_cubic(chain, {}).checkpoints;
    EXPECT_EQ(simulated_peak(chain, theirs, true), kInput + kUnit * 9 / 2) << "VGG-" << depth;
    EXPECT_EQ(kInput + kUnit * 9 / 2, 3564 * (int64_t{1} << 20) + (int64_t{3} << 18)) << "3564.75 MiB";
    EXPECT_LE(simulated_peak(chain, plan_peak_linear(chain, {}, {.reentrant = true}).checkpoints, true),
              kInput + kUnit * 9 / 2);
  }
  const Chain vgg11 = testing::vgg_bytes(11, 64);
  EXPECT_EQ(simulated_peak(vgg11, plan_peak_cubic(vgg11, {}).checkpoints, true), kInput + kUnit * 7 / 2);
  EXPECT_EQ(kInput + kUnit * 7 / 2, 2780 * (int64_t{1} << 20) + (int64_t{3} << 18)) << "2780.75 MiB";
}

}  // namespace
}  // namespace headroom::internal
