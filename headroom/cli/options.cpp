#include "headroom/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>

namespace headroom::cli {

PlanLimits limits_of(const PlanArguments& arguments) {
  PlanLimits limits;
  limits.threads = arguments.threads;
  limits.effort = arguments.effort;
  if (arguments.effort == Effort::kLow) limits.max_states /= 10;
  if (arguments.effort == Effort::kHigh) limits.max_states *= 10;
  return limits;
}

void add_planner_options(CLI::App& command, PlanArguments& arguments) {
  command.add_option("--slots", arguments.options.slots, "chain: memory steps to plan in (500)")
      ->check(CLI::PositiveNumber.description(""));
  command.add_option("--segments", arguments.options.segments, "even: segments; binomial: checkpoints");
  command.add_flag("--reentrant", arguments.options.reentrant, "run checkpoints as PyTorch's reentrant ones");
  command.add_flag("--exact", arguments.options.exact, "lower-sets: all lower sets");
}

void add_limits(CLI::App& command, PlanArguments& arguments) {
  const std::map<std::string, Effort> efforts{
      {"low", Effort::kLow}, {"normal", Effort::kNormal}, {"high", Effort::kHigh}};
  command.add_option("--effort", arguments.effort, "how much work a search may do: low, normal or high")
      ->transform(CLI::CheckedTransformer(efforts).description(""));
  command.add_option("--threads", arguments.threads, "threads to plan with, 0 for all; never changes the result")
      ->check(CLI::Range(0, 1024).description(""));
}

int complain(std::string_view program, std::string_view message, ExitStatus status) {
  std::string line(message.substr(0, message.find_last_not_of('\n') + 1));
  std::ranges::replace(line, '\n', ' ');
  std::cerr << program << ": " << line << "\n";
  return status;
}

}  // namespace headroom::cli
