#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

struct MemoryBound {
  int64_t time_ns = 0;      ///< no valid schedule within the budget is faster
  bool is_feasible = true;  ///< false: proved that no valid schedule fits the budget
  /// The moment that the bound is from, as an op and its alternatives, and what is kept then besides its own in the
  /// fastest way found to fit it. Empty where all fits everywhere.
  std::vector<OpId> moment;
  std::vector<ValueId> kept;
};

/// A lower bound on the time of every valid schedule within a budget, whatever its order: time_lower_bound_ns() and
/// what must be computed again around one moment.
///
/// Take an op t at its first run. What it depends on has run before; what depends on it is still to come, and so are
/// the step's outputs. A value made before and needed after is in memory during t, or made again after it, from what is
/// in memory then or made again too. Beside t's own inputs, outputs and workspace only so many bytes are left, so that
///
///     extra time >= min { time of what is made again : bytes of what is kept <= what is left }
///                >= max over price >= 0 of  min { time made again + price * (bytes kept - what is left) }
///
/// The inner minimum, over all ways to keep or make again, is a minimum cut: a needed value costs its bytes to keep or
/// its op's time to make again, which needs the op's inputs. The outer maximum is found by cutting lines, since it is
/// concave in the price. All of it is in whole numbers, weights for time and bytes in place of the price, so that the
/// bound is exact, and every flow is checked against its cut (MaxFlow::find_error()). Ops that share outputs count as one that makes all of them, as fast as the fastest, and needs
/// what all of them read. Where even the least that can be kept does not fit, nothing does.
///
/// Moments are looked at evenly along the base order and where plain training takes most; the `cuts` of them with the
/// most bytes above the budget are tried.
/// O(cuts * (a few maximum flows)). Source: the cut is the one that PyTorch's partitioner makes for one moment and no
/// budget; the rest is Lagrangian relaxation.
MemoryBound memory_bound(const Graph& graph, int64_t budget_bytes, int cuts = 3);

/// The same for many budgets: what does not depend on them is found once. Keeps a reference to the graph.
class MemoryBounds {
 public:
  explicit MemoryBounds(const Graph& graph);
  ~MemoryBounds();
  MemoryBounds(const MemoryBounds&) = delete;
  MemoryBounds& operator=(const MemoryBounds&) = delete;

  MemoryBound within(int64_t budget_bytes, int cuts = 3) const;

 private:
  class Moments;
  std::unique_ptr<const Moments> moments_;
};

}  // namespace headroom
