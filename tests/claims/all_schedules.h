#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::internal::testing {

/// The schedules that are searched: all, or those that keep the base order of first runs. In kKeep, ops that share an
/// output, directly or through others, form a group. A group is needed if it writes an output of the step, or a value that
/// every op of a needed group reads. A needed group first runs after all needed groups whose ops are all listed before its
/// own. Other ops may run at any time.
enum class Order : uint8_t { kKeep, kAny };

/// The minimum time within a budget of `peak_bytes`.
struct BestTime {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
};

/// Returns the Pareto front of peak against time over all schedules, by ascending peak. It is empty if the graph has no
/// schedule. Returns nothing if a shortest-path search visits more than `max_states` states. Uses MemoryRules, which
/// shares no code with core's simulator and the planners, and prunes nothing: a state is the set of copies in memory, their
/// holders, and the ops that may not run again; every drop, run and run in place is a transition. Takes graphs of at most
/// 64 ops and 32 values that are not resident.
std::optional<std::vector<BestTime>> search_all_schedules(const Graph& graph, Order order, size_t max_states);

/// Returns whether the first runs of a schedule follow the base order, as Order::kKeep defines it.
bool keeps_base_order(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::internal::testing
