#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/judged_runs.h"

namespace headroom::internal {

/// A range of budgets, both ends included.
struct BudgetRange {
  int64_t least_bytes;
  int64_t most_bytes;
};

/// The plans of `auto` for all budgets of one problem.
struct AutoFront {
  Front plans = {};
  /// The plans of low effort.
  Front low = {};
  /// Fronts of lower efforts and earlier steps. Plans between two plans of one of them are used too.
  std::vector<Front> lower = {};
  /// The targets of level_targets(), for which plans between neighbours are made as well.
  std::vector<int64_t> targets = {};
  /// Budgets for which `exhaustive` has proved the plan of `plans` optimal, or that there is no plan.
  std::vector<BudgetRange> proved = {};
  bool limit_reached = false;  ///< Whether `exhaustive` was used and could not prove all budgets.

  bool is_proved(int64_t budget_bytes) const;
  int64_t smallest_bytes() const;
};

/// Returns the plan of plan_auto(): that of plan_within(), or the front's own plan where it is proved optimal. Returns
/// none where no plan fits.
std::optional<JudgedRuns> pick_within(const FlatGraph& flat, const AutoFront& front, int64_t budget_bytes,
                                      const SearchParameters& parameters = {});

}  // namespace headroom::internal
