#include "headroom/plan/placed_plan.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "headroom/core/simulate.h"
#include "headroom/plan/auto/auto.h"

namespace headroom::internal {
namespace {

/// Between two plans of a front, no more plans are made where their times differ by less than this part.
constexpr int64_t kTimeParts = 2000;
/// Number of times that the budgets between two plans of a front are halved.
constexpr int kMaxHalvings = 8;

/// A plan of `auto` and the bytes of its arena and the resident values.
struct Candidate {
  Schedule schedule;
  PlaceResult placed;
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

/// Picks from the front of `auto` by the bytes of arenas.
class PlacedFront {
 public:
  PlacedFront(const Problem& problem, const PlanLimits& limits, const PlaceOptions& options)
      : problem_(problem),
        flat_(problem.graph),
        front_(problem.cache->get<AutoFronts>().get(problem, flat_, limits)),
        options_(options) {
    std::vector<JudgedRuns> plans = front_->plans;
    for (const Front& lower : front_->lower) plans.insert(plans.end(), lower.begin(), lower.end());
    plans_ = undominated(std::move(plans));
    candidates_.resize(plans_.size());
  }

  /// Returns the fastest plan that fits, or none.
  std::optional<Candidate> find_within(int64_t budget_bytes) {
    size_t end = 0;
    while (end < plans_.size() && plans_[end].peak_bytes <= budget_bytes) ++end;
    size_t lower = end;
    while (lower > 0 && candidate(lower - 1).bytes > budget_bytes) --lower;
    if (lower == 0) return std::nullopt;
    --lower;
    const Candidate* upper = nullptr;
    for (size_t i = lower + 1; i < plans_.size(); ++i) {
      if (upper != nullptr && plans_[i].peak_bytes >= upper->bytes) break;
      if (upper == nullptr || candidate(i).bytes < upper->bytes) upper = &candidate(i);
    }
    Candidate found = candidate(lower);
    if (upper != nullptr) bisect(found, upper->bytes, upper->time_ns, budget_bytes);
    return found;
  }

  /// Returns the least bytes of an arena and the resident values.
  int64_t smallest_bytes() {
    int64_t bytes = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < plans_.size() && plans_[i].peak_bytes < bytes; ++i)
      bytes = std::min(bytes, candidate(i).bytes);
    return bytes;
  }

 private:
  const Candidate& candidate(size_t i) {
    if (!candidates_[i]) candidates_[i] = make(plans_[i]);
    return *candidates_[i];
  }

  Candidate make(const JudgedRuns& plan) const {
    Timeline timeline(flat_);
    timeline.assign(plan.runs);
    Candidate candidate;
    candidate.schedule = timeline.schedule();
    candidate.placed = place(problem_.graph, candidate.schedule, options_);
    candidate.time_ns = plan.time_ns;
    candidate.bytes = problem_.graph.resident_bytes() + candidate.placed.placement.arena_bytes;
    return candidate;
  }

  /// Replaces `lower`, which fits, by a faster plan between it and the next faster one of the front. The choice of every
  /// plan depends on its neighbours only, and its time is between theirs, so that a larger budget is never slower.
  void bisect(Candidate& lower, int64_t upper_bytes, int64_t upper_ns, int64_t budget_bytes) const {
    int64_t lower_bytes = lower.bytes;
    for (int i = 0; i < kMaxHalvings && lower.time_ns - upper_ns > upper_ns / kTimeParts; ++i) {
      const int64_t middle_bytes = lower_bytes + (upper_bytes - lower_bytes) / 2;
      if (middle_bytes <= lower_bytes) return;
      std::optional<JudgedRuns> plan = pick_within(flat_, *front_, middle_bytes);
      std::optional<Candidate> middle;
      if (plan && plan->time_ns >= upper_ns && plan->time_ns < lower.time_ns) middle = make(*plan);
      if (middle && middle->bytes > middle_bytes) middle.reset();
      if (budget_bytes >= middle_bytes) {
        if (middle) lower = std::move(*middle);
        lower_bytes = middle_bytes;
      } else {
        if (!middle) return;  // No plan for less than the middle may be faster than the one for the middle.
        upper_bytes = middle_bytes;
        upper_ns = middle->time_ns;
      }
    }
  }

  const Problem& problem_;
  FlatGraph flat_;
  std::shared_ptr<const AutoFront> front_;
  PlaceOptions options_;
  std::vector<JudgedRuns> plans_;                     ///< Of all fronts; the peak ascends, the time descends.
  std::vector<std::optional<Candidate>> candidates_;  ///< By plan: made when they are first asked for.
};

void remove_plan(Plan& plan) {
  plan.result.schedule.reset();
  plan.result.checkpoints.clear();
  plan.peak_bytes.reset();
  plan.time_ns.reset();
  plan.result.status = PlanStatus::kNotFound;
}

PlacedPlan pick_from_front(Plan plan, const Problem& problem, const PlanRequest& request, const PlaceOptions& options) {
  if (!plan.result.schedule) return {std::move(plan), std::nullopt};
  PlacedFront front(problem, request.limits, options);
  std::optional<Candidate> found = front.find_within(*request.budget_bytes);
  plan.result.smallest_budget_bytes = front.smallest_bytes();
  if (!found) {
    remove_plan(plan);
    return {std::move(plan), std::nullopt};
  }
  const Simulation simulation = simulate(problem.graph, found->schedule);
  if (simulation.time_ns != *plan.time_ns && plan.result.status == PlanStatus::kOptimal)
    plan.result.status = PlanStatus::kFeasible;
  plan.peak_bytes = simulation.peak_bytes;
  plan.time_ns = simulation.time_ns;
  plan.result.schedule = std::move(found->schedule);
  return {std::move(plan), std::move(found->placed.placement)};
}

/// Returns the plan of a planner for a smaller budget than the request's, without a schedule where there is none.
Plan replan(const Plan& plan, const Problem& problem, const PlanRequest& reduced, const PlannerOptions& options) {
  Plan next = plan;
  try {
    if (*reduced.budget_bytes >= 0) next = make_plan(*plan.planner, problem, reduced, options);
  } catch (const NotApplicable&) {
    remove_plan(next);  // Some planners take the problem for larger budgets only.
  }
  // Neither that nothing fits a smaller budget, nor that a plan is the fastest within it, holds for the request's.
  if (!next.result.schedule || *reduced.budget_bytes < 0) remove_plan(next);
  if (next.result.status == PlanStatus::kOptimal && plan.planner->minimises == Minimises::kTime &&
      *next.time_ns > plan.result.lower_bound_ns)
    next.result.status = PlanStatus::kFeasible;
  next.budget_bytes = plan.budget_bytes;
  next.result.lower_bound_ns = plan.result.lower_bound_ns;
  return next;
}

PlacedPlan place_or_replan(Plan plan, const Problem& problem, const PlanRequest& request, const PlannerOptions& options,
                           const PlaceOptions& place_options) {
  PlanRequest reduced = request;
  for (int i = 0; plan.result.schedule; ++i) {
    Placement placement = place(problem.graph, *plan.result.schedule, place_options).placement;
    const int64_t bytes = problem.graph.resident_bytes() + placement.arena_bytes;
    if (plan.planner->minimises == Minimises::kPeak)
      plan.result.smallest_budget_bytes = std::max(plan.result.smallest_budget_bytes, bytes);
    if (!request.budget_bytes || bytes <= *request.budget_bytes) return {std::move(plan), std::move(placement)};
    if (i == kMaxReplans) {
      remove_plan(plan);
    } else {
      *reduced.budget_bytes -= bytes - *request.budget_bytes;
      plan = replan(plan, problem, reduced, options);
    }
  }
  return {std::move(plan), std::nullopt};
}

}  // namespace

PlacedPlan make_placed_plan(const Planner& planner, const Problem& problem, const PlanRequest& request,
                            const PlannerOptions& options, int64_t alignment) {
  const auto start = std::chrono::steady_clock::now();
  Plan plan = make_plan(planner, problem, request, options);
  const PlaceOptions place_options{alignment, request.limits.effort};
  PlacedPlan placed = planner.has_front ? pick_from_front(std::move(plan), problem, request, place_options)
                                        : place_or_replan(std::move(plan), problem, request, options, place_options);
  placed.plan.solve_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return placed;
}

}  // namespace headroom::internal
