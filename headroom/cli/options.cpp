#include "headroom/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>

#include "headroom/core/quote.h"

namespace headroom::internal::cli {

PlanLimits limits_of(const PlanArguments& arguments) {
  PlanLimits limits;
  limits.keep_order = arguments.keep_order;
  limits.threads = arguments.threads;
  limits.effort = arguments.effort;
  if (arguments.effort == Effort::kLow) limits.max_states /= 10;
  if (arguments.effort == Effort::kHigh) limits.max_states *= 10;
  return limits;
}

CLI::Validator whole_number(int64_t min, int64_t max) {
  const auto check = [min, max](const std::string& text) -> std::string {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && last == end && min <= number && number <= max) return "";
    const std::string range = max == std::numeric_limits<int64_t>::max()
                                  ? "of at least " + std::to_string(min)
                                  : "from " + std::to_string(min) + " to " + std::to_string(max);
    return "expected a whole number " + range + ", found " + quote(text);
  };
  return CLI::Validator(check, "");
}

void add_planner_options(CLI::App& command, PlanArguments& arguments) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  command
      .add_option("--slots", arguments.options.slots, "chain: number of units that the budget is divided into (500)")
      ->check(whole_number(1, kMax));
  command
      .add_option("--segments", arguments.options.segments, "even: number of segments; binomial: number of checkpoints")
      ->check(whole_number(1, std::numeric_limits<int>::max()));
  command.add_flag("--reentrant", arguments.options.reentrant,
                   "subset planners: run checkpoints as PyTorch's reentrant ones");
  command.add_flag("--exact", arguments.options.exact, "lower-sets: search all lower sets");
  command.add_flag("--keep-order", arguments.keep_order,
                   "auto, exhaustive: only schedules that keep the base order of first runs");
}

void add_limits(CLI::App& command, PlanArguments& arguments) {
  const auto set_effort = [&](const std::string& name) {
    const std::map<std::string, Effort> efforts{
        {"low", Effort::kLow}, {"normal", Effort::kNormal}, {"high", Effort::kHigh}};
    const auto effort = efforts.find(name);
    if (effort == efforts.end())
      throw CLI::ValidationError("--effort", "expected low, normal or high, found " + quote(name));
    arguments.effort = effort->second;
  };
  command.add_option_function<std::string>("--effort", set_effort,
                                           "work limit of a search: low, normal or high (normal)");
  command
      .add_option("--threads", arguments.threads, "planning threads, 0 for all; the result does not depend on it (0)")
      ->check(whole_number(0, 1024));
}

int complain(std::string_view program, std::string_view message, ExitStatus status) {
  std::string line(message.substr(0, message.find_last_not_of('\n') + 1));
  std::ranges::replace(line, '\n', ' ');
  std::cerr << program << ": " << line << "\n";
  return status;
}

int complain_of_memory(const char* program) {
  std::fprintf(stderr, "%s: not enough memory for this input\n", program);
  return kBadInput;
}

}  // namespace headroom::internal::cli
