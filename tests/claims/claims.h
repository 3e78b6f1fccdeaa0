#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/claims/inputs.h"

namespace headroom::internal::testing {

/// A claim that does not hold. `kind` is the planner and the claim, equal for the same fault in other inputs.
struct Break {
  std::string kind;
  std::string detail;
};

struct ClaimReport {
  int64_t claims = 0;  ///< number of checked claims
  bool is_searched =
      true;  ///< false if the input is too large for search_all_schedules(), whose claims are then not checked
  std::vector<Break> breaks;
};

struct ClaimOptions {
  size_t max_states = 20'000;  ///< limit of search_all_schedules()
  size_t max_budgets = 6;      ///< maximum number of budgets at which the best time changes
  std::function<void(const std::string&)> on_planner = [](const std::string&) {};  ///< called before each planner
};

/// Plans an input with every planner at budgets around which the best time changes, and checks all claims of the results:
///
/// - `valid`, `peak`, `time`, `within-budget`, `keep-order`: of each schedule, by replay();
/// - `impossible`: no schedule is faster than the fastest of all schedules (a fault of the search, not of a planner);
/// - `optimal`, `infeasible` of `auto` and `exhaustive`, and `bound`: lower_bound_ns of every planner, among all schedules
///   for `auto` and `exhaustive` without keep_order, else among those that keep the order; `base-bound`: that of the
///   problem, among all;
/// - `smallest-budget`: there is a plan at that budget and above, none below, and it is not below the smallest peak;
/// - `least-peak`: `exhaustive` without a budget;
/// - `monotone`: a larger budget is not slower;
/// - `curve`: a point is possible, and what the planner reaches at that budget;
/// - `auto-beaten`: no planner is faster than `auto` with the same limit of states, or finds a plan where `auto` does not.
///   One exception: if `auto` returns `timeout`, a proved optimum of `exhaustive` may be faster, because a search for one
///   budget can finish when the search for all budgets does not;
/// - `effort`: a higher effort is not worse than a lower one;
/// - `order`: `auto` is not worse than with keep_order;
/// - `error`: nothing but NotApplicable is thrown.
ClaimReport check_claims(const Input& input, const ClaimOptions& options);

}  // namespace headroom::internal::testing
