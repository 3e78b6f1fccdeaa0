#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom {

/// Hong et al. 2025 (arXiv 2502.12499), the objective that mirrors what PyTorch allocates: the checkpoint subset of
/// least *simulated* peak; among those the least recomputation, then the fewest checkpoints.
///
/// With need(i, j) the largest moment of the segment (i, j], forward, recording and backward, beyond what is kept
/// before it:
///
///     M(n) = 0;   M(i) = a_i + min over j > i of max( need(i, j), M(j) );   resident + M(0) is the peak.
///
/// O(n) by a queue where need() grows with j, which it does unless a stage's recording exceeds its backward's
/// working set; then, and for reentrant checkpoints, O(n^2). Differs from the paper, which has outputs and gradients
/// only, in counting tapes, workspaces, parameter gradients and the forward pass too. The fewest checkpoints cost a
/// pass over the chain for each one, and are sought for kTieWork segments and kTiePasses passes at most; beyond that
/// the bytes kept are the least.
///
/// Optimal among all subsets, with one exception: more than kMostQuadraticStages stages where need() does not grow with
/// j get a plan for an upper bound of need() (kFeasible), or, reentrant, a NotApplicable.
struct PeakLinearLimits {
  static constexpr int kMostQuadraticStages = 10'000;
  static constexpr int64_t kTieWork = 500'000;
  static constexpr int64_t kTiePasses = 4;
};
PlanResult plan_peak_linear(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom
