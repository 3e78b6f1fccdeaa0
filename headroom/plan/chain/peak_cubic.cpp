#include "headroom/plan/chain/peak_cubic.h"

#include "headroom/algorithm/least_cut.h"

namespace headroom::internal {

PlanResult plan_peak_cubic(const Chain& chain, const PlanRequest& /*request*/, const CheckpointOptions& options) {
  std::vector<int64_t> sizes;
  for (const Stage& stage : chain.stages) sizes.push_back(stage.output_bytes);
  return plan_with_checkpoints(chain, least_cut(sizes), options, PlanStatus::kFeasible);
}

}  // namespace headroom::internal
