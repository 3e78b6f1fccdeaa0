#pragma once

#include "headroom/core/graph.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// The reference for small inputs: the fastest of *all* schedules within the budget, of any kind (several runs of an
/// op, keeping anything for any time, running in place), in which first runs follow the base order; ops that share an
/// output (see bound.h) count as one there, and ops that only an alternative needs are free to run at any time.
///
/// Shortest path over states (what is alive, what is held, how far first runs have come): exponential. Takes graphs of
/// at most kMostValues values that are not resident and kMostOps ops, in which nothing that holds is itself held;
/// throws NotApplicable otherwise. kOptimal or kInfeasible, or kTimeout where request.limits.max_states states did not
/// suffice. Without a budget: the least peak, then the least time at that peak. lower_bound_ns is the optimum itself.
struct ExhaustiveLimits {
  static constexpr size_t kMostValues = 32;
  static constexpr size_t kMostOps = 64;
};
PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request);

}  // namespace headroom
