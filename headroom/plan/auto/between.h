#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headroom/plan/auto/search.h"

namespace headroom {

/// Plans of which none beats another: smallest peak first, faster and faster.
using Front = std::vector<JudgedRuns>;

/// Those of some plans that no other beats.
Front undominated(std::vector<JudgedRuns> plans);

/// The plan of a front for a budget; none where its first takes more.
///
/// Between two neighbours of the front there are more plans: one for the budget in the middle, made from both, then one
/// in the middle of each half, and so on. Only those on the way to `budget_bytes`, and to the `targets` between the same
/// neighbours, are made, and the fastest of these within the budget is returned: it is no slower than the plan for any
/// smaller target. One that is faster than the next above is not taken, so that more memory is never slower.
std::optional<JudgedRuns> plan_within(const FlatGraph& flat, const Front& front, int64_t budget_bytes,
                                      std::span<const int64_t> targets = {});

}  // namespace headroom
