#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom::internal {

/// One copy of a value, which is live in the moments of these steps, both included.
///
///     steps     run f    run g    drop a    run f    drop a
///     a         [----------------------]    [-------------]      two copies
struct Lifetime {
  ValueId value{};
  size_t first_step = 0;
  size_t last_step = 0;
  bool operator==(const Lifetime&) const = default;
};

/// Returns the lifetimes of all resident values and of all copies that a valid schedule makes, in the order in which
/// they begin. The bytes of the values that are live during a run, plus the op's workspace, are the moment that
/// simulate() computes. Takes O(ids read, written and held).
std::vector<Lifetime> lifetimes(const Graph& graph, const Schedule& schedule);

/// Returns for each step whether it is a recomputation: a run that writes a value that was written before. Alternatives
/// count as one op, so recording a stage that has run without recording is a recomputation.
std::vector<uint8_t> find_reruns(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::internal
