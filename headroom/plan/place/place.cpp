#include "headroom/plan/place/place.h"

#include "headroom/core/lifetimes.h"
#include "headroom/plan/place/solver.h"

namespace headroom::internal {
namespace {

PlaceParams params_of(Effort effort) {
  PlaceParams params;
  const auto scale = [&](int64_t numerator, int64_t denominator) {
    params.work_per_block = params.work_per_block * numerator / denominator;
    params.least_work = params.least_work * numerator / denominator;
  };
  if (effort == Effort::kLow) scale(1, 5);
  if (effort == Effort::kHigh) scale(50, 1);
  return params;
}

}  // namespace

PlaceResult place(const Graph& graph, const Schedule& schedule, const PlaceOptions& options) {
  const std::vector<Buffer> buffers = find_buffers(graph, schedule);
  PlaceProblem problem;
  problem.alignment = options.alignment;
  problem.blocks.reserve(buffers.size());
  for (const Buffer& buffer : buffers)
    problem.blocks.push_back(
        {buffer.bytes, static_cast<int64_t>(buffer.first_step), static_cast<int64_t>(buffer.last_step)});
  const PlaceSolution solution = solve_placement(problem, params_of(options.effort));
  PlaceResult result;
  result.lower_bound_bytes = solution.lower_bound_bytes;
  result.placement.alignment = options.alignment;
  result.placement.arena_bytes = solution.arena_bytes;
  result.placement.offsets.reserve(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i)
    result.placement.offsets.push_back({buffers[i].first_step, buffers[i].value, solution.offsets[i]});
  return result;
}

}  // namespace headroom::internal
