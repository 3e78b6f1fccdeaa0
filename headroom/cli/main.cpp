#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <new>

#include "headroom/cli/commands.h"

namespace headroom::cli {
namespace {

using Run = ExitStatus (*)(const Arguments&);

/// The calls of docs/formats.md. The subcommand given sets `run`.
void define(CLI::App& app, Arguments& arguments, Run& run) {
  app.require_subcommand(1);
  const auto call = [&](const std::string& name, const std::string& does, Run function) {
    CLI::App* command = app.add_subcommand(name, does);
    command->callback([&run, function] { run = function; });
    return command;
  };
  const auto takes_file = [&](CLI::App* command) {
    command->add_option("FILE", arguments.file, "graph or chain file, JSON or text")->required();
  };
  const auto takes_schedule = [&](CLI::App* command) {
    command->add_option("SCHEDULE", arguments.schedule_file, "schedule file, JSON or text")->required();
  };
  const auto prints_json = [&](CLI::App* command) {
    command->add_flag("--json", arguments.json, "print JSON instead of text");
  };
  const auto takes_limits = [&](CLI::App* command) {
    const std::map<std::string, Effort> efforts{
        {"low", Effort::kLow}, {"normal", Effort::kNormal}, {"high", Effort::kHigh}};
    command->add_option("--effort", arguments.effort, "how much work a search may do: low, normal or high")
        ->transform(CLI::CheckedTransformer(efforts).description(""));
    command->add_option("--threads", arguments.threads, "threads to use, 0 for all; never changes the result")
        ->check(CLI::Range(0, 1024).description(""));
  };
  const auto takes_planner_options = [&](CLI::App* command) {
    command->add_option("--slots", arguments.options.slots, "chain: memory steps to plan in (500)")
        ->check(CLI::PositiveNumber.description(""));
    command->add_option("--segments", arguments.options.segments, "even: segments; binomial: checkpoints");
    command->add_flag("--reentrant", arguments.options.reentrant, "run checkpoints as PyTorch's reentrant ones");
    command->add_flag("--exact", arguments.options.exact, "lower-sets: all lower sets");
  };

  CLI::App* plan = call("plan", "plan a graph or chain", run_plan);
  takes_file(plan);
  plan->add_option("--planner", arguments.planner, "one of `headroom planners` (auto)");
  plan->add_option("--budget", arguments.budget, "largest peak: bytes, 512MB, 8GiB, or 0.5x of store-all's");
  takes_planner_options(plan);
  takes_limits(plan);
  prints_json(plan);
  plan->add_option("--out", arguments.out, "write the schedule here");

  CLI::App* simulate = call("simulate", "peak, time and memory at every step of a schedule", run_simulate);
  takes_file(simulate);
  takes_schedule(simulate);
  prints_json(simulate);
  simulate->add_option("--trace", arguments.trace, "write a Chrome/Perfetto trace here");

  CLI::App* compare = call("compare", "every planner that applies, side by side", run_compare);
  takes_file(compare);
  arguments.budgets = {"1x", "0.75x", "0.5x", "0.35x", "0.25x"};
  compare->add_option("--budgets", arguments.budgets, "budgets, comma between (1x,0.75x,0.5x,0.35x,0.25x)")
      ->delimiter(',');
  takes_planner_options(compare);
  takes_limits(compare);
  prints_json(compare);

  CLI::App* curve = call("curve", "the front of peak against time", run_curve);
  takes_file(curve);
  curve->add_option("--planner", arguments.planner, "one of `headroom planners` (auto)");
  curve->add_option("--points", arguments.points, "budgets to plan for (20)")
      ->check(CLI::Range(2, 10000).description(""));
  takes_planner_options(curve);
  takes_limits(curve);
  prints_json(curve);

  prints_json(call("planners", "the planners: what each takes and minimises, and its paper", run_planners));

  CLI::App* explain = call("explain", "a schedule in sentences", run_explain);
  takes_file(explain);
  takes_schedule(explain);
}

/// One line whatever the message is.
int complain(const std::string& message, ExitStatus status) {
  std::string line = message.substr(0, message.find_last_not_of('\n') + 1);
  std::ranges::replace(line, '\n', ' ');
  std::cerr << "headroom: " << line << "\n";
  return status;
}

int run_command(int argc, const char* const* argv) {
  CLI::App app("Plans training steps inside a memory budget.", "headroom");
  Arguments arguments;
  Run run = nullptr;
  define(app, arguments, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return complain(error.what() + std::string("; `headroom --help` lists the calls"), kBadInput);
  }
  const ExitStatus status = run(arguments);
  if (!std::cout.flush()) return complain("standard output: cannot be written", kBadInput);
  return status;
}

}  // namespace
}  // namespace headroom::cli

int main(int argc, char** argv) {
  using namespace headroom;
  try {
    return cli::run_command(argc, argv);
  } catch (const InvalidInput& error) {
    return cli::complain(error.what(), cli::kBadInput);
  } catch (const std::bad_alloc&) {
    return cli::complain("not enough memory for this input", cli::kBadInput);
  } catch (const std::exception& error) {
    return cli::complain(error.what(), cli::kBug);
  }
}
