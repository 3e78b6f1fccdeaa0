#include "headroom/plan/auto.h"

#include <algorithm>
#include <limits>

namespace headroom {
namespace {

bool is_worth_asking(const Planner& planner, const Problem& problem) {
  if (planner.name == "auto") return false;
  if (planner.name != "exhaustive") return planner.takes_graphs || problem.chain;
  const auto is_resident = [](const Value& value) { return value.resident; };
  const auto values = std::ssize(problem.graph.values()) - std::ranges::count_if(problem.graph.values(), is_resident);
  return values <= AutoLimits::kMostExhaustiveValues;
}

}  // namespace

PlanResult plan_auto(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  PlanResult best;
  best.smallest_budget_bytes = kMost;
  int64_t best_time_ns = kMost;
  int64_t best_peak_bytes = kMost;
  for (const Planner& planner : planners()) {
    if (!is_worth_asking(planner, problem)) continue;
    Plan plan;
    try {
      plan = make_plan(planner, problem, request, options);
    } catch (const NotApplicable&) {
      continue;
    }
    if (plan.result.smallest_budget_bytes > 0)
      best.smallest_budget_bytes = std::min(best.smallest_budget_bytes, plan.result.smallest_budget_bytes);
    best.lower_bound_ns = std::max(best.lower_bound_ns, plan.result.lower_bound_ns);
    if (planner.name == "exhaustive" && plan.result.status == PlanStatus::kInfeasible)
      best.status = PlanStatus::kInfeasible;
    if (!plan.result.schedule) continue;
    if (std::pair(*plan.time_ns, *plan.peak_bytes) >= std::pair(best_time_ns, best_peak_bytes)) continue;
    best.status = PlanStatus::kFeasible;
    best.schedule = std::move(plan.result.schedule);
    best_time_ns = *plan.time_ns;
    best_peak_bytes = *plan.peak_bytes;
  }
  return best;
}

}  // namespace headroom
