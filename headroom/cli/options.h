#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "headroom/plan/planners.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
class Validator;
}  // namespace CLI

namespace headroom::cli {

/// What every command that plans takes.
struct PlanArguments {
  std::string planner = "auto";
  std::optional<std::string> budget;
  PlannerOptions options;
  bool keep_order = true;  ///< the only order that there is as yet
  Effort effort = Effort::kNormal;
  int threads = 0;
};

PlanLimits limits_of(const PlanArguments& arguments);

/// Accepts a whole number in a range, both ends included; the largest number: no upper end.
CLI::Validator whole_number(int64_t least, int64_t most);

/// --slots, --segments, --reentrant, --exact, --keep-order.
void add_planner_options(CLI::App& command, PlanArguments& arguments);

/// --effort, --threads.
void add_limits(CLI::App& command, PlanArguments& arguments);

/// What the process returns.
enum ExitStatus : int { kDone = 0, kNoPlan = 1, kBadInput = 2, kBug = 3 };

/// "program: message" on standard error, one line whatever the message is.
int complain(std::string_view program, std::string_view message, ExitStatus status);

/// The same where memory has run out: takes none itself.
int complain_of_memory(const char* program);

}  // namespace headroom::cli
