#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "headroom/plan/graph/forward_graph.h"
#include "headroom/plan/graph/lower_set_collection.h"
#include "headroom/plan/graph/segments.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// An increasing sequence of lower sets from the empty set to the whole set, and its cost.
struct LowerSetSequence {
  std::vector<int> sets;   ///< Indices of the sets, without the empty set.
  int64_t time_ns = 0;     ///< Time of the ops that run again.
  int64_t kept_bytes = 0;  ///< Bytes that are kept.
};

/// The result of a search for the sequence within a bound that takes the least time, and of those keeps the fewest
/// bytes.
struct LowerSetSearch {
  std::optional<LowerSetSequence> sequence;  ///< None if there is no such sequence, or the limit was reached.
  bool limit_reached = false;
  int64_t work = 0;  ///< Number of moves looked at.
};

/// Searches for the sequence of least time within a bound. A move from L to L' keeps B(L') \ L besides what is kept
/// already, m bytes, and runs the rest of L' \ L again, except after the last move, whose vertices are all recorded.
/// The move is within `bound_bytes` if m + 2 M(L' \ L) + outside(L') is. Sequences that take more than `most_ns` are
/// left out: a time known to be possible makes the search shorter.
///
/// This is a best-first search over (set, kept bytes, time). It leaves out states that another way to the same set
/// dominates. It is guided by the least time and the most kept bytes with which the end can be reached from each set.
/// It stores at most `max_states` states at a time and looks at 300 times as many moves. Takes O((sets + states) * sets
/// * (words + boundary)), and a table of up to 1024 levels of kept bytes for each set.
LowerSetSearch least_time_sequence(const ForwardGraph& forward, const LowerSets& sets, int64_t bound_bytes,
                                   int64_t max_states, int64_t most_ns = std::numeric_limits<int64_t>::max());

struct LowerSetOptions {
  bool exact = false;  ///< Whether to use all lower sets instead of the ancestors of each vertex.
};

/// Makes the plan of `lower-sets`: Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms for
/// Memory-Efficient Backpropagation" (NeurIPS 2019). It minimises recomputation time in the paper's model of memory for
/// a bound, by least_time_sequence() (in the paper, the last part runs again as well).
///
/// The model is coarser than the simulator, so plans are made for some tens of bounds, from about the smallest that has
/// a sequence to the one that keeps everything, spaced most closely where simulated peak and time change most. For each
/// bound there is also the plan that keeps the fewest bytes. The fastest of all these plans whose simulated peak is
/// within the budget is returned; without a budget, the one with the smallest peak. Which bounds are tried does not
/// depend on the budget, so a larger budget is never slower. smallest_budget_bytes is the smallest simulated peak among
/// the plans. The sequences are chosen with times rounded to 1/2048 of the whole forward time.
///
/// The status is kFeasible; kNotFound where no plan fits; kTimeout where a search reached limits.max_states, with the
/// best plan so far that fits. Throws NotApplicable where store-all has no forward or no backward op, where there are
/// more than 10 * sqrt(limits.max_states) lower sets, and where sizes are too large to add up.
PlanResult plan_lower_sets(const Graph& graph, const PlanRequest& request, const LowerSetOptions& options = {});

/// Returns all plans from which plan_lower_sets() picks, for any budget. Throws what it throws.
std::vector<Schedule> lower_set_plans(const Graph& graph, const PlanLimits& limits);

}  // namespace headroom::internal
