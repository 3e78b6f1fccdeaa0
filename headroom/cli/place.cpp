#include "headroom/plan/place/place.h"

#include <chrono>
#include <iostream>

#include "headroom/cli/commands.h"
#include "headroom/cli/print.h"
#include "headroom/cli/progress.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/json.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"

namespace headroom::internal::cli {
namespace {

std::string placement_json(const PlaceResult& result, int64_t peak_bytes, int64_t resident_bytes, double solve_ms) {
  Json json;
  json["arena_bytes"] = result.placement.arena_bytes;
  json["peak_bytes"] = peak_bytes;
  json["resident_bytes"] = resident_bytes;
  json["optimal"] = result.is_optimal();
  json["solve_ms"] = solve_ms;
  return json.dump() + "\n";
}

std::string placement_text(const Graph& graph, const PlaceResult& result, int64_t peak_bytes, double solve_ms) {
  const int64_t arena_bytes = result.placement.arena_bytes;
  const std::string proved = result.is_optimal()
                                 ? "no smaller one is possible"
                                 : "none below " + std::to_string(result.lower_bound_bytes) + " bytes is possible";
  std::string ms = std::to_string(solve_ms);
  return quote(graph.name()) + ", " + std::to_string(result.placement.offsets.size()) + " addresses\n" +
         table({{"arena", format_bytes(arena_bytes) + " = " + std::to_string(arena_bytes) + " bytes; " + proved},
                {"peak", format_bytes(peak_bytes) + ", without " + format_bytes(graph.resident_bytes()) +
                             " of resident values"},
                {"placed in", ms.substr(0, ms.find('.') + 3) + " ms"}},
               2);
}

}  // namespace

ExitStatus run_place(const Arguments& arguments) {
  const Problem problem = load_problem(arguments);
  const Graph& graph = problem.graph;
  const Schedule schedule = read_schedule(read_file(arguments.schedule_file), arguments.schedule_file, graph);
  const Simulation simulation = simulate(graph, schedule);
  if (simulation.error) {
    complain("headroom",
             arguments.schedule_file + ": the schedule is invalid at step " + std::to_string(simulation.error->step) +
                 ": " + simulation.error->message,
             kNoPlan);
    return kNoPlan;
  }
  const auto start = std::chrono::steady_clock::now();
  const PlaceResult result = [&] {
    const Progress progress("placing");
    return place(graph, schedule, {arguments.alignment, arguments.effort});
  }();
  const double solve_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const int64_t peak_bytes = simulation.peak_bytes - graph.resident_bytes();
  const std::string text = arguments.json ? placement_json(result, peak_bytes, graph.resident_bytes(), solve_ms)
                                          : placement_text(graph, result, peak_bytes, solve_ms);
  if (arguments.out) write_file_atomically(*arguments.out, write_json(graph, result.placement));
  std::cout << text;
  return kDone;
}

}  // namespace headroom::internal::cli
