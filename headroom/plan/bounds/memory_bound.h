#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom::internal {

/// For which schedules memory_bound() holds, and how many moments and prices it looks at. More make the bound tighter,
/// but take longer.
struct MemoryBoundParameters {
  /// Whether the bound holds only for schedules that keep the base order of first runs. It is then at least the one for
  /// all schedules.
  bool keep_order = false;
  /// Number of moments that are taken where store-all's memory is largest, and most bytes are above the budget.
  int largest_moments = 24;
  /// Maximum number of these moments, those with the most bytes above the budget first, that are tried for one budget.
  int max_cuts = 3;
  /// Maximum number of prices to try for one moment. The search usually ends earlier, when no better price is left.
  int max_prices = 12;
};

struct MemoryBound {
  int64_t time_ns = 0;      ///< Lower bound on the time of every schedule within the budget, in nanoseconds.
  bool is_feasible = true;  ///< False if it is proved that no valid schedule fits the budget.
  /// The moment that gives the bound, as an op and its alternatives, and the fastest way found to fit it into the
  /// budget: the values kept at that moment, besides the op's own, and the ops that first run after it although nothing
  /// but memory asks for that. All are empty where every moment fits as store-all has it.
  std::vector<OpId> moment;
  std::vector<ValueId> kept;
  std::vector<OpId> postponed;
};

/// Returns a lower bound on the time of every valid schedule within a budget: time_lower_bound_ns() plus the
/// recomputation that one moment requires.
///
/// Take an op t at its first run. The ops that it depends on have run before; the ops that depend on it, and the end of
/// the step, are still to come. An op that is neither may run on either side of t, in the better way for the bound. If
/// the base order is kept, the ops listed before t have run, and those listed after it are still to come (as far as
/// every schedule must run them). A value produced before t and needed after it is either live during t, or recomputed
/// after it from values that are live during t or recomputed too. Beside t's own inputs, outputs and workspace, only
/// `room` bytes of the budget are left, so that
///
///     extra time >= min { time of recomputation : bytes kept <= room }
///                >= max over price >= 0 of  min { time of recomputation + price * (bytes kept - room) }
///
/// The inner minimum, over all ways to keep or recompute values, is a minimum cut: a needed value costs its bytes to
/// keep or its op's time to recompute, and recomputing it needs the op's inputs. An op that may run on either side is
/// postponed at no cost, but then all that depends on it is postponed too and their inputs are needed. The outer maximum is
/// found by
/// intersecting lines, since the function is concave in the price. All numbers are integers (weights for time and bytes
/// in place of the price), so the bound is exact, and every flow is verified against its cut (MaxFlow::find_error()).
/// Ops that share outputs count as one op that writes all of them, is as fast as the fastest, and needs what all of
/// them read. Where even the cut with the fewest bytes does not fit, no schedule does.
///
/// The moments are taken where store-all's memory is largest. Those with the most bytes
/// above the budget are tried. Takes O(parameters.max_cuts * (a few maximum flows)) time.
///
/// Source: PyTorch's partitioner makes the same cut for one moment and no budget; the rest is Lagrangian relaxation.
MemoryBound memory_bound(const Graph& graph, int64_t budget_bytes, const MemoryBoundParameters& parameters = {});

/// Computes memory_bound() for many budgets of one graph; what does not depend on the budget is computed once. Keeps a
/// reference to the graph.
class MemoryBounds {
 public:
  explicit MemoryBounds(const Graph& graph, const MemoryBoundParameters& parameters = {});
  ~MemoryBounds();
  MemoryBounds(const MemoryBounds&) = delete;
  MemoryBounds& operator=(const MemoryBounds&) = delete;

  MemoryBound within(int64_t budget_bytes) const;
  /// Looks at up to `max_cuts` moments instead of parameters.max_cuts.
  MemoryBound within(int64_t budget_bytes, int max_cuts) const;

 private:
  class Moments;
  std::unique_ptr<const Moments> moments_;
  int max_cuts_;
};

}  // namespace headroom::internal
