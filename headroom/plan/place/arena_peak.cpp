#include "headroom/plan/place/arena_peak.h"

#include <algorithm>
#include <numeric>

#include "headroom/core/lifetimes.h"
#include "headroom/plan/place/solver.h"

namespace headroom::internal {

ArenaPeak find_arena_peak(const Graph& graph, const Schedule& schedule, const std::vector<bool>& is_outside,
                          int64_t alignment) {
  const size_t count = schedule.steps.size();
  const auto runs_outside = [&](size_t step) {
    return schedule.steps[step].is_run() && is_outside[index(schedule.steps[step].op())];
  };
  size_t end = count;  // Of the steps during which the arena is there.
  while (end > 0 && (!schedule.steps[end - 1].is_run() || runs_outside(end - 1))) --end;
  PlaceProblem problem;
  problem.alignment = alignment;
  std::vector<int64_t> beside_bytes(count + 1);  // By step: at first, the change from the step before.
  for (const Buffer& buffer : find_buffers(graph, schedule)) {
    const bool is_left = buffer.value && buffer.last_step + 1 == count;
    if (!is_left && !runs_outside(buffer.first_step)) {
      problem.blocks.push_back(
          {buffer.bytes, static_cast<int64_t>(buffer.first_step), static_cast<int64_t>(buffer.last_step)});
    } else {
      beside_bytes[buffer.first_step] += buffer.bytes;
      beside_bytes[buffer.last_step + 1] -= buffer.bytes;
    }
  }
  std::partial_sum(beside_bytes.begin(), beside_bytes.end(), beside_bytes.begin());
  const int64_t arena_bytes = solve_placement(problem).arena_bytes;
  int64_t peak_bytes = 0;
  for (size_t step = 0; step < count; ++step)
    peak_bytes = std::max(peak_bytes, beside_bytes[step] + (step < end ? arena_bytes : 0));
  return {arena_bytes, peak_bytes + graph.resident_bytes()};
}

}  // namespace headroom::internal
