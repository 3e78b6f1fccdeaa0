#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "headroom/core/graph.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// The reference for small inputs: the fastest of *all* schedules within the budget that keep the base order of first
/// runs, of any kind (several runs of an op, keeping anything for any time, running in place). Alternatives, which share
/// an output, count as one op (a group, see bound.h): where all of a group are listed before all of another and every
/// schedule must run both, some op of the first runs before any of the second. Ops that only an alternative needs are
/// free to run at any time.
///
/// Shortest path over states (what is alive, what is held, which groups have run): exponential. Takes graphs of
/// at most kMostValues values that are not resident and kMostOps ops, in which nothing that holds is itself held;
/// throws NotApplicable otherwise. kOptimal or kInfeasible, or kTimeout where request.limits.max_states states did not
/// suffice. Without a budget: the least peak, then the least time at that peak. lower_bound_ns is the optimum itself
/// where there is a budget, else not computed.
struct ExhaustiveLimits {
  static constexpr size_t kMostValues = 32;
  static constexpr size_t kMostOps = 64;
};
PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request);

/// The same search for one budget after the other, `max_states` being the limit of all of them together. Takes and
/// throws what plan_exhaustive() does; keeps a reference to the graph.
class ExhaustiveSearch {
 public:
  ExhaustiveSearch(const Graph& graph, int64_t max_states);
  ~ExhaustiveSearch();
  ExhaustiveSearch(const ExhaustiveSearch&) = delete;
  ExhaustiveSearch& operator=(const ExhaustiveSearch&) = delete;

  /// The fastest schedule within a budget, of those that keep the base order, where one takes less than `time_ns`; none: there is none, or
  /// limit_reached(). Its drops are where the search made them, not as early as can be.
  std::optional<Schedule> find_faster(int64_t budget_bytes, int64_t time_ns);
  bool limit_reached() const { return limit_reached_; }

 private:
  friend PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request);
  class Search;
  std::unique_ptr<Search> search_;
  int64_t least_ns_ = 0;  ///< of any schedule
  int64_t states_left_;
  bool limit_reached_ = false;
};

}  // namespace headroom
