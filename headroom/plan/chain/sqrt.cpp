#include "headroom/plan/chain/sqrt.h"

#include <algorithm>
#include <cmath>

namespace headroom::internal {
namespace {

struct Walk {
  std::vector<int> checkpoints;
  int64_t kept_bytes = 0;
  int64_t largest_segment_bytes = 0;
};

Walk walk(const Chain& chain, double bound_bytes) {
  Walk result;
  int64_t segment_bytes = 0;
  for (int i = 1; i <= chain.length(); ++i) {
    segment_bytes += chain.output_bytes(i);
    result.largest_segment_bytes = std::max(result.largest_segment_bytes, segment_bytes);
    if (i == chain.length() || static_cast<double>(segment_bytes) <= bound_bytes) continue;
    result.checkpoints.push_back(i);
    result.kept_bytes += chain.output_bytes(i);
    segment_bytes = 0;
  }
  return result;
}

}  // namespace

PlanResult plan_sqrt(const Chain& chain, const PlanRequest& /*request*/, const CheckpointOptions& options) {
  constexpr int kTrials = 6;
  const Walk first = walk(chain, 0);
  const double middle =
      std::sqrt(static_cast<double>(first.kept_bytes)) * std::sqrt(static_cast<double>(first.largest_segment_bytes));
  const double least = middle / std::sqrt(2.0);
  const double most = middle * std::sqrt(2.0);
  std::vector<std::vector<int>> subsets;
  for (int trial = 0; trial < kTrials; ++trial)
    subsets.push_back(walk(chain, least + (most - least) * trial / (kTrials - 1)).checkpoints);
  return plan_with_checkpoints(chain, least_peak_subset(chain, subsets, options), options, PlanStatus::kFeasible);
}

}  // namespace headroom::internal
