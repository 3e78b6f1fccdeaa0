#pragma once

#include <optional>

#include "headroom/plan/chain/checkpoints.h"

namespace headroom {

/// PyTorch's `checkpoint_sequential`: k segments, the first k-1 of floor(n/k) stages, the last with the rest and not
/// checkpointed. Without k, the k with the least simulated peak: O(n) simulations of O(n), so up to kMostStagesToTry
/// stages; beyond it, k = floor(sqrt(n)). Not optimal for anything. Throws InvalidInput for k outside 1..n.
struct EvenOptions : CheckpointOptions {
  std::optional<int> segments;
  static constexpr int kMostStagesToTry = 2000;
};
PlanResult plan_even(const Chain& chain, const PlanRequest& request, const EvenOptions& options = {});

}  // namespace headroom
