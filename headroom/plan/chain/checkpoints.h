#pragma once

#include <functional>
#include <span>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"
#include "headroom/plan/plan.h"

namespace headroom {

/// How a subset of kept stage outputs runs. Segments between checkpoints run forward unrecorded and are recorded again
/// when backward comes to them; the last one is recorded at once.
struct CheckpointOptions {
  /// As PyTorch's `use_reentrant=True`: a recorded-again segment keeps its output and the gradient that came in until
  /// all of its backward is done. Otherwise both go as backward descends.
  bool reentrant = false;
};

/// The schedule of a checkpoint subset, in the ids of ChainIds. `checkpoints` are stages 1..length-1, ascending.
///
///     length 5, {3}:   F1 F2 F3 R4 R5 | B5 B4  R1 R2 R3  B3 B2 B1
///
/// Throws InvalidInput for stages out of range or order. O(length).
Schedule checkpoint_schedule(int length, std::span<const int> checkpoints, const CheckpointOptions& options = {});

/// The plan that keeps these checkpoints.
PlanResult plan_with_checkpoints(const Chain& chain, std::vector<int> checkpoints, const CheckpointOptions& options,
                                 PlanStatus status);

/// Of several subsets, the first with the least simulated peak.
std::vector<int> least_peak_subset(const Chain& chain, std::span<const std::vector<int>> subsets,
                                   const CheckpointOptions& options);

}  // namespace headroom
