#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/excess.h"

namespace headroom::internal {

/// A change that recomputes a value right before a position instead of keeping it until then.
struct Move {
  double gain = 0;   ///< Excess that the move removes.
  double ratio = 0;  ///< Gain per time.
  std::vector<Insertion> insertions = {};
  std::vector<int32_t> erasures = {};  ///< Positions of runs that the insertions make unnecessary.
  std::vector<int32_t> extended = {};  ///< Values that are kept longer because inserted runs read them.
  std::vector<int32_t> relied = {};    ///< Values that must be live where the inserted runs read them.
  int32_t value = -1;
};

/// What decides whether a move is worth computing in full.
struct MoveOptions {
  /// Whether an input of a rerun may be kept longer where that adds excess, if less than the move removes so far.
  bool may_extend = false;
  double min_ratio = 0;  ///< Gain per time below which the move is not wanted.
};

/// Computes moves at the current sequence of an editor. An input of a rerun is kept longer where that adds no excess;
/// else its own next rerun is moved earlier, or it is recomputed too.
class MoveEvaluator {
 public:
  /// Keeps references to all of these.
  MoveEvaluator(RunEditor& editor, const Excess& excess, const DescentParameters& parameters)
      : editor_(editor), flat_(editor.flat()), now_(editor.now()), excess_(excess), parameters_(parameters) {}

  /// Limits the number of runs that one move inserts.
  void set_max_insertions(size_t count) { max_insertions_ = count; }

  /// Finds the move with the best gain per time that recomputes `value` right before `position`, over all ops that can
  /// write it. Returns whether there is one with a gain. Sets `has_choice` where an input could be kept longer at the
  /// cost of some excess.
  bool evaluate(int32_t value, int32_t position, const MoveOptions& options, Move& move, bool& has_choice);

 private:
  /// Sums over the runs that a move inserts.
  struct Sums {
    double gain = 0;             ///< Excess removed, without what the inserted runs add.
    double time = 0;             ///< Time of the inserted runs, less that of the erased ones.
    double harm = 0;             ///< Excess added by keeping inputs longer.
    int64_t extended_bytes = 0;  ///< Bytes of the inputs that are kept longer.
  };

  bool evaluate_with(int32_t maker, int32_t value, int32_t position, const MoveOptions& options, Move& move,
                     bool& has_choice);
  void provide(int32_t input, int32_t op, int32_t position, bool may_extend, Move& move, Sums& sums, bool& has_choice);
  int32_t last_needed(int32_t value, const Timeline::Copy& copy, int32_t before, int32_t op) const;
  int32_t maker_for(int32_t value, int32_t position, int32_t reader) const;
  double excess_of_insertions(const Move& move, double memory) const;

  RunEditor& editor_;
  const FlatGraph& flat_;
  const Timeline& now_;
  const Excess& excess_;
  const DescentParameters& parameters_;
  size_t max_insertions_ = 0;
  Move alternative_;           ///< The move that is compared with the best one so far.
  std::vector<int32_t> open_;  ///< Ops that the move must run and whose inputs are still to be looked at.
};

}  // namespace headroom::internal
