#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "headroom/algorithm/workers.h"
#include "headroom/plan/auto/parameters.h"
#include "headroom/plan/auto/search/search.h"
#include "headroom/plan/plan.h"

namespace headroom::internal {

/// What all steps of the search for one front share: the graph, the parameters, and how much work they allow for a
/// graph of this size.
class SearchContext {
 public:
  /// `run_count` is the number of runs in the base order. Keeps references to the graph and the parameters.
  SearchContext(const FlatGraph& flat, const PlanLimits& limits, const SearchParameters& parameters, int64_t run_count)
      : flat_(flat), limits_(limits), parameters_(parameters), run_count_(run_count) {}

  const FlatGraph& flat() const { return flat_; }
  const SearchParameters& parameters() const { return parameters_; }
  int64_t run_count() const { return run_count_; }
  bool is_high_effort() const { return limits_.effort == Effort::kHigh; }
  bool is_low_effort() const { return limits_.effort == Effort::kLow; }

  bool is_tiny() const { return run_count_ <= parameters_.size.max_tiny_runs; }
  bool is_short() const { return run_count_ <= parameters_.size.max_short_runs; }
  bool is_at_most_medium() const { return run_count_ <= parameters_.size.max_medium_runs; }
  bool is_long() const { return run_count_ > parameters_.size.min_long_runs; }

  /// Returns the number of rounds of polish.
  int rounds() const;
  /// Returns the work of polish for each run.
  int64_t work_per_run() const;
  /// Returns the work for one level in one of `rounds` rounds. All rounds and levels together get the work per run
  /// times the number of runs, about as much as finding the levels takes.
  int64_t work_of_round(int rounds, int64_t level_count) const {
    return work_per_run() * run_count_ / (rounds * std::max<int64_t>(1, level_count));
  }

  /// Calls `task(search, k)` for every k below `count` on several threads. Each call must write to a place of its own.
  template <typename Task>
  void for_each(size_t count, const Task& task) const {
    std::atomic<size_t> next = 0;
    const auto take = [&](int) {
      RunSearch search(flat_, parameters_);
      for (size_t k = next++; k < count; k = next++) task(search, k);
    };
    run_workers(std::min(thread_count(limits_.threads), static_cast<int>(count)), take);
  }

 private:
  const FlatGraph& flat_;
  const PlanLimits& limits_;
  const SearchParameters& parameters_;
  int64_t run_count_;
};

}  // namespace headroom::internal
