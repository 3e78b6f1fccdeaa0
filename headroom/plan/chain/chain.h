#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/chain.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

struct ChainOptions {
  /// Number of slots of memory, at least 1. The plan is exact if there are at least as many slots as bytes that the
  /// budget leaves beside resident values.
  int64_t slots = 500;
};

/// Returns a plan of least time within a budget, which the request must have, for a chain whose stages run forward
/// either without recording or recording their whole tape.
///
/// The plan is optimal among *persistent* schedules, in which everything that a forward pass keeps stays live until
/// backward has used it. To reverse the stages i..l, whose input is live, there are two ways: run forward to some stage
/// j, keep its output, reverse j+1..l and then i..j from the same input; or record stage i, reverse i+1..l, and run
/// stage i's backward (needs.h has the memory that each takes, table.h the recurrence). Where recording takes less
/// memory than not recording, a forward pass that keeps no tape records and drops it. Non-persistent schedules are
/// sometimes better.
///
/// Memory is counted in slots of floor(m / slots) bytes, at least 1, where m is what the budget leaves beside resident
/// values. The sizes of everything kept and everything needed are rounded up, so that plans fit the budget by the byte.
///
/// - `smallest_budget_bytes` is exact, for any number of slots (-1, not computed, for more than 1,024 stages where the
///   budget lets all of them be recorded). A smaller budget is kInfeasible.
/// - `lower_bound_ns` is the time of every stage forward and backward once.
/// - The status is kOptimal where a slot is one byte or the lower bound is met, else kFeasible. Where rounding leaves
///   no plan at all, the plan follows the smallest memory of each segment, and takes the time that this takes.
///
/// Takes O(L^3 * slots) time and O(L^2 * slots) memory. Where all stages can be recorded, it takes O(L), except for the
/// smallest budget, which takes O(L^3). Ties: recording before keeping, then the earliest j. Throws InvalidInput
/// without a budget, for slots < 1 and for what lint() finds. Throws NotApplicable where not everything can be recorded
/// and there are more than 2,048 stages, a table would take more than 4 GiB, or 2 * L * (the sum of forward times)
/// reaches 2^53 ns.
///
/// Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains: how to
/// train deep neural networks with limited memory", arXiv 1911.13214. This implementation adds parameter gradients, the
/// moments of the simulator and a smallest budget by the byte, and rounds sizes separately from needs.
PlanResult plan_chain(const Chain& chain, const PlanRequest& request, const ChainOptions& options = {});

/// Returns plans of one table, whose slots are those of plan_chain() at `most_bytes`. There is a plan of the smallest
/// memory for each time in the table, or for `most_plans` (at least 2) of these times where there are more; and the
/// plan of the smallest budget. The plan with the largest peak comes first, and no peak is above `most_bytes`. Accepts
/// what plan_chain() accepts, and throws what it throws. Takes O(L^2) for each plan on top of the table.
std::vector<Schedule> plan_chain_front(const Chain& chain, int64_t most_bytes, int64_t slots, int64_t most_plans,
                                       int threads);

}  // namespace headroom::internal
