#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom::internal {

/// Hong et al. 2025 (arXiv 2502.12499), the objective that mirrors what PyTorch allocates. Returns the plan of the
/// checkpoint subset with the smallest *simulated* peak; among those the one with the least recomputation, then the
/// fewest checkpoints.
///
/// Let need(i, j) be the largest moment of the segment (i, j], forward, recording and backward, without what is kept
/// before it:
///
///     M(n) = 0;   M(i) = a_i + min over j > i of max( need(i, j), M(j) );   resident + M(0) is the peak.
///
/// Takes O(n) by a queue where need() grows with j, which it does unless a stage's recording exceeds its backward's
/// working set; then, and for reentrant checkpoints, it takes O(n^2). The paper counts outputs and gradients only; this
/// objective also counts tapes, workspaces, parameter gradients and the forward pass. Finding the fewest checkpoints
/// takes a pass over the chain for each checkpoint, and is limited to kTieWork segments and kTiePasses passes; beyond
/// that the fewest bytes are kept.
///
/// The plan is optimal among all subsets, with one exception: more than kMostQuadraticStages stages where need() does
/// not grow with j get a plan for an upper bound of need() (kFeasible), or, if reentrant, a NotApplicable.
struct PeakLinearLimits {
  /// Maximum number of stages for the O(n^2) algorithm.
  static constexpr int kMostQuadraticStages = 10'000;
  /// Maximum number of segments visited to find the fewest checkpoints, in addition to kTiePasses passes.
  static constexpr int64_t kTieWork = 500'000;
  /// Number of passes that always look for the fewest checkpoints.
  static constexpr int64_t kTiePasses = 4;
};
PlanResult plan_peak_linear(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom::internal
