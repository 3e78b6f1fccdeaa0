#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/cli/options.h"

namespace headroom::internal::cli {

/// The options and positional arguments of all calls.
struct Arguments : PlanArguments {
  std::string file;
  std::string schedule_file;
  std::vector<std::string> budgets;
  int points = 20;
  bool json = false;
  bool chart = true;
  bool placed = false;  ///< whether the budget is for resident values and the arena together
  int64_t alignment = 1;
  std::optional<std::string> out;
  std::optional<std::string> out_placement;
  std::optional<std::string> trace;
  std::optional<std::string> measured;
  std::optional<std::string> named_planner;  ///< planner of the given schedule
};

/// Reads the graph or chain of the file. Throws InvalidInput.
Problem load_problem(const Arguments& arguments);

/// The calls of docs/formats.md. Each prints its result to standard output and throws InvalidInput for bad input.
ExitStatus run_plan(const Arguments& arguments);
ExitStatus run_simulate(const Arguments& arguments);
ExitStatus run_place(const Arguments& arguments);
ExitStatus run_compare(const Arguments& arguments);
ExitStatus run_curve(const Arguments& arguments);
ExitStatus run_planners(const Arguments& arguments);
ExitStatus run_explain(const Arguments& arguments);
ExitStatus run_report(const Arguments& arguments);

}  // namespace headroom::internal::cli
