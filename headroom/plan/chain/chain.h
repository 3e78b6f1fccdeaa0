#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/chain.h"
#include "headroom/plan/plan.h"

namespace headroom {

struct ChainOptions {
  int64_t slots = 500;  ///< at least 1; at or above the bytes that the budget leaves beside resident values: exact
};

/// The least time within a budget, which the request must have, for a chain whose stages run forward either without
/// recording or recording their whole tape.
///
/// Optimal among *persistent* schedules: what a forward pass keeps stays until backward has used it. To reverse the
/// stages i..l, whose input is there, either run forward to some stage j, keep its output, reverse j+1..l and then i..j
/// from the same input, or record stage i, reverse i+1..l, and run stage i's backward (needs.h has what each
/// takes, table.h the recurrence). Where recording takes less memory than not recording, a forward pass that
/// keeps no tape records and drops it. Non-persistent schedules are sometimes better.
///
/// Memory is counted in slots of floor(m / slots) bytes, at least 1, where m is what the budget leaves beside resident
/// values. Everything kept and everything needed is rounded up, so that plans are within the budget by the byte.
///
/// - `smallest_budget_bytes` is exact, whatever the slots (not computed, -1, for more than 1,024 stages that fit the
///   budget all recorded). A smaller budget is kInfeasible.
/// - `lower_bound_ns`: every stage forward and backward once.
/// - kOptimal where a slot is one byte or the lower bound is met, else kFeasible. Where rounding leaves no plan at
///   all, there is one that follows the least memory of each segment, and takes its time.
///
/// O(L^3 * slots) time and O(L^2 * slots) memory; O(L) where all stages can be recorded, but for the smallest budget,
/// O(L^3). Ties: recording before keeping, then the earliest j. Throws InvalidInput without a budget, for slots < 1 and
/// for what lint() finds; NotApplicable where not everything can be recorded and there are more than 2,048 stages, a
/// table would take more than 4 GiB, or 2 * L * (the sum of forward times) reaches 2^53 ns.
///
/// Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains: how to
/// train deep neural networks with limited memory", arXiv 1911.13214. Different here: parameter gradients, the moments
/// of the simulator, a smallest budget by the byte, sizes rounded apart from needs.
PlanResult plan_chain(const Chain& chain, const PlanRequest& request, const ChainOptions& options = {});

/// Plans of one table, whose slots are those of plan_chain() at `most_bytes`: for each time that it has, the plan of the
/// least memory, or for `most_plans` (at least 2) of them where they are more; and the plan of the smallest budget. The
/// largest peak comes first, and none is above `most_bytes`. Takes what plan_chain() takes, and throws what it throws;
/// O(L^2) for each plan on top of the table.
std::vector<Schedule> plan_chain_front(const Chain& chain, int64_t most_bytes, int64_t slots, int64_t most_plans,
                                       int threads);

}  // namespace headroom
