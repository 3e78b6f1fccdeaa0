#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"
#include "headroom/plan/plan.h"

namespace headroom {

class AutoFronts;

/// What planners work on: a training step, and the chain that it is, if it is one. Where there is a chain, the graph
/// has the ids of ChainIds. What all planners are measured against is computed once. Neither graph nor chain changes.
struct Problem {
  explicit Problem(Graph step, std::optional<Chain> same = std::nullopt);

  Graph graph;
  std::optional<Chain> chain;
  int64_t base_peak_bytes;  ///< of store-all
  int64_t base_time_ns;     ///< of store-all
  int64_t lower_bound_ns;   ///< time_lower_bound_ns()
  /// The fronts that `auto` has made of it so far; copies of a problem share them.
  std::shared_ptr<AutoFronts> fronts;
};
/// A graph that is a chain comes with it, its values renumbered.
Problem make_problem(const Graph& graph);
Problem make_problem(const Chain& chain);

/// What the command line can ask of a planner; each one heeds what concerns it.
struct PlannerOptions {
  int64_t slots = 500;          ///< chain
  std::optional<int> segments;  ///< even: segments; binomial: checkpoints
  bool reentrant = false;       ///< planners of checkpoint subsets, on chains
  bool exact = false;           ///< lower-sets
  bool keep_order = true;       ///< auto, exhaustive: first runs keep the base order, which they do in any case as yet
};

enum class Minimises : uint8_t { kTime, kPeak };

struct Planner {
  std::string_view name;
  bool takes_graphs;  ///< any graph; otherwise chains, and graphs that are chains
  Minimises minimises;
  bool needs_budget;
  bool chooses_checkpoints;  ///< a subset of a chain's stage outputs
  std::string_view source;
  PlanResult (*plan)(const Problem&, const PlanRequest&, const PlannerOptions&);
};

/// Every planner, `auto` last.
std::span<const Planner> planners();

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

struct CurvePoint {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  bool operator==(const CurvePoint&) const = default;
};

/// The front of peak against time of one planner, smallest peak first: plans at `points` budgets evenly spaced from the
/// planner's smallest to the peak of store-all, those left out that another one beats in both. A planner of least peak
/// has one plan; `auto` has its own front, whatever the points.
std::vector<CurvePoint> plan_curve(const Planner& planner, const Problem& problem, int points,
                                   const PlanRequest& request, const PlannerOptions& options = {});

}  // namespace headroom
