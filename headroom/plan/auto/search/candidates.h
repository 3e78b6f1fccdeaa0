#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/excess.h"

namespace headroom::internal {

struct DescentOptions;

/// A value and a position right before which it could be recomputed, with an upper bound on the gain per time of doing
/// so.
struct Candidate {
  double bound;  ///< Upper bound on the gain per time, times `noise`.
  double noise;
  int32_t value;
  int32_t position;
};

/// The candidates for moves at the current sequence of an editor, the one with the highest bound first.
class Candidates {
 public:
  /// Keeps references to all of these.
  Candidates(RunEditor& editor, const Excess& excess, const DescentParameters& parameters)
      : editor_(editor), flat_(editor.flat()), now_(editor.now()), excess_(excess), parameters_(parameters) {}

  /// Finds all candidates that may reduce the excess: before each read and, as the options say, earlier.
  void find(const DescentOptions& options);

  /// Returns the largest bound of all candidates, without noise.
  double best_bound() const { return best_bound_; }

  bool empty() const { return candidates_.empty(); }
  const Candidate& top() const { return candidates_.front(); }
  void pop();

 private:
  void add(int32_t value, int32_t first, int32_t position, int noise);
  void add_reads(int32_t value, const DescentOptions& options);
  double bound_ratio(int32_t value, int32_t first, int32_t position) const;
  int32_t last_chance(int32_t value, int32_t position) const;

  RunEditor& editor_;
  const FlatGraph& flat_;
  const Timeline& now_;
  const Excess& excess_;
  const DescentParameters& parameters_;
  std::vector<Candidate> candidates_;  ///< A heap.
  double best_bound_ = 0;
};

}  // namespace headroom::internal
