#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// One copy of a value: it is in memory in the moments of these steps, both included.
///
///     steps     run f    run g    drop a    run f    drop a
///     a         [----------------------]    [-------------]      two copies
///
struct Lifetime {
  ValueId value{};
  size_t first_step = 0;
  size_t last_step = 0;
  bool operator==(const Lifetime&) const = default;
};

/// Every copy that a valid schedule makes, and every resident value, in the order in which they begin: at each run the
/// bytes of those in memory, and the op's workspace, are the moment that simulate() finds. O(ids read, written and held).
std::vector<Lifetime> lifetimes(const Graph& graph, const Schedule& schedule);

/// By step, whether it runs an op that makes a value that had been made before: recomputation. Ops that are
/// alternatives count as one, so a stage that ran plainly and is then recorded runs again.
std::vector<uint8_t> find_reruns(const Graph& graph, const Schedule& schedule);

}  // namespace headroom
