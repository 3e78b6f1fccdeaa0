#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom::internal {

/// Hong et al. 2025 (arXiv 2502.12499), the first objective (Theorem 1). Returns the plan of the checkpoints C that
/// minimise
///     sum of d_i over C + the largest sum of d strictly inside a segment,
/// where d_i is the output bytes of stage i. The ends of the chain are checkpoints that cost nothing. The plan is
/// optimal for this objective; simulate() computes its real peak, with gradients and tapes. least_cut() documents ties
/// and complexity.
PlanResult plan_peak_cubic(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom::internal
