#pragma once

#include "headroom/plan/chain/checkpoints.h"

namespace headroom {

/// Chen et al. 2016 (Training deep nets with sublinear memory cost, arXiv 1604.06174): walk the stages adding up output
/// sizes; where the sum passes B, keep that output and start again at 0. B = 0 gives x, the bytes kept, and y, the
/// largest segment; then B takes 6 evenly spaced values from sqrt(xy)/sqrt(2) to sqrt(xy)*sqrt(2), and the plan with
/// the least simulated peak wins. O(n). Not optimal for anything.
PlanResult plan_sqrt(const Chain& chain, const PlanRequest& request, const CheckpointOptions& options = {});

}  // namespace headroom
