#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/plan/plan.h"
#include "headroom/plan/problem.h"

namespace headroom {

/// What the command line can ask of a planner; each one heeds what concerns it.
struct PlannerOptions {
  int64_t slots = 500;          ///< chain
  std::optional<int> segments;  ///< even: segments; binomial: checkpoints
  bool reentrant = false;       ///< planners of checkpoint subsets, on chains
  bool exact = false;           ///< lower-sets
};

enum class Minimises : uint8_t { kTime, kPeak };

/// How planning time grows with the graph, for callers that run many planners, such as the report.
enum class CostClass : uint8_t {
  kLow,     ///< milliseconds at any size, or the planner refuses large graphs
  kSearch,  ///< about linear, with a large constant: seconds for thousands of ops
  kSteep,   ///< grows faster than the graph: seconds for hundreds of ops
};

/// An entry of the registry: everything that callers may ask about a planner besides its plans.
struct Planner {
  std::string_view name;
  bool takes_graphs;  ///< any graph; otherwise chains, and graphs that are chains
  Minimises minimises;
  bool needs_budget = false;
  bool chooses_checkpoints = false;  ///< a subset of a chain's stage outputs
  CostClass cost = CostClass::kLow;
  std::string_view source;
  PlanResult (*plan)(const Problem&, const PlanRequest&, const PlannerOptions&);
  /// The planner's own front of peak against time, smallest peak first; null: plan_curve() plans at several budgets.
  std::vector<CurvePoint> (*curve)(const Problem&, const PlanLimits&) = nullptr;
};

/// Every planner, default_planner() last.
std::span<const Planner> planners();

/// `auto`.
const Planner& default_planner();

/// Throws InvalidInput with the names that there are.
const Planner& get_planner(std::string_view name);

/// As the command line and the package write it: "optimal", "not-found", ...
std::string_view name_of(PlanStatus status);

/// A planner's result as the simulator sees it.
struct Plan {
  const Planner* planner = nullptr;
  bool on_chain = false;  ///< the problem is a chain
  std::optional<int64_t> budget_bytes;
  PlanResult result;                  ///< status, bound and smallest budget completed, see make_plan()
  std::optional<int64_t> peak_bytes;  ///< simulated; none without a schedule
  std::optional<int64_t> time_ns;     ///< simulated
  int64_t base_time_ns = 0;           ///< of store-all
  double solve_ms = 0;                ///< planning alone; of `auto` without its front where that was made before
};

/// Runs a planner and the simulator. A schedule above the budget is taken away: planners that heed no budget are then
/// kInfeasible. lower_bound_ns is at least time_lower_bound_ns(); a planner of least time that meets it is kOptimal;
/// smallest_budget_bytes is the plan's own peak where the planner does not say. Throws NotApplicable where the planner
/// does not take this problem or the sums of its plan do not fit int64, InvalidInput where it needs a budget and there is
/// none, InternalError for an invalid schedule.
Plan make_plan(const Planner& planner, const Problem& problem, const PlanRequest& request,
               const PlannerOptions& options = {});

/// Returns the plan of `auto` for any budget of at least its peak, without a front: every op runs once, in place wherever
/// it may. Its smallest_budget_bytes is -1, not computed. None where some schedule might be faster than that.
std::optional<Plan> find_plan_without_reruns(const Problem& problem);

/// The front of peak against time of one planner, smallest peak first: plans at `points` budgets evenly spaced from the
/// planner's smallest to the peak of store-all, those left out that another one beats in both. A planner of least peak
/// has one plan; one with a curve of its own (Planner::curve) has that, whatever the points.
std::vector<CurvePoint> plan_curve(const Planner& planner, const Problem& problem, int points,
                                   const PlanRequest& request, const PlannerOptions& options = {});

}  // namespace headroom
