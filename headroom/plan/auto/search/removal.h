#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "headroom/plan/auto/search/editor.h"

namespace headroom::internal {

/// The removal of a run whose outputs can be kept from an earlier copy instead.
struct Removal {
  int32_t position;
  int32_t replaced;  ///< Position of an earlier run that is replaced by one of `op`; -1 if there is none.
  int32_t op;
  int32_t first;  ///< First position from which `bytes` more are live, up to before `position`.
  int64_t bytes;  ///< Bytes that are kept instead of being rewritten by the run.
};

/// Returns how to remove a run, or none where that is seen to exceed the target without trying it. Where an earlier run
/// of an alternative wrote only some of the outputs, that run is replaced by one of this op.
std::optional<Removal> find_removal(const FlatGraph& flat, const Timeline& timeline, int32_t position,
                                    int64_t target_bytes);

/// Evaluates in the editor's trial the sequence without some runs, sorted in any way. Where an earlier run is replaced,
/// there must be only one removal.
void try_without(RunEditor& editor, std::span<const Removal> removals);

}  // namespace headroom::internal
