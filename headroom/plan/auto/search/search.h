#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/descent.h"
#include "headroom/plan/auto/search/editor.h"
#include "headroom/plan/auto/search/judged_runs.h"
#include "headroom/plan/auto/search/perturbation.h"
#include "headroom/plan/auto/search/pruning.h"
#include "headroom/plan/auto/search/reordering.h"

namespace headroom::internal {

/// The changes to one sequence of runs: descent, pruning and perturbation, with the editor that they share.
class RunSearch {
 public:
  /// Keeps a reference to the graph, and copies the parameters.
  explicit RunSearch(const FlatGraph& flat, const SearchParameters& parameters = {})
      : parameters_(parameters),
        editor_(flat),
        reordering_(editor_, parameters_.order),
        descent_(editor_, parameters_.descent, reordering_),
        pruning_(editor_, parameters_.pruning),
        perturbation_(editor_, parameters_.perturbation) {}
  RunSearch(const RunSearch&) = delete;
  RunSearch& operator=(const RunSearch&) = delete;

  void assign(const std::vector<int32_t>& runs) { editor_.assign(runs); }
  const Timeline& timeline() const { return editor_.now(); }
  JudgedRuns judged() const {
    return {.runs = timeline().runs(), .peak_bytes = timeline().peak_bytes(), .time_ns = timeline().time_ns()};
  }
  int64_t work() const { return editor_.work(); }
  void seed(uint64_t seed) { editor_.seed(seed); }
  uint64_t random(uint64_t n) { return editor_.random(n); }

  bool descend(int64_t target_bytes, const DescentOptions& options) { return descent_.run(target_bytes, options); }
  /// Moves runs until the peak is at most the target, as far as that is possible without other changes.
  void reorder(int64_t target_bytes) { reordering_.run(target_bytes); }
  void prune(int64_t target_bytes) { pruning_.run(target_bytes); }

  void remember() { perturbation_.remember(); }
  bool ruin() { return perturbation_.ruin(); }
  void insert_any(int max_count) { perturbation_.insert_any(max_count); }
  size_t random_max_insertions() { return perturbation_.random_max_insertions(); }

 private:
  SearchParameters parameters_;
  RunEditor editor_;
  Reordering reordering_;
  Descent descent_;
  Pruning pruning_;
  Perturbation perturbation_;
};

}  // namespace headroom::internal
