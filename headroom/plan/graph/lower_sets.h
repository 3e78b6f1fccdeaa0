#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "headroom/plan/graph/forward_graph.h"
#include "headroom/plan/graph/lower_set_collection.h"
#include "headroom/plan/graph/segments.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// An increasing sequence of lower sets from the empty one to all, and what it costs.
struct LowerSetSequence {
  std::vector<int> sets;   ///< indices, without the empty set
  int64_t time_ns = 0;     ///< of what runs again
  int64_t kept_bytes = 0;  ///< of what is kept
};

/// Among the sequences within a bound, the one with the least time, of those the fewest kept bytes.
struct LowerSetSearch {
  std::optional<LowerSetSequence> sequence;  ///< none: there is no such sequence, or the limit was reached
  bool limit_reached = false;
  int64_t work = 0;  ///< moves looked at
};

/// Going from L to L' keeps B(L') \ L besides what is kept already, m bytes, and runs the rest of L' \ L again, except
/// after the last step, whose vertices are all recorded. It is within `bound_bytes` when m + 2 M(L' \ L) + outside(L')
/// is. Sequences that take more than `most_ns` do not count: a time known to be possible makes the search shorter.
///
/// A best-first search over (set, kept bytes, time) that leaves out what another way to the same set has in both,
/// guided by the least time and the most kept bytes with which the end can be reached from each set. At most
/// `max_states` states at a time and 300 times as many moves looked at. O((sets + states) * sets * (words + boundary)),
/// and a table of up to 1024 levels of kept bytes for each set.
LowerSetSearch least_time_sequence(const ForwardGraph& forward, const LowerSets& sets, int64_t bound_bytes,
                                   int64_t max_states, int64_t most_ns = std::numeric_limits<int64_t>::max());

struct LowerSetOptions {
  bool exact = false;  ///< all lower sets instead of the ancestors of each vertex
};

/// lower-sets: Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
/// Backpropagation" (NeurIPS 2019). Minimal recomputation time in the paper's model of memory for a bound, as
/// least_time_sequence() has it (in the paper the last part runs again as well).
///
/// The model is coarser than the simulator, so a plan is made for some tens of bounds, from about the smallest that has
/// a sequence to the one that keeps everything, closest where simulated peak and time change most; for each also the
/// plan that keeps the fewest bytes. Of all these the fastest is returned whose simulated peak is within the budget;
/// without a budget the one with the smallest peak. Which bounds are tried does not depend on the budget, so a larger
/// one is never slower. smallest_budget_bytes is the smallest simulated peak among them. The sequences are chosen with
/// times rounded to 1/2048 of the whole forward time.
///
/// kFeasible; kNotFound where none fits; kTimeout where a search reached limits.max_states, with the best plan so far
/// that fits. Throws NotApplicable where plain training has no forward or no backward op, where there are more than 10
/// * sqrt(limits.max_states) lower sets, and where sizes are too large to add up.
PlanResult plan_lower_sets(const Graph& graph, const PlanRequest& request, const LowerSetOptions& options = {});

/// All the plans that plan_lower_sets() picks from, whatever the budget. Throws what it throws.
std::vector<Schedule> lower_set_plans(const Graph& graph, const PlanLimits& limits);

/// Plans of few lower sets, for graphs that are too large for all: the base order cut at tens of places where few bytes
/// are kept. For some bounds, from the smallest on, the sequence that keeps the fewest bytes. O(size of the graph) times
/// the number of sets. Throws what plan_lower_sets() throws, but has no limit of sets.
std::vector<Schedule> coarse_lower_set_plans(const Graph& graph);

}  // namespace headroom
