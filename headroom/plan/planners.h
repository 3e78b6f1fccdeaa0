#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/plan/plan.h"
#include "headroom/plan/problem.h"

namespace headroom {

/// Options that the command line passes to planners. Each planner reads those that concern it.
struct PlannerOptions {
  int64_t slots = 500;          ///< Slots of memory (chain).
  std::optional<int> segments;  ///< Number of segments (even) or of checkpoints (binomial).
  bool reentrant = false;       ///< Whether checkpoints are reentrant (planners of checkpoint subsets, on chains).
  bool exact = false;           ///< Whether to use all lower sets (lower-sets).
};

enum class Minimises : uint8_t { kTime, kPeak };

/// How planning time grows with the graph, for callers that run many planners, such as the report.
enum class CostClass : uint8_t {
  kLow,     ///< Milliseconds at any size, or the planner refuses large graphs.
  kSearch,  ///< About linear, with a large constant: seconds for thousands of ops.
  kSteep,   ///< Faster than linear growth: seconds for hundreds of ops.
};

/// An entry of the registry: everything that callers may ask about a planner besides its plans.
struct Planner {
  std::string_view name;
  bool takes_graphs;  ///< Whether it accepts any graph; otherwise it accepts chains, and graphs that are chains.
  Minimises minimises;
  bool needs_budget = false;
  bool chooses_checkpoints = false;  ///< Whether it chooses a subset of a chain's stage outputs.
  bool has_front = false;            ///< Whether its plans are those of an AutoFront.
  CostClass cost = CostClass::kLow;
  std::string_view source;
  PlanResult (*plan)(const Problem&, const PlanRequest&, const PlannerOptions&);
  /// A function that returns the planner's own front of peak and time, smallest peak first. If null, plan_curve() plans
  /// at several budgets.
  std::vector<CurvePoint> (*curve)(const Problem&, const PlanLimits&) = nullptr;
};

/// Returns all planners, default_planner() last.
std::span<const Planner> planners();

/// Returns `auto`.
const Planner& default_planner();

/// Returns a planner by its name. Throws InvalidInput with all names if there is no such planner.
const Planner& get_planner(std::string_view name);

/// Returns the name of a status in the command line and the package: "optimal", "not-found", ...
std::string_view name_of(PlanStatus status);

/// A planner's result with its simulated peak and time.
struct Plan {
  const Planner* planner = nullptr;
  bool on_chain = false;  ///< Whether the problem is a chain.
  std::optional<int64_t> budget_bytes;
  PlanResult result;  ///< The planner's result; make_plan() completes its status, bound and smallest budget.
  std::optional<int64_t> peak_bytes;  ///< Simulated peak; none without a schedule.
  std::optional<int64_t> time_ns;     ///< Simulated time; none without a schedule.
  int64_t base_time_ns = 0;           ///< Time of store-all.
  double solve_ms = 0;  ///< Time of planning alone; of `auto`, without making the front if that was made before.
};

/// Runs a planner and the simulator. A schedule above the budget is removed; the status of planners that ignore the
/// budget is then kInfeasible. lower_bound_ns is at least time_lower_bound_ns(), and a planner that minimises time and
/// meets it is kOptimal. smallest_budget_bytes is the plan's own peak where the planner does not compute it. Throws
/// NotApplicable where the planner does not accept this problem or the sums of its plan do not fit int64, InvalidInput
/// where it needs a budget and there is none, and InternalError for an invalid schedule.
Plan make_plan(const Planner& planner, const Problem& problem, const PlanRequest& request,
               const PlannerOptions& options = {});

/// Returns the plan of `auto` for any budget of at least its peak, without a front: every op runs once, in place
/// wherever it may. Its smallest_budget_bytes is -1, not computed. None where some schedule might be faster than that.
std::optional<Plan> find_plan_without_reruns(const Problem& problem);

/// Returns the front of peak and time of one planner, smallest peak first: the undominated plans at `points` budgets
/// evenly spaced from the planner's smallest budget to the peak of store-all. A planner that minimises the peak has one
/// plan. A planner with a curve of its own (Planner::curve) returns that, for any `points`.
std::vector<CurvePoint> plan_curve(const Planner& planner, const Problem& problem, int points,
                                   const PlanRequest& request, const PlannerOptions& options = {});

}  // namespace headroom
