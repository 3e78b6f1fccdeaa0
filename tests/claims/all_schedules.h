#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::testing {

/// Which schedules count. kKeep: ops that share an output, directly or through others, form a group; a group is needed
/// when it writes a step's output, or a value that every op of a needed group reads. A needed group runs for the first
/// time after all needed groups whose ops are all listed before its own. Other ops may run at any time.
enum class Order : uint8_t { kKeep, kAny };

/// The fastest time that a budget of `peak_bytes` allows.
struct BestTime {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
};

/// The Pareto front of peak against time over all schedules, smallest peak first, empty where the graph has none; none
/// where one shortest-path search meets more than `max_states` states. Stands on MemoryRules, which shares no code with
/// core's simulator and the planners, and prunes nothing: a state is the set of copies in memory, who holds them, and which
/// ops may not run any more; any drop, run and run in place leads on. Takes graphs of at most 64 ops and 32 values that are not resident.
std::optional<std::vector<BestTime>> search_all_schedules(const Graph& graph, Order order, size_t max_states);

/// Whether the first runs of a schedule follow the base order, as Order::kKeep says.
bool keeps_base_order(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::testing
