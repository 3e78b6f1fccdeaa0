#include "headroom/cli/commands.h"

#include <algorithm>
#include <iostream>

#include "headroom/cli/chart.h"
#include "headroom/cli/print.h"
#include "headroom/cli/progress.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/json.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"
#include "headroom/plan/placed_plan.h"

namespace headroom::internal::cli {

Problem load_problem(const Arguments& arguments) {
  const std::variant<Graph, Chain> network = read_network(read_file(arguments.file), arguments.file);
  return std::visit([](const auto& graph_or_chain) { return make_problem(graph_or_chain); }, network);
}

namespace {

std::string headline(const Problem& problem) {
  const std::string size = problem.chain ? "chain of " + std::to_string(problem.chain->length()) + " stages"
                                         : "graph of " + std::to_string(problem.graph.ops().size()) + " ops";
  return quote(problem.graph.name()) + ", " + size + "; store-all: peak " + format_bytes(problem.base_peak_bytes) +
         ", " + format_ns(problem.base_time_ns) + "\n";
}

std::string joined(const std::vector<int>& numbers) {
  constexpr size_t kShown = 30;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kShown); ++i)
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
  if (numbers.size() > kShown) text += ",... (" + std::to_string(numbers.size()) + " in all)";
  return text.empty() ? "none" : text;
}

std::string milliseconds(double ms) {
  std::string text = std::to_string(ms);
  return text.substr(0, text.find('.') + 3) + " ms";
}

std::string plan_table(const Problem& problem, const PlacedPlan& placed, bool keep_order) {
  const Plan& plan = placed.plan;
  std::vector<std::vector<std::string>> rows = {
      {"planner", std::string(plan.planner->name)},
      {"status", std::string(name_of(plan.result.status))},
  };
  if (plan.budget_bytes) rows.push_back({"budget", format_bytes(*plan.budget_bytes)});
  if (plan.peak_bytes) {
    rows.push_back({"peak", format_bytes(*plan.peak_bytes) + ", " + share(*plan.peak_bytes, problem.base_peak_bytes) +
                                " of store-all"});
    if (placed.placement)
      rows.push_back({"arena", format_bytes(placed.placement->arena_bytes) + ", beside " +
                                   format_bytes(problem.graph.resident_bytes()) + " of resident values"});
    rows.push_back({"time", format_ns(*plan.time_ns) + " " + change(*plan.time_ns, problem.base_time_ns)});
  }
  rows.push_back(
      {"lower bound", format_ns(plan.result.lower_bound_ns) + (keep_order ? ", for plans in base order" : "")});
  if (plan.result.smallest_budget_bytes > 0)
    rows.push_back({"smallest budget", format_bytes(plan.result.smallest_budget_bytes) + " = " +
                                           std::to_string(plan.result.smallest_budget_bytes) + " bytes"});
  if (plan.planner->chooses_checkpoints && plan.on_chain && plan.result.schedule)
    rows.push_back({"checkpoints", joined(plan.result.checkpoints)});
  rows.push_back({"planned in", milliseconds(plan.solve_ms)});
  return table(rows, 2);
}

std::vector<std::string> cells(const Problem& problem, const Plan& plan) {
  std::vector<std::string> row = {std::string(plan.planner->name), std::string(name_of(plan.result.status))};
  if (plan.peak_bytes) {
    row.insert(row.end(), {format_bytes(*plan.peak_bytes), share(*plan.peak_bytes, problem.base_peak_bytes),
                           format_ns(*plan.time_ns), change(*plan.time_ns, problem.base_time_ns)});
  } else {
    const int64_t smallest_bytes = plan.result.smallest_budget_bytes;
    row.insert(row.end(), {smallest_bytes == 0 ? "-" : "needs " + format_bytes(smallest_bytes),
                           smallest_bytes == 0 ? "" : share(smallest_bytes, problem.base_peak_bytes), "-", ""});
  }
  row.push_back(milliseconds(plan.solve_ms));
  return row;
}

}  // namespace

ExitStatus run_plan(const Arguments& arguments) {
  const Planner& planner = get_planner(arguments.planner);
  const Problem problem = load_problem(arguments);
  PlanRequest request{std::nullopt, limits_of(arguments)};
  if (arguments.budget) request.budget_bytes = parse_budget(*arguments.budget, problem.base_peak_bytes);
  const PlacedPlan placed = [&] {
    const Progress progress("planning");
    if (arguments.placed) return make_placed_plan(planner, problem, request, arguments.options, arguments.alignment);
    return PlacedPlan{make_plan(planner, problem, request, arguments.options), std::nullopt};
  }();
  const Plan& plan = placed.plan;
  // Everything that can run out of memory comes before the first byte of output.
  std::string text = headline(problem) + plan_table(problem, placed, arguments.keep_order);
  if (arguments.json) {
    Json json = to_json(plan);
    if (arguments.placed) json["arena_bytes"] = placed.placement ? Json(placed.placement->arena_bytes) : Json(nullptr);
    text = json.dump() + "\n";
  }
  if (plan.result.schedule && arguments.chart && !arguments.json)
    text += "\n" + memory_chart(problem.graph, *plan.result.schedule, simulate(problem.graph, *plan.result.schedule),
                                plan.budget_bytes, ChartStyle::of_terminal());
  if (plan.result.schedule && arguments.out)
    write_file_atomically(*arguments.out, write_json(problem.graph, *plan.result.schedule));
  if (placed.placement && arguments.out_placement)
    write_file_atomically(*arguments.out_placement, write_json(problem.graph, *placed.placement));
  std::cout << text;
  return plan.result.schedule || arguments.json ? kDone : kNoPlan;
}

namespace {

std::string simulation_json(const Simulation& simulation, const std::vector<std::string>& live_at_peak) {
  const auto unless_invalid = [&](const Json& json) { return simulation.error ? Json(nullptr) : json; };
  Json json;
  json["valid"] = !simulation.error;
  json["peak_bytes"] = unless_invalid(simulation.peak_bytes);
  json["time_ns"] = unless_invalid(simulation.time_ns);
  json["peak_step"] = simulation.peak_step ? unless_invalid(*simulation.peak_step) : Json(nullptr);
  json["alive_at_peak"] = live_at_peak;
  json["moment_bytes"] = simulation.moment_bytes;
  json["after_bytes"] = simulation.after_bytes;
  json["error"] = nullptr;
  if (simulation.error) json["error"] = {{"step", simulation.error->step}, {"message", simulation.error->message}};
  return json.dump() + "\n";
}

std::string simulation_text(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                            const std::vector<std::string>& live_at_peak) {
  std::vector<std::vector<std::string>> rows = {{"step", "", "during", "after"}};
  for (size_t i = 0; i < simulation.after_bytes.size(); ++i)
    rows.push_back({std::to_string(i), describe(graph, schedule.steps[i]), format_bytes(simulation.moment_bytes[i]),
                    format_bytes(simulation.after_bytes[i])});
  std::string text = table(rows, 2);
  if (simulation.error)
    return text + "invalid at step " + std::to_string(simulation.error->step) + ": " + simulation.error->message + "\n";
  text += "peak " + format_bytes(simulation.peak_bytes) + " = " + std::to_string(simulation.peak_bytes) + " bytes";
  if (simulation.peak_step) text += " at step " + std::to_string(*simulation.peak_step);
  text += ", time " + format_ns(simulation.time_ns) + "\nlive at the peak:";
  for (const std::string& name : live_at_peak) text += " " + quote(name);
  return text + "\n";
}

}  // namespace

ExitStatus run_simulate(const Arguments& arguments) {
  const Problem problem = load_problem(arguments);
  const Graph& graph = problem.graph;
  const Schedule schedule = read_schedule(read_file(arguments.schedule_file), arguments.schedule_file, graph);
  const Simulation simulation = simulate(graph, schedule);
  std::vector<std::string> live_at_peak;
  if (!simulation.error && simulation.peak_step)
    for (const ValueId id : alive_during(graph, schedule, *simulation.peak_step))
      live_at_peak.push_back(graph.value(id).name);
  std::string text = arguments.json ? simulation_json(simulation, live_at_peak)
                                    : simulation_text(graph, schedule, simulation, live_at_peak);
  if (!arguments.json && !simulation.error && arguments.chart)
    text += "\n" + memory_chart(graph, schedule, simulation, std::nullopt, ChartStyle::of_terminal());
  if (arguments.trace) write_file_atomically(*arguments.trace, chrome_trace(graph, schedule, simulation).dump() + "\n");
  std::cout << text;
  return simulation.error ? kNoPlan : kDone;
}

namespace {

/// The budgets at which a planner does not apply for the same reason.
struct Refusal {
  std::string reason;
  std::vector<std::string> budgets;
};

}  // namespace

ExitStatus run_compare(const Arguments& arguments) {
  const Problem problem = load_problem(arguments);
  Json rows = Json::array();
  std::vector<std::vector<Refusal>> refusals(planners().size());
  std::string text = headline(problem);
  std::optional<Progress> progress("planning");
  size_t planned = 0;
  for (const std::string& budget : arguments.budgets) {
    const PlanRequest request{parse_budget(budget, problem.base_peak_bytes), limits_of(arguments)};
    std::vector<std::vector<std::string>> lines = {{"planner", "status", "peak", "", "time", "", "planned in"}};
    for (size_t i = 0; i < planners().size(); ++i) {
      try {
        const Plan plan = make_plan(planners()[i], problem, request, arguments.options);
        rows.push_back(to_json(plan));
        lines.push_back(cells(problem, plan));
      } catch (const NotApplicable& refusal) {
        if (refusals[i].empty() || refusals[i].back().reason != refusal.what())
          refusals[i].push_back({refusal.what(), {}});
        refusals[i].back().budgets.push_back(budget);
      }
      progress->report(++planned, arguments.budgets.size() * planners().size());
    }
    text += "\nbudget " + budget + " = " + format_bytes(*request.budget_bytes) + "\n" + table(lines, 2);
  }
  progress.reset();
  std::string refused;
  for (const std::vector<Refusal>& planner_refusals : refusals) {
    for (const Refusal& refusal : planner_refusals) {
      refused += "  " + refusal.reason;
      if (refusal.budgets.size() < arguments.budgets.size())
        for (size_t i = 0; i < refusal.budgets.size(); ++i) refused += (i == 0 ? " (at " : ", ") + refusal.budgets[i];
      refused += refusal.budgets.size() < arguments.budgets.size() ? ")\n" : "\n";
    }
  }
  if (!refused.empty())
    text += std::string("\nnot applicable to this ") + (problem.chain ? "chain" : "graph") + ":\n" + refused;
  if (arguments.json) text = Json{{"graph", problem.graph.name()}, {"rows", std::move(rows)}}.dump() + "\n";
  std::cout << text;
  return kDone;
}

ExitStatus run_curve(const Arguments& arguments) {
  const Planner& planner = get_planner(arguments.planner);
  const Problem problem = load_problem(arguments);
  const std::vector<CurvePoint> points = [&] {
    const Progress progress("planning");
    return plan_curve(planner, problem, arguments.points, {std::nullopt, limits_of(arguments)}, arguments.options);
  }();
  if (arguments.json) {
    Json json{{"graph", problem.graph.name()}, {"planner", planner.name}, {"points", Json::array()}};
    for (const CurvePoint& point : points)
      json["points"].push_back(Json{{"peak_bytes", point.peak_bytes}, {"time_ns", point.time_ns}});
    std::cout << json.dump() + "\n";
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {{"peak", "", "time", ""}};
  for (const CurvePoint& point : points)
    rows.push_back({format_bytes(point.peak_bytes), share(point.peak_bytes, problem.base_peak_bytes),
                    format_ns(point.time_ns), change(point.time_ns, problem.base_time_ns)});
  std::cout << headline(problem) + table(rows, 0);
  return kDone;
}

ExitStatus run_planners(const Arguments& arguments) {
  if (arguments.json) {
    Json json = Json::array();
    for (const Planner& planner : planners()) {
      Json takes = planner.takes_graphs ? Json{"chain", "graph"} : Json::array({"chain"});
      json.push_back(Json{{"name", planner.name},
                          {"takes", std::move(takes)},
                          {"minimises", planner.minimises == Minimises::kTime ? "time" : "peak"},
                          {"source", planner.source}});
    }
    std::cout << json.dump() << "\n";
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {{"planner", "takes", "minimises", "source"}};
  for (const Planner& planner : planners())
    rows.push_back({std::string(planner.name), planner.takes_graphs ? "chains, graphs" : "chains",
                    planner.minimises == Minimises::kTime ? "time" : "peak", std::string(planner.source)});
  std::cout << table(rows, 4);
  return kDone;
}

}  // namespace headroom::internal::cli
