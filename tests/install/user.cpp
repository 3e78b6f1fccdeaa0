#include <headroom/core/chain.h>
#include <headroom/core/placement.h>
#include <headroom/core/simulate.h>
#include <headroom/io/file.h>
#include <headroom/io/json.h>
#include <headroom/io/read.h>
#include <headroom/io/size.h>
#include <headroom/io/text.h>
#include <headroom/plan/plan.h>
#include <headroom/plan/planners.h>
#include <headroom/plan/problem.h>

int main() {
  const headroom::Chain chain{
      .name = "one", .input_bytes = 1, .stages = {{.name = "loss", .output_bytes = 1, .tape_bytes = 1}}};
  const headroom::Graph graph = headroom::to_graph(chain);
  if (headroom::simulate(graph, headroom::store_all(graph)).error) return 1;
  if (!headroom::verify_placement(graph, headroom::store_all(graph), {.arena_bytes = -1})) return 1;
  const headroom::Problem problem = headroom::make_problem(chain);
  const headroom::Plan plan = make_plan(headroom::default_planner(), problem, {problem.base_peak_bytes, {}});
  return plan.result.status == headroom::PlanStatus::kOptimal ? 0 : 1;
}
