#include <algorithm>

#include "headroom/cli/commands.h"
#include "headroom/cli/print.h"
#include "headroom/cli/progress.h"
#include "headroom/core/quote.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"
#include "headroom/report/data.h"
#include "headroom/report/page.h"

namespace headroom::internal::cli {
namespace {

/// Reads the measured memory and the names of the nodes from the "steps" of a trace of `headroom-train`.
void read_measurement(const std::string& file, ReportInput& input) {
  const auto fail = [&](const std::string& message) { throw InvalidInput(file + ": " + message); };
  const Json trace = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains("steps") || !trace["steps"].is_array())
    fail("not a trace of `headroom-train --trace`: expected an object with a list of steps");
  ReportMeasurement measured;
  std::vector<std::string> nodes(input.graph.ops().size());
  size_t run = 0;
  for (const Step& step : input.schedule.steps) {
    if (!step.is_run()) continue;
    const std::string& name = input.graph.op(step.op()).name;
    const std::string where = "steps[" + std::to_string(run) + "]";
    if (run >= trace["steps"].size()) fail(where + " is missing: expected a run of " + quote(name));
    const Json& entry = trace["steps"][run++];
    const auto get = [&](const char* key, auto is_valid) {
      if (!entry.is_object() || !entry.contains(key) || !is_valid(entry[key]))
        fail(where + ": " + key + " is missing or of the wrong type");
      return entry[key];
    };
    const auto is_text = [](const Json& json) { return json.is_string(); };
    const auto is_integer = [](const Json& json) { return json.is_number_integer(); };
    if (const auto op = get("op", is_text).get<std::string>(); op != name)
      fail(where + " is of another schedule: expected op " + quote(name) + ", found " + quote(op));
    nodes[index(step.op())] = get("node", is_text).get<std::string>();
    measured.moment_bytes.push_back(get("measured_moment_bytes", is_integer).get<int64_t>());
    measured.after_bytes.push_back(get("measured_after_bytes", is_integer).get<int64_t>());
  }
  if (run != trace["steps"].size())
    fail("is of another schedule: expected " + std::to_string(run) + " steps, found " +
         std::to_string(trace["steps"].size()));
  input.measured = std::move(measured);
  input.modules = std::move(nodes);
}

}  // namespace

ExitStatus run_report(const Arguments& arguments) {
  if (arguments.named_planner) get_planner(*arguments.named_planner);
  const Problem problem = load_problem(arguments);
  const Schedule schedule = read_schedule(read_file(arguments.schedule_file), arguments.schedule_file, problem.graph);
  if (const std::optional<ScheduleError> error = verify(problem.graph, schedule)) {
    complain("headroom", "the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message,
             kNoPlan);
    return kNoPlan;
  }
  ReportInput input{problem.graph, schedule};
  input.planner = arguments.named_planner;
  if (arguments.budget) input.budget_bytes = parse_budget(*arguments.budget, problem.base_peak_bytes);
  if (problem.chain) input.modules = chain_modules(*problem.chain);
  if (arguments.measured) read_measurement(*arguments.measured, input);
  make_report_page("");  // Fails before planning if headroom was built without the page.
  const Progress progress("planning for comparison");
  input.fronts = make_report_fronts(problem, limits_of(arguments));
  write_file_atomically(*arguments.out, make_report_page(write_report_data(input)));
  return kDone;
}

}  // namespace headroom::internal::cli
