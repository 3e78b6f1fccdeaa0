#include "headroom/plan/problem.h"

#include <utility>

#include "headroom/core/simulate.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom {
using namespace internal;

Problem::Problem(Graph step, std::optional<Chain> same)
    : graph(std::move(step)), chain(std::move(same)), cache(std::make_shared<PlannerCache>()) {
  const Simulation plain = simulate(graph, store_all(graph));
  base_peak_bytes = plain.peak_bytes;
  base_time_ns = plain.time_ns;
  lower_bound_ns = time_lower_bound_ns(graph);
}

Problem make_problem(const Graph& graph) {
  std::optional<ChainMatch> match = find_chain(graph);
  if (match) return Problem(std::move(match->graph), std::move(match->chain));
  return Problem(graph);
}

Problem make_problem(const Chain& chain) { return Problem(to_graph(chain), chain); }

}  // namespace headroom
