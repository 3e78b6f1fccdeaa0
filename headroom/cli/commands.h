#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headroom/plan/planners.h"

namespace headroom::cli {

/// What the command line says, all calls together.
struct Arguments {
  std::string file;
  std::string schedule_file;
  std::string planner = "auto";
  std::optional<std::string> budget;
  std::vector<std::string> budgets;
  PlannerOptions options;
  Effort effort = Effort::kNormal;
  int threads = 0;
  int points = 20;
  bool json = false;
  std::optional<std::string> out;
  std::optional<std::string> trace;
};

/// What the process returns.
enum ExitStatus : int { kDone = 0, kNoPlan = 1, kBadInput = 2, kBug = 3 };

/// The calls of docs/formats.md: results on standard output. Throw InvalidInput for bad input.
ExitStatus run_plan(const Arguments& arguments);
ExitStatus run_simulate(const Arguments& arguments);
ExitStatus run_compare(const Arguments& arguments);
ExitStatus run_curve(const Arguments& arguments);
ExitStatus run_planners(const Arguments& arguments);
ExitStatus run_explain(const Arguments& arguments);

}  // namespace headroom::cli
