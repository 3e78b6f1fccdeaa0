#include "headroom/plan/chain/checkpoints.h"

#include <limits>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/steps.h"

namespace headroom::internal {
namespace {

/// Adds backward through the stages (from, to], whose tapes are live. With `held`, a{to} and g{to} are kept to the end.
void reverse_segment(ChainSteps& steps, int from, int to, bool held) {
  for (int i = to; i > from; --i) {
    if (i == to && held) {
      steps.backward(i);
      steps.drop_tape(i);
    } else {
      steps.backward_and_drop(i);
    }
  }
  if (!held) return;
  steps.drop_output(to);
  steps.drop_gradient(to);
}

}  // namespace

Schedule checkpoint_schedule(int length, std::span<const int> checkpoints, const CheckpointOptions& options) {
  int previous = 0;
  for (const int c : checkpoints) {
    if (c <= previous || c >= length)
      throw InvalidInput("checkpoints must be ascending stages from 1 to " + std::to_string(length - 1) + ", found " +
                         std::to_string(c));
    previous = c;
  }
  ChainSteps steps(length);
  size_t next = 0;
  const int last = checkpoints.empty() ? 0 : checkpoints.back();
  for (int i = 1; i <= last; ++i) {
    steps.forward(i);
    const bool input_is_kept = i == 1 || (next > 0 && checkpoints[next - 1] == i - 1);
    if (!input_is_kept) steps.drop_output(i - 1);
    if (checkpoints[next] == i) ++next;
  }
  for (int i = last + 1; i <= length; ++i) steps.record(i);
  reverse_segment(steps, last, length, false);
  for (size_t s = checkpoints.size(); s-- > 0;) {
    const int from = s == 0 ? 0 : checkpoints[s - 1];
    const int to = checkpoints[s];
    steps.drop_output(to);
    for (int i = from + 1; i <= to; ++i) steps.record(i);
    reverse_segment(steps, from, to, options.reentrant);
  }
  return steps.take();
}

PlanResult plan_with_checkpoints(const Chain& chain, std::vector<int> checkpoints, const CheckpointOptions& options,
                                 PlanStatus status) {
  PlanResult result;
  result.status = status;
  result.schedule = checkpoint_schedule(chain.length(), checkpoints, options);
  result.checkpoints = std::move(checkpoints);
  return result;
}

std::vector<int> least_peak_subset(const Chain& chain, std::span<const std::vector<int>> subsets,
                                   const CheckpointOptions& options) {
  HEADROOM_ASSERT(!subsets.empty());
  const Graph graph = to_graph(chain);
  size_t best = 0;
  int64_t best_peak_bytes = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < subsets.size(); ++i) {
    const std::optional<Simulation> simulation =
        find_simulation(graph, checkpoint_schedule(chain.length(), subsets[i], options));
    if (!simulation || simulation->peak_bytes >= best_peak_bytes) continue;
    best = i;
    best_peak_bytes = simulation->peak_bytes;
  }
  return subsets[best];
}

}  // namespace headroom::internal
