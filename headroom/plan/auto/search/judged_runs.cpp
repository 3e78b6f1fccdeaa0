#include "headroom/plan/auto/search/judged_runs.h"

#include <algorithm>
#include <iterator>

#include "headroom/algorithm/pareto.h"

namespace headroom::internal {

std::vector<int32_t> runs_of(const Schedule& schedule) {
  std::vector<int32_t> runs;
  for (const Step& step : schedule.steps)
    if (step.is_run()) runs.push_back(static_cast<int32_t>(step.op()));
  return runs;
}

JudgedRuns judge(const FlatGraph& flat, const std::vector<int32_t>& runs) {
  Timeline timeline(flat);
  timeline.assign(runs);
  return {.runs = runs, .peak_bytes = timeline.peak_bytes(), .time_ns = timeline.time_ns()};
}

Front undominated(std::vector<JudgedRuns> plans) {
  return pareto_front(std::move(plans), &JudgedRuns::peak_bytes, &JudgedRuns::time_ns);
}

Front::const_iterator find_within(const Front& front, int64_t budget_bytes) {
  const auto above =
      std::ranges::partition_point(front, [&](const JudgedRuns& plan) { return plan.peak_bytes <= budget_bytes; });
  return above == front.begin() ? front.end() : std::prev(above);
}

}  // namespace headroom::internal
