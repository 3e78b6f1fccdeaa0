#include "headroom/plan/auto/exact.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "headroom/plan/auto/levels.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/exact/exhaustive.h"

namespace headroom::internal {

void make_exact(const FlatGraph& flat, bool keep_order, int64_t max_peak_states, int64_t max_time_states,
                AutoFront& front) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  ExhaustiveSearch exhaustive(flat.graph, keep_order);
  const auto add = [&](const Schedule& schedule) {
    front.plans.push_back(judge(flat, runs_of(schedule)));
    const int64_t peak_bytes = front.plans.back().peak_bytes;
    front.plans = undominated(std::move(front.plans));
    return peak_bytes;
  };
  front.limit_reached = false;
  int64_t least_bytes = peak_lower_bound_bytes(flat);
  if (front.smallest_bytes() > least_bytes &&
      memory_bound(flat.graph, front.smallest_bytes() - 1, {.keep_order = keep_order}).is_feasible) {
    const std::optional<Schedule> smaller = exhaustive.find_smaller(front.smallest_bytes(), max_peak_states);
    if (smaller) add(*smaller);
    front.limit_reached = exhaustive.limit_reached();
  }
  if (!front.limit_reached) least_bytes = front.smallest_bytes();
  front.proved.push_back({.least_bytes = std::numeric_limits<int64_t>::min(), .most_bytes = least_bytes - 1});
  int64_t states_left = max_time_states;
  for (int64_t budget_bytes = kNoLimit; budget_bytes >= least_bytes;) {
    const auto known = find_within(front.plans, budget_bytes);
    const bool is_known = known != front.plans.end();
    const int64_t known_bytes = is_known ? known->peak_bytes : least_bytes;
    const std::optional<Schedule> faster =
        exhaustive.find_faster(budget_bytes, is_known ? known->time_ns : kNoLimit, states_left - states_left / 2);
    states_left -= exhaustive.state_count();
    if (exhaustive.limit_reached()) {
      front.limit_reached = true;
      if (!is_known || states_left <= 0) break;
      budget_bytes = std::min(known_bytes, budget_bytes - 1);
      continue;
    }
    const int64_t reached_bytes = faster ? add(*faster) : known_bytes;
    HEADROOM_ASSERT(reached_bytes <= budget_bytes);
    front.proved.push_back({.least_bytes = reached_bytes, .most_bytes = budget_bytes});
    budget_bytes = reached_bytes - 1;
  }
}

}  // namespace headroom::internal
