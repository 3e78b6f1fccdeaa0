#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/removal.h"

namespace headroom::internal {

/// Random changes to a sequence, after which descent finds another plan.
class Perturbation {
 public:
  /// Keeps references to both.
  Perturbation(RunEditor& editor, const PerturbationParameters& parameters)
      : editor_(editor), flat_(editor.flat()), parameters_(parameters), remembered_(editor.flat()) {}

  /// Stores the current sequence as the one that ruin() starts from.
  void remember();

  /// Restores the stored sequence and removes some reruns from it, whatever that does to the peak: neighbouring reruns,
  /// reruns of ops with equal costs, or any reruns. How many and which is random. Returns false where there are no
  /// reruns.
  bool ruin();

  /// Inserts up to `max_count` - 1 runs of random ops that may run again, at random positions after their first runs,
  /// whatever that does to the peak. Sometimes it also replaces an op that may run only once by an alternative, and
  /// postpones the op to where its other outputs are read.
  void insert_any(int max_count);

  /// Returns a random number from the list of how many runs one move may insert.
  size_t random_max_insertions();

 private:
  void find_removals();
  std::vector<Removal> choose(int count);
  void put_off(int32_t position);

  RunEditor& editor_;
  const FlatGraph& flat_;
  const PerturbationParameters& parameters_;
  Timeline remembered_;
  std::vector<Removal> removals_;  ///< All possible removals from remembered_.
  bool has_removals_ = false;
};

}  // namespace headroom::internal
