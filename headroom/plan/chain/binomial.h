#pragma once

#include <optional>

#include "headroom/core/chain.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// Griewank & Walther 2000 (Algorithm 799: revolve): multi-level checkpointing of a chain with at most s states kept at
/// a time, the chain's input being one of them. For a uniform chain it runs the fewest forwards possible: with beta(s,
/// r) = C(s+r, s) and beta(s, r-1) < l <= beta(s, r),
///
///     t(l, s) = r l - beta(s+1, r-1)     unrecorded forwards, besides the l recorded ones.
///
/// The choice ignores sizes; the simulator does not. Without s, it takes the s with the least time among those whose
/// plan fits the budget, or, without a budget, the s with the smallest simulated peak. Where none fits, the status is
/// kInfeasible, with the smallest peak found; it is kNotFound on chains so long that not every s is tried. On chains of
/// more than 10,000 stages few are tried, and none that takes more than 10,000,000 forwards. Takes O(schedule) for one
/// s. Throws InvalidInput for s < 1, and NotApplicable for schedules of more than kMostForwards forwards.
struct BinomialOptions {
  std::optional<int> checkpoints;
  static constexpr int64_t kMostForwards = 100'000'000;
};
PlanResult plan_binomial(const Chain& chain, const PlanRequest& request, const BinomialOptions& options = {});

/// Returns t(length, checkpoints) as above, for lengths below 2^31.
int64_t binomial_forwards(int64_t length, int64_t checkpoints);

}  // namespace headroom::internal
