#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/candidates.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/excess.h"
#include "headroom/plan/auto/search/moves.h"
#include "headroom/plan/auto/search/reordering.h"

namespace headroom::internal {

struct DescentOptions {
  size_t max_insertions = 6;  ///< Maximum number of runs that one move may insert.
  int noise = 0;              ///< Random change of each candidate's gain per time, in percent of it either way.
  /// Whether a value may also be rematerialized just before one of its inputs dies, and not only right before it is
  /// read.
  bool early = false;
  /// Whether, with `early`, a value may also be rematerialized at a random position between two uses.
  bool anywhere = false;
  /// Time of the plan in nanoseconds above which descent gives up.
  int64_t max_ns = std::numeric_limits<int64_t>::max();
  int64_t max_work_per_run = 0;  ///< Maximum work; 0 for DescentParameters::max_work_per_run.
  int32_t runs_per_move = 0;     ///< 0 for DescentParameters::runs_per_move.
};

/// Chooses moves that can be applied at the same time.
class MoveCombiner {
 public:
  explicit MoveCombiner(const FlatGraph& flat)
      : is_evicted_(static_cast<size_t>(flat.value_count), 0), is_relied_(static_cast<size_t>(flat.value_count), 0) {}

  /// Applies the best moves to the editor's edited runs, at most `max_moves`, as long as none evicts what another relies
  /// on and their total gain stays within `max_gain`. Sorts the best moves to the front; there must be one.
  const std::vector<int32_t>& combine(RunEditor& editor, std::span<Move> moves, size_t max_moves, double max_gain);

 private:
  std::vector<uint8_t> is_evicted_;  ///< By value: whether a chosen move evicts it.
  std::vector<uint8_t> is_relied_;   ///< By value: whether a chosen move relies on it.
};

/// Brings the peak of an editor's current sequence below a target.
///
/// Recomputes values right before they are read, instead of keeping them, until the peak is at most the target. Each
/// step takes the move that removes the most excess (bytes above the target, summed over the moments) for its time.
class Descent {
 public:
  /// Keeps references to all of these.
  Descent(RunEditor& editor, const DescentParameters& parameters, Reordering& reordering)
      : editor_(editor),
        parameters_(parameters),
        reordering_(reordering),
        candidates_(editor, excess_, parameters),
        evaluator_(editor, excess_, parameters),
        combiner_(editor.flat()) {}

  /// Returns false where no move helps, leaving the sequence with the smallest excess seen, or where the time passes
  /// options.max_ns.
  bool run(int64_t target_bytes, const DescentOptions& options);

 private:
  size_t max_moves(const DescentOptions& options) const;
  int64_t max_work(const DescentOptions& options) const;
  bool find_moves(size_t max_moves);
  bool find_move(const Candidate& candidate, double min_ratio, Move& move);

  RunEditor& editor_;
  const DescentParameters& parameters_;
  Reordering& reordering_;
  Excess excess_;
  Candidates candidates_;
  MoveEvaluator evaluator_;
  MoveCombiner combiner_;
  std::vector<Move> moves_;  ///< The moves at the current sequence, of which the first move_count_ are in use.
  size_t move_count_ = 0;
  Move extending_;  ///< The move that keeps inputs longer, compared with the one that recomputes them.
  /// Moves, as (value, position), that did not reduce the excess of the current sequence.
  std::vector<std::pair<int32_t, int32_t>> banned_;
};

}  // namespace headroom::internal
