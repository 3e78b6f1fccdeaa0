#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headroom/core/simulate.h"
#include "headroom/plan/auto/auto.h"
#include "headroom/plan/auto/parameters.h"
#include "tests/support/networks.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Random;

struct Part {
  std::string name;
  std::function<void(SearchParameters&)> turn_off;
};

std::vector<Part> parts() {
  using P = SearchParameters;
  return {
      {"nothing", [](P&) {}},
      {"faster producers", [](P& p) { p.start.faster_producers = false; }},
      {"chain's tables", [](P& p) { p.start.chain_tables = false; }},
      {"lower sets", [](P& p) { p.start.lower_sets = false; }},
      {"smallest peaks", [](P& p) { p.start.smallest_peaks = false; }},
      {"cuts", [](P& p) { p.start.cut = false; }},
      {"store-all", [](P& p) { p.start.store_all = false; }},
      {"level above", [](P& p) { p.start.level_above = false; }},
      {"longer moves", [](P& p) { p.start.many_insertions = 0; }},
      {"random starts", [](P& p) { p.start.max_random_starts = 0; }},
      {"all starts but random ones",
       [](P& p) {
         p.start = {.faster_producers = false, .chain_tables = false, .lower_sets = false};
         p.start.smallest_peaks = p.start.cut = p.start.store_all = p.start.level_above = false;
       }},
      {"bisection to the smallest peak", [](P& p) { p.level.bisection_steps = 0; }},
      {"targets between levels", [](P& p) { p.level.targets_between = 0; }},
      {"several moves at a time",
       [](P& p) { p.descent.runs_per_move = p.descent.careful_runs_per_move = 1'000'000'000; }},
      {"inputs kept longer", [](P& p) { p.descent.extends_inputs = false; }},
      {"reruns moved earlier", [](P& p) { p.descent.moves_reruns = false; }},
      {"pruning", [](P& p) { p.pruning = {.max_work_per_op = 0, .drops_early_runs = false}; }},
      {"perturbation", [](P& p) { p.perturbation.max_ruined = 0; }},
      {"related reruns", [](P& p) { p.perturbation.removes_related = false; }},
      {"noise", [](P& p) { p.perturbation.noise_percent = 0; }},
      {"early rematerialization", [](P& p) { p.perturbation.early_one_in = 0; }},
      {"rematerialization anywhere", [](P& p) { p.perturbation.anywhere = false; }},
      {"any runs", [](P& p) { p.perturbation.max_inserted = 0; }},
      {"polish",
       [](P& p) {
         p.polish.rounds = p.polish.medium_rounds = p.polish.rounds_above_medium = 0;
         p.polish.lowest_level = false;
       }},
      {"neighbours", [](P& p) { p.polish.neighbours = false; }},
      {"second plan", [](P& p) { p.polish.second_plan = false; }},
      {"refinement", [](P& p) { p.refinement.max_passes = 0; }},
      {"smaller peaks", [](P& p) { p.refinement.lowers_peak = false; }},
      {"plans between", [](P& p) { p.between.max_bisection_steps = 0; }},
      {"exact search", [](P& p) { p.exact = {.max_first_states = 0, .after_search = false}; }},
      {"first exact search", [](P& p) { p.exact.max_first_states = 0; }},
      {"second exact search", [](P& p) { p.exact.after_search = false; }},
      {"folding", [](P& p) { p.folding.min_equal_blocks = 0; }},
      {"largest moments", [](P& p) { p.bound.largest_moments = 0; }},
  };
}

/// A chain, a graph that `exhaustive` takes, one with alternatives that it does not, and one of more than 40 runs.
std::vector<Problem> problems() {
  const auto random_problem = [](uint64_t seed, const testing::RandomGraphOptions& options) {
    Random random(seed);
    return make_problem(Graph(testing::random_graph(random, options)));
  };
  return {make_problem(testing::vgg_bytes(11, 8)), random_problem(4, {.forward_ops = 5}),
          random_problem(5, {.forward_ops = 14}),
          random_problem(7, {.forward_ops = 24, .most_bytes = 100, .special = false})};
}

TEST(SearchParameters, EachPartCanBeTurnedOff) {
  for (const Problem& problem : problems()) {
    const FlatGraph flat(problem.graph);
    const PlanLimits limits{.effort = Effort::kNormal, .threads = 1};
    int plans_below_store_all = 0;
    for (const Part& part : parts()) {
      SearchParameters parameters;
      part.turn_off(parameters);
      const std::string where = problem.graph.name() + " without " + part.name;
      const AutoFront front = make_auto_front(problem, flat, limits, parameters);
      int64_t last_ns = std::numeric_limits<int64_t>::max();
      for (int tenth = 0; tenth <= 10; ++tenth) {
        const int64_t smallest_bytes = front.smallest_bytes();
        const int64_t budget_bytes = smallest_bytes + (problem.base_peak_bytes - smallest_bytes) * tenth / 10;
        const std::optional<JudgedRuns> plan = pick_within(flat, front, budget_bytes, parameters);
        ASSERT_TRUE(plan) << where;
        Timeline timeline(flat);
        timeline.assign(plan->runs);
        const Simulation simulation = simulate(problem.graph, timeline.schedule());
        ASSERT_FALSE(simulation.error) << where << ": " << simulation.error->message;
        ASSERT_LE(simulation.peak_bytes, budget_bytes) << where;
        ASSERT_EQ(simulation.time_ns, plan->time_ns) << where;
        ASSERT_LE(plan->time_ns, last_ns) << where << ": a larger budget is slower";
        last_ns = plan->time_ns;
        plans_below_store_all += simulation.peak_bytes < problem.base_peak_bytes ? 1 : 0;
      }
      ASSERT_LE(last_ns, problem.base_time_ns) << where;
    }
    EXPECT_GT(plans_below_store_all, 5 * static_cast<int>(parts().size())) << problem.graph.name();
  }
}

TEST(SearchParameters, AreUsed) {
  const Problem problem = problems().back();
  const FlatGraph flat(problem.graph);
  const PlanLimits limits{.threads = 1};
  SearchParameters few;
  few.level = {.count = 2, .bisection_steps = 0, .targets_between = 0};
  few.start.smallest_peaks = few.start.lower_sets = false;
  few.polish.lowest_level = false;
  // Store-all and at most one level, at half of its peak.
  EXPECT_LE(make_auto_front(problem, flat, limits, few).plans.size(), 2U);
  EXPECT_GT(make_auto_front(problem, flat, limits).plans.size(), 10U);
}

}  // namespace
}  // namespace headroom::internal
