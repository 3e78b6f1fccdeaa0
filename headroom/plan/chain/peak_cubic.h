#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom {

/// Hong et al. 2025 (arXiv 2502.12499), the first objective (Theorem 1): checkpoints C that minimise
///     sum of d_i over C + the largest sum of d strictly inside a segment,
/// d_i being stage i's output bytes; the ends of the chain are checkpoints that cost nothing. Optimal in that
/// objective; what the plan really costs, gradients and tapes included, simulate() says. See least_cut() for ties and
/// complexity.
PlanResult plan_peak_cubic(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom
