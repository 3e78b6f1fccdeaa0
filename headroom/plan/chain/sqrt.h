#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom::internal {

/// Chen et al. 2016 (Training deep nets with sublinear memory cost, arXiv 1604.06174). It walks over the stages and
/// adds up their output sizes; where the sum passes B, it keeps that output and restarts the sum at 0. B = 0 gives x,
/// the bytes kept, and y, the largest segment. Then B takes 6 evenly spaced values from sqrt(xy)/sqrt(2) to
/// sqrt(xy)*sqrt(2), and the plan with the smallest simulated peak is returned. Takes O(n). Not optimal in any class.
PlanResult plan_sqrt(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom::internal
