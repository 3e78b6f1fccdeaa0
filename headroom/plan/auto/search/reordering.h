#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/excess.h"

namespace headroom::internal {

/// Runs that are moved together to right before a position, with an estimate of the excess that this removes.
struct OrderMove {
  std::vector<int32_t> positions = {};  ///< Ascending.
  int32_t before = 0;
  double gain = 0;
};

/// Moves runs, first runs and others, to where they need less memory. That takes no time. A *sink* moves runs later, up
/// to the first reader of what they write; a *hoist* moves them earlier, down to where what they read is made. Both
/// move a run alone, or together with the runs that only it reads (sink) or that are the first to read it (hoist), so
/// that a branch can move whose single runs would gain nothing.
class Reordering {
 public:
  /// Keeps references to both.
  Reordering(RunEditor& editor, const OrderParameters& parameters)
      : editor_(editor),
        flat_(editor.flat()),
        now_(editor.now()),
        parameters_(parameters),
        is_touched_(static_cast<size_t>(flat_.value_count), 0) {}

  /// Applies moves until the peak is at most the target or no move reduces the excess. Returns whether the sequence has
  /// changed.
  bool run(int64_t target_bytes);

 private:
  void find_moves();
  void add_sink(int32_t position);
  void add_hoist(int32_t position);
  void keep(const OrderMove& move);
  bool grow_back(std::vector<int32_t>& positions) const;
  bool grow_forward(std::vector<int32_t>& positions) const;
  int32_t latest(const std::vector<int32_t>& positions) const;
  int32_t earliest(const std::vector<int32_t>& positions) const;
  double gain_of(const std::vector<int32_t>& positions, int32_t before);
  void change_outputs(const std::vector<int32_t>& positions, int32_t before);
  void change_inputs(const std::vector<int32_t>& positions, int32_t before);
  void change(int32_t first, int32_t end, int64_t bytes);
  double sum_of_changes();
  size_t apply_best(size_t max_moves);

  RunEditor& editor_;
  const FlatGraph& flat_;
  const Timeline& now_;
  const OrderParameters& parameters_;
  Excess excess_;
  std::vector<OrderMove> moves_;
  std::vector<std::pair<int32_t, int32_t>> banned_;   ///< Moves that failed, as (first op, position).
  std::vector<uint8_t> is_touched_;                   ///< By value: whether a chosen move reads or writes it.
  std::vector<int32_t> seen_;                         ///< Values that change_inputs() has seen.
  std::vector<std::pair<int32_t, int64_t>> changes_;  ///< Changes of live bytes from a position on, for gain_of().
};

}  // namespace headroom::internal
