#pragma once

#include <cstdint>

#include "headroom/plan/auto/auto_front.h"

namespace headroom::internal {

/// Makes plans of a front optimal by a search over all schedules, or all that keep the base order of first runs: first for the smallest peak, then for the time at one
/// budget after the other, from the largest down. Both have a limit of states. The search for one budget may take half
/// of the states that are left, so that smaller budgets, which have fewer schedules, are searched too. The graph must
/// be one that `exhaustive` takes.
void make_exact(const FlatGraph& flat, bool keep_order, int64_t max_peak_states, int64_t max_time_states,
                AutoFront& front);

}  // namespace headroom::internal
