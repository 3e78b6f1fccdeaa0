#pragma once

#include <optional>

#include "headroom/plan/chain/checkpoints.h"

namespace headroom::internal {

/// PyTorch's `checkpoint_sequential`: k segments, the first k-1 of floor(n/k) stages each, the last with the rest and
/// not checkpointed. Without k, it takes the k with the smallest simulated peak, in O(n) simulations of O(n). With more
/// than kMostStagesToTry stages, it takes k = floor(sqrt(n)) instead. Not optimal in any class. Throws InvalidInput for
/// k outside 1..n.
struct EvenOptions : CheckpointOptions {
  std::optional<int> segments;
  static constexpr int kMostStagesToTry = 2000;
};
PlanResult plan_even(const Chain& chain, const PlanRequest& request, const EvenOptions& options = {});

}  // namespace headroom::internal
