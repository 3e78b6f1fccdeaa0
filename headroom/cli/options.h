#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "headroom/plan/planners.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
class Validator;
}  // namespace CLI

namespace headroom::internal::cli {

/// The options of every command that plans.
struct PlanArguments {
  std::string planner = "auto";
  std::optional<std::string> budget;
  PlannerOptions options;
  bool keep_order = false;  ///< whether first runs keep the base order
  Effort effort = Effort::kNormal;
  int threads = 0;
};

PlanLimits limits_of(const PlanArguments& arguments);

/// Accepts a whole number in [min, max]. A `max` of INT64_MAX means no upper limit.
CLI::Validator whole_number(int64_t min, int64_t max);

/// Adds --slots, --segments, --reentrant, --exact and --keep-order.
void add_planner_options(CLI::App& command, PlanArguments& arguments);

/// Adds --effort and --threads.
void add_limits(CLI::App& command, PlanArguments& arguments);

/// The exit status of the process.
enum ExitStatus : int { kDone = 0, kNoPlan = 1, kBadInput = 2, kBug = 3 };

/// Prints "program: message" to standard error as one line, and returns the status.
int complain(std::string_view program, std::string_view message, ExitStatus status);

/// Says that memory has run out, without allocating any.
int complain_of_memory(const char* program);

}  // namespace headroom::internal::cli
