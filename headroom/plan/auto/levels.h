#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/plan/auto/context.h"
#include "headroom/plan/auto/search/search.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {

/// Returns a lower bound on the peak of every schedule, in any order. It is the resident bytes plus the largest of two
/// numbers: the bytes that an op which must run needs for its inputs, outputs and workspace (of alternatives, the one
/// with the fewest), and the bytes of the step's outputs, less the memory that the last run may give back.
int64_t peak_lower_bound_bytes(const FlatGraph& flat);

/// Returns the peaks for which the search looks for plans, largest first: parameters.count evenly spaced ones up to
/// `most_bytes`, as far as they are above `least_bytes`.
std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes, const LevelParameters& parameters);

/// A target for the peak, and the plans found for it.
struct Level {
  int64_t target_bytes;
  int64_t bound_ns;  ///< Lower bound on the time of every plan within target_bytes, in nanoseconds.
  /// The best plan first, and in the first rounds a second plan from another start, because the better start is not
  /// always the one that polish improves further.
  std::vector<JudgedRuns> plans;
  /// Whether the last round changed the best plan; only new plans are tried at the neighbouring levels.
  bool is_new = true;
  bool is_faster = false;  ///< Whether the last round made the best plan faster.
  const JudgedRuns& best() const { return plans.front(); }
};

/// The plans from which levels start.
struct StartPlans {
  JudgedRuns store_all;           ///< Store-all, with the fastest producers.
  std::vector<JudgedRuns> plans;  ///< Other plans, which are in the front too.
  /// Whether `plans` are near the best for their peaks: they are then only brought to the levels.
  bool are_polished = false;
};

/// Finds levels and a first plan for each, from the largest target to the smallest that a plan is found for.
class LevelFinder {
 public:
  /// Keeps references to all of these.
  LevelFinder(const SearchContext& context, const MemoryBounds& bounds, const StartPlans& starts)
      : context_(context),
        parameters_(context.parameters()),
        bounds_(bounds),
        starts_(starts),
        search_(context.flat(), context.parameters()),
        runs_per_move_(context.parameters().descent.runs_per_move) {}

  std::vector<Level> find();

 private:
  bool add_level(int64_t target_bytes);
  std::vector<JudgedRuns> find_starts(int64_t target_bytes, const MemoryBound& bound);
  std::optional<JudgedRuns> start_from_plans(int64_t target_bytes, const MemoryBound& bound);
  std::optional<JudgedRuns> start_from_store_all(int64_t target_bytes, bool has_plan);
  void start_from_above(int64_t target_bytes, std::optional<JudgedRuns>& best);
  void start_at_random(int64_t target_bytes, std::optional<JudgedRuns>& best);
  void descend_from(const std::vector<int32_t>& runs, int64_t target_bytes, DescentOptions options,
                    std::optional<JudgedRuns>& best);
  bool is_close(const JudgedRuns& plan, int64_t bound_ns) const;
  int64_t max_start_ns() const;

  const SearchContext& context_;
  const SearchParameters& parameters_;
  const MemoryBounds& bounds_;
  const StartPlans& starts_;
  RunSearch search_;
  std::vector<Level> levels_;
  bool store_all_fails_ = false;  ///< Whether a descent from store-all with few insertions at a time has failed.
  int32_t runs_per_move_;
};

}  // namespace headroom::internal
