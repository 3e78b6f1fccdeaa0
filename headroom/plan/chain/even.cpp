#include "headroom/plan/chain/even.h"

#include <cmath>

namespace headroom::internal {
namespace {

std::vector<int> even_checkpoints(int length, int segments) {
  std::vector<int> checkpoints;
  for (int s = 1; s < segments; ++s) checkpoints.push_back(s * (length / segments));
  return checkpoints;
}

}  // namespace

PlanResult plan_even(const Chain& chain, const PlanRequest& /*request*/, const EvenOptions& options) {
  const int length = chain.length();
  if (options.segments && (*options.segments < 1 || *options.segments > length))
    throw InvalidInput("even: the number of segments must be from 1 to " + std::to_string(length) +
                       ", the number of stages; found " + std::to_string(*options.segments));
  int least = 1;
  int most = length;
  if (options.segments) {
    least = most = *options.segments;
  } else if (length > EvenOptions::kMostStagesToTry) {
    least = most = static_cast<int>(std::sqrt(length));
  }
  std::vector<std::vector<int>> subsets;
  for (int segments = least; segments <= most; ++segments) subsets.push_back(even_checkpoints(length, segments));
  return plan_with_checkpoints(chain, least_peak_subset(chain, subsets, options), options, PlanStatus::kFeasible);
}

}  // namespace headroom::internal
