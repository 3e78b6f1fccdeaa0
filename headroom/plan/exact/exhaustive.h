#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "headroom/core/graph.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// Finds the fastest of *all* schedules within the budget, in any order. Ops may run several times and in place, and
/// values may be kept for any time. It is the reference for small inputs. With limits.keep_order, schedules keep the base
/// order of first runs. Alternatives, which share an output, then count as one op (a group, see time_bound.h): where all
/// of a group are listed before all of another and every schedule must run both, some op of the first runs before any of
/// the second. Ops that only an alternative needs may run at any time.
///
/// The search is A* over states (what is live, what is held, which groups have run; see state.h), with a lower bound on
/// the remaining recomputation as the estimate. It is exponential. It accepts graphs of at most kMostValues values that
/// are not resident and kMostOps ops, in which nothing that holds is itself held, and throws NotApplicable otherwise.
/// The status is kOptimal or kInfeasible, or kTimeout where request.limits.max_states states did not suffice. Without a
/// budget it minimises the peak, and then the time at that peak. lower_bound_ns is the optimum itself where there is a
/// budget, and is not computed otherwise.
struct ExhaustiveLimits {
  static constexpr size_t kMostValues = 32;
  static constexpr size_t kMostOps = 64;
};
PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request);

/// Returns whether plan_exhaustive() accepts a graph.
bool is_exhaustible(const Graph& graph);

/// Runs the search of plan_exhaustive() for several budgets. Accepts and throws what plan_exhaustive() does, and keeps
/// a reference to the graph. Its schedules have drops where the search made them, not as early as possible.
class ExhaustiveSearch {
 public:
  /// With `keep_order`, only schedules that keep the base order of first runs are searched.
  ExhaustiveSearch(const Graph& graph, bool keep_order);
  ~ExhaustiveSearch();
  ExhaustiveSearch(const ExhaustiveSearch&) = delete;
  ExhaustiveSearch& operator=(const ExhaustiveSearch&) = delete;

  /// Finds the fastest schedule within a budget, where one takes less than `time_ns`. Returns none where there is none,
  /// or where limit_reached().
  std::optional<Schedule> find_faster(int64_t budget_bytes, int64_t time_ns, int64_t max_states);
  /// Finds a schedule of the smallest peak, where one is below `peak_bytes`. Returns none as above.
  std::optional<Schedule> find_smaller(int64_t peak_bytes, int64_t max_states);
  bool limit_reached() const;   ///< Whether the last search reached its limit of states.
  int64_t state_count() const;  ///< Number of states in the last search.

 private:
  friend PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request);
  class Search;
  std::unique_ptr<Search> search_;
  int64_t least_ns_ = 0;  ///< Lower bound on the time of any schedule, in nanoseconds.
};

}  // namespace headroom::internal
