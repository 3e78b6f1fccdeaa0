#include <algorithm>
#include <iostream>

#include "headroom/cli/commands.h"
#include "headroom/cli/print.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"

namespace headroom::cli {
namespace {

struct Named {
  int64_t amount;
  std::string name;
};

/// "'a' (1.00 GiB), 'b' (3 B) and 5 more", largest first. Sorts the items.
template <typename Format>
std::string largest(std::vector<Named>& items, Format format) {
  constexpr size_t kShown = 6;
  std::ranges::stable_sort(items, std::greater<>(), &Named::amount);
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + quote(items[i].name) + " (" + format(items[i].amount) + ")";
  if (items.size() > kShown) text += " and " + std::to_string(items.size() - kShown) + " more";
  return items.empty() ? "nothing" : text;
}

}  // namespace

ExitStatus run_explain(const Arguments& arguments) {
  const Problem problem = load_problem(arguments);
  const Graph& graph = problem.graph;
  const Schedule schedule = read_schedule(read_file(arguments.schedule_file), arguments.schedule_file, graph);
  const Simulation simulation = simulate(graph, schedule);
  if (simulation.error) {
    std::cout << "The schedule is invalid at step " << simulation.error->step << ": " << simulation.error->message
              << ".\n";
    return kNoPlan;
  }
  std::cout << "This schedule of " << quote(graph.name()) << " has " << schedule.steps.size() << " steps. Its peak is "
            << format_bytes(simulation.peak_bytes) << ", " << share(simulation.peak_bytes, problem.base_peak_bytes)
            << " of the " << format_bytes(problem.base_peak_bytes) << " of plain training, and it takes "
            << format_ns(simulation.time_ns) << " " << change(simulation.time_ns, problem.base_time_ns) << ".\n";

  // Groups of alternatives matter less here than ops: a stage run plainly and later recorded ran twice.
  std::vector<uint8_t> written(graph.values().size(), 0);
  std::vector<int64_t> again_ns(graph.ops().size(), 0);
  int64_t reruns = 0;
  std::optional<size_t> first_backward;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (!schedule.steps[i].is_run()) continue;
    const OpId id = schedule.steps[i].op();
    const Op& op = graph.op(id);
    if (op.phase == Phase::kBackward && !first_backward) first_backward = i;
    const bool again = std::ranges::any_of(op.outputs, [&](ValueId out) { return written[index(out)] != 0; });
    for (const ValueId out : op.outputs) written[index(out)] = 1;
    if (!again) continue;
    ++reruns;
    again_ns[index(id)] += op.time_ns;
  }
  if (first_backward) {
    std::vector<Named> kept;
    int64_t kept_bytes = 0;
    for (const ValueId id : alive_during(graph, schedule, *first_backward)) {
      const Value& value = graph.value(id);
      const std::vector<ValueId>& made = graph.op(schedule.steps[*first_backward].op()).outputs;
      if (value.resident || std::ranges::find(made, id) != made.end()) continue;
      kept.push_back({value.bytes, value.name});
      kept_bytes += value.bytes;
    }
    std::cout << "When backward begins it has kept " << kept.size() << " values of forward, "
              << format_bytes(kept_bytes) << " in all: " << largest(kept, format_bytes) << ".\n";
  }
  std::vector<Named> recomputed;
  int64_t recomputed_ns = 0;
  for (size_t i = 0; i < again_ns.size(); ++i) {
    if (again_ns[i] == 0) continue;
    recomputed.push_back({again_ns[i], graph.ops()[i].name});
    recomputed_ns += again_ns[i];
  }
  if (reruns == 0) {
    std::cout << "Nothing is computed twice.\n";
  } else {
    std::cout << reruns << " runs compute again what was there before, for " << format_ns(recomputed_ns) << ", "
              << share(recomputed_ns, simulation.time_ns) << " of the time: " << largest(recomputed, format_ns)
              << ".\n";
  }
  if (!simulation.peak_step) return kDone;
  std::vector<Named> alive;
  for (const ValueId id : alive_during(graph, schedule, *simulation.peak_step))
    alive.push_back({graph.value(id).bytes, graph.value(id).name});
  std::cout << "The peak is at step " << *simulation.peak_step << ", "
            << describe(graph, schedule.steps[*simulation.peak_step]) << ", with " << alive.size()
            << " values in memory: " << largest(alive, format_bytes) << ".\n";
  return kDone;
}

}  // namespace headroom::cli
