#include "headroom/plan/auto/context.h"

namespace headroom::internal {

int SearchContext::rounds() const {
  const PolishParameters& polish = parameters_.polish;
  if (is_short() || is_long()) return polish.rounds;
  return is_at_most_medium() ? polish.medium_rounds : polish.rounds_above_medium;
}

int64_t SearchContext::work_per_run() const {
  const PolishParameters& polish = parameters_.polish;
  if (is_high_effort()) return polish.high_work_per_run;
  if (is_long()) return polish.long_work_per_run;
  return std::clamp<int64_t>(polish.work / std::max<int64_t>(run_count_, 1), polish.min_work_per_run,
                             polish.max_work_per_run);
}

}  // namespace headroom::internal
