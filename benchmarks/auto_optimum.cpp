#include "benchmarks/auto_optimum.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "headroom/plan/auto/auto.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/planners.h"
#include "tests/support/random.h"

namespace {

using namespace headroom;
using namespace headroom::internal;

/// A result of -1 means that there is no plan.
int64_t time_within(const Front& front, int64_t budget_bytes) {
  int64_t time_ns = -1;
  for (const JudgedRuns& plan : front)
    if (plan.peak_bytes <= budget_bytes) time_ns = plan.time_ns;
  return time_ns;
}

constexpr int64_t kMaxStates = 50'000;  ///< Problems for which `exhaustive` needs more are skipped.

/// Results by the number of values that are not resident.
struct Shares {
  int cases = 0;
  int by_auto = 0;
  int by_search = 0;
  int bound_above = 0;
};

int64_t value_count(const Graph& graph) {
  return std::ranges::count_if(graph.values(), [](const Value& value) { return !value.resident; });
}

void compare_with_optimum(const Problem& problem, Effort effort, uint64_t seed, Shares& shares) {
  PlanRequest request;
  request.limits.keep_order = true;
  request.limits.effort = effort;
  request.limits.threads = 1;
  request.limits.max_states = kMaxStates;
  request.budget_bytes = 0;
  const PlanResult smallest = plan_exhaustive(problem.graph, request);
  if (smallest.status == PlanStatus::kTimeout) return;
  const FlatGraph flat(problem.graph);
  const PlanLimits limits{.effort = effort, .threads = 1, .keep_order = true};
  const Front searched = search_front(problem, flat, limits);
  const Front front = make_auto_front(problem, flat, limits).plans;
  for (int third = 0; third < 3; ++third) {
    request.budget_bytes =
        smallest.smallest_budget_bytes + (problem.base_peak_bytes - smallest.smallest_budget_bytes) * third / 3;
    const Plan optimum = make_plan(get_planner("exhaustive"), problem, request);
    if (optimum.result.status != PlanStatus::kOptimal) continue;
    const int64_t found_ns = time_within(searched, *request.budget_bytes);
    ++shares.cases;
    if (found_ns != *optimum.time_ns)
      std::fprintf(stderr, "seed %llu, budget %lld: optimum %lld, search %lld\n", static_cast<unsigned long long>(seed),
                   static_cast<long long>(*request.budget_bytes), static_cast<long long>(*optimum.time_ns),
                   static_cast<long long>(found_ns));
    shares.by_auto += time_within(front, *request.budget_bytes) == *optimum.time_ns ? 1 : 0;
    shares.by_search += found_ns == *optimum.time_ns ? 1 : 0;
    shares.bound_above += memory_bound(problem.graph, *request.budget_bytes).time_ns > *optimum.time_ns ? 1 : 0;
  }
}

}  // namespace

int bench_optimum(int count, headroom::Effort effort) {
  bool is_good = true;
  Shares total;
  std::printf("| kind | values | cases | auto | search alone | bound above |\n| --- | --- | --- | --- | --- | --- |\n");
  for (const bool is_chain : {true, false}) {
    std::map<int64_t, Shares> by_values;  // Each entry covers four sizes.
    int taken = 0;
    for (uint64_t seed = 1; taken < count; ++seed) {
      testing::Random random(seed);
      const Problem problem =
          is_chain
              ? make_problem(testing::random_chain(random, static_cast<int>(random.number(2, 8))))
              : make_problem(Graph(testing::random_graph(
                    random, {.forward_ops = static_cast<int>(random.number(3, 11)), .special = random.chance(50)})));
      const int64_t values = value_count(problem.graph);
      if (values > static_cast<int64_t>(ExhaustiveLimits::kMostValues)) continue;
      ++taken;
      compare_with_optimum(problem, effort, seed, by_values[(values + 3) / 4 * 4]);
    }
    for (const auto& [values, shares] : by_values) {
      total.cases += shares.cases;
      total.by_auto += shares.by_auto;
      total.by_search += shares.by_search;
      std::printf("| %s | %lld to %lld | %d | %.2f %% | %.2f %% | %d |\n", is_chain ? "chains" : "graphs",
                  static_cast<long long>(values - 3), static_cast<long long>(values), shares.cases,
                  100.0 * shares.by_auto / std::max(shares.cases, 1),
                  100.0 * shares.by_search / std::max(shares.cases, 1), shares.bound_above);
      is_good = is_good && shares.bound_above == 0;
    }
    std::fflush(stdout);
  }
  std::printf("\n%d cases: auto has the optimum in %d, the search alone in %d\n", total.cases, total.by_auto,
              total.by_search);
  is_good = is_good && total.by_auto * 100 >= total.cases * 99;
  return is_good ? 0 : 1;
}
