#include "headroom/plan/auto/auto_front.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "headroom/plan/auto/between.h"

namespace headroom::internal {

bool AutoFront::is_proved(int64_t budget_bytes) const {
  return std::ranges::any_of(proved, [&](const BudgetRange& range) {
    return range.least_bytes <= budget_bytes && budget_bytes <= range.most_bytes;
  });
}

int64_t AutoFront::smallest_bytes() const {
  int64_t bytes = plans.front().peak_bytes;
  for (const Front& front : lower) bytes = std::min(bytes, front.front().peak_bytes);
  return bytes;
}

namespace {

/// Returns whether two fronts have the same plans on both sides of a budget, and therefore the same plan for it.
bool are_same_around(const Front& one, const Front& other, int64_t budget_bytes) {
  const auto is_same = [](const JudgedRuns& a, const JudgedRuns& b) { return a.runs == b.runs; };
  const auto below = find_within(one, budget_bytes);
  const auto other_below = find_within(other, budget_bytes);
  if (below == one.end() || other_below == other.end() || !is_same(*below, *other_below)) return false;
  const auto above = std::next(below);
  const auto other_above = std::next(other_below);
  if (above == one.end() || other_above == other.end()) return above == one.end() && other_above == other.end();
  return is_same(*above, *other_above);
}

}  // namespace

std::optional<JudgedRuns> pick_within(const FlatGraph& flat, const AutoFront& front, int64_t budget_bytes,
                                      const SearchParameters& parameters) {
  if (front.is_proved(budget_bytes)) {
    const auto within = find_within(front.plans, budget_bytes);
    return within == front.plans.end() ? std::nullopt : std::optional(*within);
  }
  std::optional<JudgedRuns> best = plan_within(flat, front.plans, budget_bytes, front.targets, parameters);
  for (const Front& lower : front.lower) {
    if (are_same_around(lower, front.plans, budget_bytes)) continue;
    std::optional<JudgedRuns> plan = plan_within(flat, lower, budget_bytes, front.targets, parameters);
    if (plan && (!best || plan->time_ns < best->time_ns)) best = std::move(plan);
  }
  return best;
}

}  // namespace headroom::internal
