#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "headroom/algorithm/range_max.h"
#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/removal.h"

namespace headroom::internal {

/// Makes an editor's current sequence faster within a target.
class Pruning {
 public:
  /// Keeps references to both.
  Pruning(RunEditor& editor, const PruningParameters& parameters)
      : editor_(editor),
        flat_(editor.flat()),
        now_(editor.now()),
        parameters_(parameters),
        is_removed_(static_cast<size_t>(flat_.value_count), 0) {}

  /// Removes runs that are not needed within `target_bytes`, the slowest first, until none is left. The peak must be
  /// within the target.
  void run(int64_t target_bytes);

 private:
  /// Reruns as (negative time, position), the slowest first.
  using Order = std::vector<std::pair<int64_t, int32_t>>;

  void drop_early_runs();
  Order reruns() const;
  bool remove_once(int64_t target_bytes, int64_t end);
  std::vector<Removal> choose(const Order& order, size_t& next, size_t max_removals, int64_t target_bytes);
  bool fits_with_chosen(const Removal& removal, int64_t target_bytes) const;

  RunEditor& editor_;
  const FlatGraph& flat_;
  const Timeline& now_;
  const PruningParameters& parameters_;
  RangeMax with_removals_;           ///< By position: the moment in bytes if the chosen runs are removed.
  std::vector<uint8_t> is_removed_;  ///< By value: whether one of the chosen runs writes it.
};

}  // namespace headroom::internal
