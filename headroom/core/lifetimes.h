#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// A block of memory of a step: a copy of a value, with the copies that take it over in place, or the workspace of a run.
/// It is live during these steps, both included.
///
///     steps     run f    run g over a    drop b
///     a         [-----------------]                  one block, written by f and taken over by g
///     work               [--------]                  the workspace of g
struct Buffer {
  std::optional<ValueId> value;  ///< The value that the first step writes; none for a workspace.
  int64_t bytes = 0;             ///< More than 0.
  size_t first_step = 0;         ///< The run that writes the value or needs the workspace.
  size_t last_step = 0;          ///< The last step before the drop, or the run, after which the block is free.
  bool operator==(const Buffer&) const = default;
};

/// Returns the blocks that a valid schedule needs besides the resident values, in the order in which they begin: of a run,
/// its outputs in order and then its workspace. Values of 0 bytes and workspaces of at most 0 bytes have none. The bytes
/// of the blocks that are live during a run are the moment that simulate() computes, less the resident bytes and without
/// workspaces below 0. Takes O(ids read, written and held).
std::vector<Buffer> find_buffers(const Graph& graph, const Schedule& schedule);

/// Returns for each step whether it is a recomputation: a run that writes a value that was written before. Alternatives
/// count as one op, so recording a stage that has run without recording is a recomputation.
std::vector<uint8_t> find_reruns(const Graph& graph, const Schedule& schedule);

}  // namespace headroom::internal
