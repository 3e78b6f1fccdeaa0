#pragma once

#include <functional>
#include <span>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// How the schedule of a checkpoint subset runs. Segments between checkpoints run forward unrecorded, and are rerun
/// with recording when backward reaches them; the last segment is recorded at once.
struct CheckpointOptions {
  /// Whether to follow PyTorch's `use_reentrant=True`: a rerun segment keeps its output and its output's gradient until
  /// all of its backward is done. Otherwise both are freed as backward descends.
  bool reentrant = false;
};

/// Returns the schedule of a checkpoint subset, in the ids of ChainIds. `checkpoints` are stages 1..length-1,
/// ascending.
///
///     length 5, {3}:   F1 F2 F3 R4 R5 | B5 B4  R1 R2 R3  B3 B2 B1
///
/// Throws InvalidInput for stages out of range or order. Takes O(length).
Schedule checkpoint_schedule(int length, std::span<const int> checkpoints, const CheckpointOptions& options = {});

/// Returns the plan that keeps these checkpoints.
PlanResult plan_with_checkpoints(const Chain& chain, std::vector<int> checkpoints, const CheckpointOptions& options,
                                 PlanStatus status);

/// Returns the first of several subsets with the smallest simulated peak.
std::vector<int> least_peak_subset(const Chain& chain, std::span<const std::vector<int>> subsets,
                                   const CheckpointOptions& options);

}  // namespace headroom::internal
