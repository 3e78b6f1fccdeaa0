#include "headroom/plan/auto/planner_starts.h"

#include <algorithm>
#include <iterator>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/chain.h"
#include "headroom/plan/chain/peak_cubic.h"
#include "headroom/plan/chain/peak_linear.h"
#include "headroom/plan/graph/division_tree.h"
#include "headroom/plan/graph/lower_sets.h"

namespace headroom::internal {
namespace {

/// Calls `add_plans`, unless the planner that it calls does not take the problem; the search has other starts.
template <typename AddPlans>
void add_if_applicable(const AddPlans& add_plans) {
  try {
    add_plans();
  } catch (const NotApplicable&) {
    // The planner does not take the problem.
  } catch (const TooLarge&) {
    // The sums of these plans do not fit int64.
  }
}

void append(const std::vector<Schedule>& schedules, std::vector<std::vector<int32_t>>& plans) {
  std::ranges::transform(schedules, std::back_inserter(plans), runs_of);
}

/// Returns the number of slots for a table of `chain` that is about as fine as `chain` at any budget, but takes a
/// limited time.
int64_t slots_for(int length, double work) {
  const double cube = static_cast<double>(length) * length * length;
  return std::clamp<int64_t>(static_cast<int64_t>(work / cube), length <= 512 ? 500 : 50, 4000);
}

/// Adds plans of `chain` from two tables: one up to store-all's peak, and one up to a third of it, whose slots are
/// smaller.
void add_chain_plans(const Problem& problem, const PlanLimits& limits, const StartParameters& parameters,
                     SearchStarts& starts) {
  const int64_t length = problem.chain->length();
  const int64_t resident_bytes = problem.graph.resident_bytes();
  for (const int64_t part : {1, 3}) {
    const int64_t most_bytes = resident_bytes + (problem.base_peak_bytes - resident_bytes) / part;
    append(plan_chain_front(*problem.chain, most_bytes, slots_for(problem.chain->length(), parameters.chain_table_work),
                            parameters.chain_plan_work / (length * length), limits.threads),
           starts.plans);
  }
}

/// Adds all plans of `lower-sets` on small graphs.
void add_lower_set_plans(const Problem& problem, const PlanLimits& limits, const StartParameters& parameters,
                         SearchStarts& starts) {
  const int64_t max_ops =
      limits.effort == Effort::kHigh ? parameters.max_lower_set_ops_at_high_effort : parameters.max_lower_set_ops;
  if (std::ssize(problem.graph.ops()) <= max_ops) append(lower_set_plans(problem.graph, limits), starts.plans);
}

/// Adds the plans of `peak-cubic` and `peak-linear` on a chain, else that of `division-tree`.
void add_smallest_peaks(const Problem& problem, const PlanLimits& limits, SearchStarts& starts) {
  const PlanRequest request{.budget_bytes = std::nullopt, .limits = limits};
  const auto add = [&](const auto& plan) {
    add_if_applicable([&] {
      const PlanResult result = plan();
      HEADROOM_ASSERT(result.schedule && !simulate(problem.graph, *result.schedule).error);
      starts.plans.push_back(runs_of(*result.schedule));
    });
  };
  if (!problem.chain) {
    add([&] { return plan_division_tree(problem.graph, request); });
    return;
  }
  add([&] { return plan_peak_cubic(*problem.chain, request); });
  add([&] { return plan_peak_linear(*problem.chain, request); });
}

}  // namespace

SearchStarts planner_starts(const Problem& problem, const PlanLimits& limits, const SearchParameters& parameters) {
  const StartParameters& start = parameters.start;
  SearchStarts starts;
  if (problem.chain && start.chain_tables) add_if_applicable([&] { add_chain_plans(problem, limits, start, starts); });
  if (start.lower_sets) add_if_applicable([&] { add_lower_set_plans(problem, limits, start, starts); });
  if (start.smallest_peaks) add_smallest_peaks(problem, limits, starts);
  return starts;
}

}  // namespace headroom::internal
