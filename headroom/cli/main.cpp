#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <limits>
#include <new>

#include "headroom/cli/commands.h"
#include "headroom/core/quote.h"

namespace headroom::internal::cli {
namespace {

constexpr const char* kProgram = "headroom";

using Run = ExitStatus (*)(const Arguments&);

/// Defines the calls of docs/formats.md. Parsing sets `run` to the function of the call on the command line.
class Calls {
 public:
  Calls(CLI::App& app, Arguments& arguments, Run& run) : app_(app), arguments_(arguments), run_(run) {}

  void define() {
    app_.require_subcommand(1);
    define_plan();
    define_simulate();
    define_place();
    define_compare();
    define_curve();
    prints_json(call("planners", "list the planners: what each takes and minimises, and its paper", run_planners));
    define_explain();
    define_report();
  }

 private:
  void define_plan() {
    CLI::App* plan = call("plan", "plan a graph or chain", run_plan);
    takes_file(plan);
    plan->add_option("--planner", arguments_.planner, "one of `headroom planners` (auto)");
    plan->add_option("--budget", arguments_.budget,
                     "maximum peak: bytes, 512MB, 8GiB, or a share of store-all's peak such as 0.5x");
    add_planner_options(*plan, arguments_);
    add_limits(*plan, arguments_);
    prints_json(plan);
    draws_chart(plan);
    plan->add_option("--out", arguments_.out, "write the schedule here");
    CLI::Option* placed = plan->add_flag("--placed", arguments_.placed,
                                         "give every copy an address; the budget is for resident values and the arena");
    takes_alignment(plan)->needs(placed);
    plan->add_option("--out-placement", arguments_.out_placement, "write the addresses here")->needs(placed);
  }

  void define_simulate() {
    CLI::App* simulate = call("simulate", "compute peak, time and memory at every step of a schedule", run_simulate);
    takes_file(simulate);
    takes_schedule(simulate);
    prints_json(simulate);
    draws_chart(simulate);
    simulate->add_option("--trace", arguments_.trace, "write a Chrome/Perfetto trace here");
  }

  void define_place() {
    CLI::App* place = call("place", "compute addresses for a schedule, in one arena", run_place);
    takes_file(place);
    takes_schedule(place);
    takes_alignment(place);
    add_limits(*place, arguments_);
    prints_json(place);
    place->add_option("--out", arguments_.out, "write the addresses here");
  }

  void define_compare() {
    CLI::App* compare = call("compare", "run every planner that applies, side by side", run_compare);
    takes_file(compare);
    arguments_.budgets = {"1x", "0.75x", "0.5x", "0.35x", "0.25x"};
    compare->add_option("--budgets", arguments_.budgets, "comma-separated budgets (1x,0.75x,0.5x,0.35x,0.25x)")
        ->delimiter(',');
    add_planner_options(*compare, arguments_);
    add_limits(*compare, arguments_);
    prints_json(compare);
  }

  void define_curve() {
    CLI::App* curve = call("curve", "compute the front of peak against time", run_curve);
    takes_file(curve);
    curve->add_option("--planner", arguments_.planner, "one of `headroom planners` (auto)");
    curve->add_option("--points", arguments_.points, "number of budgets to plan for (20)")
        ->check(whole_number(2, 10000));
    add_planner_options(*curve, arguments_);
    add_limits(*curve, arguments_);
    prints_json(curve);
  }

  void define_explain() {
    CLI::App* explain = call("explain", "describe a schedule in sentences", run_explain);
    takes_file(explain);
    takes_schedule(explain);
    add_limits(*explain, arguments_);
  }

  void define_report() {
    CLI::App* report = call("report", "write the report page of a schedule", run_report);
    takes_file(report);
    takes_schedule(report);
    report->add_option("--out", arguments_.out, "write the page here, as one HTML file")->required();
    report->add_option("--budget", arguments_.budget, "the budget of the schedule, for display");
    report->add_option("--planner", arguments_.named_planner, "the planner of the schedule, for display");
    report->add_option("--measured", arguments_.measured,
                       "measured memory: a trace that `headroom-train --trace` wrote");
    add_limits(*report, arguments_);
  }

  CLI::App* call(const std::string& name, const std::string& does, Run function) {
    CLI::App* command = app_.add_subcommand(name, does);
    command->callback([&run = run_, function] { run = function; });
    return command;
  }
  void takes_file(CLI::App* command) {
    command->add_option("FILE", arguments_.file, "graph or chain file, JSON or text")->required();
  }
  void takes_schedule(CLI::App* command) {
    command->add_option("SCHEDULE", arguments_.schedule_file, "schedule file, JSON or text")->required();
  }
  CLI::Option* takes_alignment(CLI::App* command) {
    return command->add_option("--alignment", arguments_.alignment, "every address is a multiple of this (1)")
        ->check(whole_number(1, std::numeric_limits<int64_t>::max()));
  }
  void prints_json(CLI::App* command) { command->add_flag("--json", arguments_.json, "print JSON instead of text"); }
  void draws_chart(CLI::App* command) {
    command->add_flag("!--no-chart", arguments_.chart, "do not print the chart of memory");
  }

  CLI::App& app_;
  Arguments& arguments_;
  Run& run_;
};

int run_command(int argc, const char* const* argv) {
  CLI::App app("Plans training steps inside a memory budget.", kProgram);
  Arguments arguments;
  Run run = nullptr;
  Calls(app, arguments, run).define();
  if (argc > 1 && *argv[1] != '-') {
    const auto calls = app.get_subcommands([](const CLI::App*) { return true; });
    const auto is_named = [&](const CLI::App* call) { return call->get_name() == argv[1]; };
    if (std::ranges::none_of(calls, is_named))
      return complain(kProgram, "there is no call " + quote(argv[1]) + "; `headroom --help` lists the calls",
                      kBadInput);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return complain(kProgram, error.what() + std::string("; `headroom --help` lists the calls"), kBadInput);
  }
  const ExitStatus status = run(arguments);
  if (!std::cout.flush()) return complain(kProgram, "standard output: cannot be written", kBadInput);
  return status;
}

}  // namespace
}  // namespace headroom::internal::cli

int main(int argc, char** argv) {
  using namespace headroom;
  namespace cli = internal::cli;
  try {
    return cli::run_command(argc, argv);
  } catch (const InvalidInput& error) {
    return cli::complain(cli::kProgram, error.what(), cli::kBadInput);
  } catch (const std::bad_alloc&) {
    return cli::complain_of_memory(cli::kProgram);
  } catch (const std::exception& error) {
    return cli::complain(cli::kProgram, error.what(), cli::kBug);
  }
}
