#include "headroom/plan/chain/peak_linear.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace headroom::internal {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

/// The bytes that each stage adds to the moments of a segment (i, j]. All arrays are indexed by stage, 0..n.
///
/// Besides the checkpoints up to a_i and resident values, with T(k) = the tapes of stages 1..k, the moments are
///     backward of k     T(k) - T(i) + backward[k]
///     recording k       T(k) - T(i) + recording workspace of k + incoming[j]
///     forward of k      (a_{k-1} unless k-1 = i) + a_k + forward workspace of k            (not in the last segment)
/// and reentrant checkpoints add a_j + g_j to the backward of every k < j < n.
struct Moments {
  explicit Moments(const Chain& chain) : n(chain.length()) {
    const auto size = static_cast<size_t>(n) + 1;
    for (auto* array : {&kept, &tapes, &backward, &incoming, &recording, &first_forward, &later_forward})
      array->assign(size, 0);
    int64_t later_gradients = 0;  // Bytes of the parameter gradients of the stages after k.
    for (int k = n; k >= 1; --k) {
      const Stage& stage = chain.stage(k);
      const auto at = static_cast<size_t>(k);
      incoming[at] = (k == n ? 0 : chain.gradient_bytes(k)) + later_gradients;  // The last gradient, g{n}, is resident.
      backward[at] = incoming[at] + chain.gradient_bytes(k - 1) + stage.gradient_bytes + stage.backward_workspace_bytes;
      later_gradients += stage.gradient_bytes;
    }
    for (int k = 1; k <= n; ++k) {
      const Stage& stage = chain.stage(k);
      const auto at = static_cast<size_t>(k);
      kept[at] = stage.output_bytes;
      tapes[at] = tapes[at - 1] + stage.tape_bytes;
      recording[at] = tapes[at] + stage.effective_record_workspace_bytes();
      first_forward[at] = stage.output_bytes + stage.forward_workspace_bytes;
      later_forward[at] = first_forward[at] + (k == 1 ? 0 : chain.output_bytes(k - 1));
    }
  }

  int n;
  std::vector<int64_t> kept;       ///< The bytes of a_k.
  std::vector<int64_t> tapes;      ///< T(k)
  std::vector<int64_t> backward;   ///< Bytes of the backward moment beside tapes.
  std::vector<int64_t> incoming;   ///< Bytes of the gradients that are live while a segment that ends in k is recorded.
  std::vector<int64_t> recording;  ///< T(k) + recording workspace
  std::vector<int64_t> first_forward;  ///< Bytes of the forward moment of a segment's first stage.
  /// Bytes of the forward moment of a later stage.
  std::vector<int64_t> later_forward;
};

/// Calls `visit(j, need(i, j))` with the exact need of every segment that starts at i, j ascending. Takes O(1) for
/// each.
template <typename Visit>
void for_each_need(const Moments& moments, int i, bool reentrant, Visit visit) {
  int64_t backward = kLeast;  // The largest T(k) + backward[k] so far.
  int64_t recording = kLeast;
  int64_t forward = kLeast;
  const int64_t before = moments.tapes[static_cast<size_t>(i)];
  for (int j = i + 1; j <= moments.n; ++j) {
    const auto at = static_cast<size_t>(j);
    const bool holds_end = reentrant && j < moments.n && backward != kLeast;
    // The gradient g_j is as large as a_j.
    int64_t need = holds_end ? backward - before + 2 * moments.kept[at] : kLeast;
    backward = std::max(backward, moments.tapes[at] + moments.backward[at]);
    recording = std::max(recording, moments.recording[at]);
    forward = std::max(forward, j == i + 1 ? moments.first_forward[at] : moments.later_forward[at]);
    if (holds_end) {
      need = std::max(need, moments.tapes[at] + moments.backward[at] - before);
    } else {
      need = std::max(need, backward - before);
    }
    need = std::max(need, recording - before + moments.incoming[at]);
    if (j < moments.n) need = std::max(need, forward);
    visit(j, need);
  }
}

/// Finds the maximum of a window of numbers. Numbers enter at one end and expire at the other.
class WindowMaximum {
 public:
  void push(int position, int64_t number) {
    while (!items_.empty() && items_.back().number <= number) items_.pop_back();
    items_.push_back({position, number});
  }
  template <typename Expired>
  void expire(Expired expired) {
    while (!items_.empty() && expired(items_.front().position)) items_.pop_front();
  }
  int64_t largest() const { return items_.empty() ? kLeast : items_.front().number; }

 private:
  struct Item {
    int position;
    int64_t number;
  };
  std::deque<Item> items_;
};

/// An upper bound of need(i, j) that grows with j and shrinks with i: the maximum over i < k <= j of `reverse[k]` -
/// T(i) and of the forward moments. It equals need(i, j) where `exact` is true.
struct MonotoneNeeds {
  explicit MonotoneNeeds(const Moments& given) : moments(given), reverse(given.tapes.size(), kLeast) {
    int64_t recording = kLeast;
    for (size_t k = 1; k < reverse.size(); ++k) {
      recording = std::max(recording, moments.recording[k]);
      const int64_t backward = moments.tapes[k] + moments.backward[k];
      exact = exact && recording + moments.incoming[k] <= backward;
      reverse[k] = std::max(backward, recording + moments.incoming[k]);
    }
  }
  int64_t need(int i, int64_t reverse_maximum, int64_t later_forward_maximum) const {
    const auto at = static_cast<size_t>(i);
    return std::max({reverse_maximum - moments.tapes[at], moments.first_forward[at + 1], later_forward_maximum});
  }

  const Moments& moments;
  std::vector<int64_t> reverse;
  bool exact = true;
};

/// Returns M(0) by the queue. The candidates j are queued from the largest to the smallest, with M smaller for larger
/// j. The second candidate is at least as good as the front once need(i, front) >= M(second), and stays so, since
/// need() grows as i falls.
int64_t least_peak(const MonotoneNeeds& needs) {
  const Moments& moments = needs.moments;
  struct Candidate {
    int stage;
    int64_t least;
  };
  std::deque<Candidate> queue = {{moments.n, 0}};
  WindowMaximum reverse;
  WindowMaximum forward;
  for (int i = moments.n - 1;; --i) {
    reverse.push(i + 1, needs.reverse[static_cast<size_t>(i) + 1]);
    if (i + 2 <= moments.n) forward.push(i + 2, moments.later_forward[static_cast<size_t>(i) + 2]);
    const auto need_of_front = [&] {
      const auto expired = [&](int k) { return k > queue.front().stage; };
      reverse.expire(expired);
      forward.expire(expired);
      return needs.need(i, reverse.largest(), forward.largest());
    };
    while (queue.size() > 1 && need_of_front() >= queue[1].least) queue.pop_front();
    const int64_t least =
        (i == 0 ? 0 : moments.kept[static_cast<size_t>(i)]) + std::max(need_of_front(), queue.front().least);
    if (i == 0) return least;
    while (!queue.empty() && queue.back().least >= least) queue.pop_back();
    queue.push_back({i, least});
  }
}

int64_t least_peak(const Moments& moments, bool reentrant) {
  std::vector<int64_t> least(static_cast<size_t>(moments.n) + 1, 0);
  for (int i = moments.n - 1; i >= 0; --i) {
    int64_t best = kNever;
    for_each_need(moments, i, reentrant,
                  [&](int j, int64_t need) { best = std::min(best, std::max(need, least[static_cast<size_t>(j)])); });
    least[static_cast<size_t>(i)] = best + (i == 0 ? 0 : moments.kept[static_cast<size_t>(i)]);
  }
  return least[0];
}

/// The smallest number of bytes kept by checkpoints up to stage j, if stage j is one (kNever if that is impossible),
/// and the checkpoint before it.
struct Prefixes {
  explicit Prefixes(int n) : bytes(static_cast<size_t>(n) + 1, kNever), previous(static_cast<size_t>(n) + 1, 0) {}
  std::vector<int64_t> bytes;
  std::vector<int> previous;
};

/// Extends prefixes of `from` by one segment each, within the peak, to stages 1..last. If `to` is `from`, extends by
/// any number of segments. Older candidates i in the queue keep fewer bytes; a candidate that no longer fits never fits
/// again.
void extend(const MonotoneNeeds& needs, int64_t peak, int last, const Prefixes& from, Prefixes& to) {
  const Moments& moments = needs.moments;
  std::deque<int> queue;
  WindowMaximum reverse;
  WindowMaximum forward;
  for (int j = 1; j <= last; ++j) {
    const auto at = static_cast<size_t>(j);
    const int64_t bytes = from.bytes[at - 1];
    if (bytes != kNever) {
      while (!queue.empty() && from.bytes[static_cast<size_t>(queue.back())] >= bytes) queue.pop_back();
      queue.push_back(j - 1);
    }
    reverse.push(j, needs.reverse[at]);
    forward.push(j, moments.later_forward[at]);
    const auto front_fits = [&] {
      const int i = queue.front();
      reverse.expire([&](int k) { return k <= i; });
      forward.expire([&](int k) { return k <= i + 1; });
      return needs.need(i, reverse.largest(), forward.largest()) <= peak - from.bytes[static_cast<size_t>(i)];
    };
    while (!queue.empty() && !front_fits()) queue.pop_front();
    if (queue.empty()) continue;
    to.bytes[at] = from.bytes[static_cast<size_t>(queue.front())] + moments.kept[at];
    to.previous[at] = queue.front();
  }
}

/// Extends prefixes in the same way, with the exact need().
void extend(const Moments& moments, bool reentrant, int64_t peak, int last, const Prefixes& from, Prefixes& to) {
  for (int i = 0; i < last; ++i) {
    const int64_t bytes = from.bytes[static_cast<size_t>(i)];
    if (bytes == kNever) continue;
    for_each_need(moments, i, reentrant, [&](int j, int64_t need) {
      if (j > last || need > peak - bytes) return;
      const auto at = static_cast<size_t>(j);
      if (bytes + moments.kept[at] >= to.bytes[at]) return;
      to.bytes[at] = bytes + moments.kept[at];
      to.previous[at] = i;
    });
  }
}

/// Returns the subset within `peak`, which some subset reaches, that has the earliest last checkpoint (everything
/// before it is recomputed), and of those the fewest checkpoints. `extend_to(last, from, to)` is one of the functions
/// above; `end_fits(c, bytes)` returns whether the last segment may start at c; `layer_work` is how many segments one
/// call of extend_to visits.
template <typename Extend, typename EndFits>
std::vector<int> best_subset(int n, int64_t layer_work, Extend extend_to, EndFits end_fits) {
  Prefixes all(n);
  all.bytes[0] = 0;
  extend_to(n - 1, all, all);
  int last = 0;
  while (!end_fits(last, all.bytes[static_cast<size_t>(last)])) ++last;
  // Layer k has the prefixes with exactly k checkpoints.
  std::vector<Prefixes> layers(1, Prefixes(n));
  layers[0].bytes[0] = 0;
  const auto reached = [&] { return end_fits(last, layers.back().bytes[static_cast<size_t>(last)]); };
  const int64_t passes = PeakLinearLimits::kTiePasses + PeakLinearLimits::kTieWork / layer_work;
  while (!reached() && std::ssize(layers) <= passes) {
    Prefixes next(n);
    extend_to(last, layers.back(), next);
    layers.push_back(std::move(next));
  }
  const bool fewest = reached();
  std::vector<int> subset;
  for (int at = last; at > 0;) {
    subset.push_back(at);
    const Prefixes& prefixes = fewest ? layers[layers.size() - subset.size()] : all;
    at = prefixes.previous[static_cast<size_t>(at)];
  }
  std::ranges::reverse(subset);
  return subset;
}

std::vector<int> linear_subset(const MonotoneNeeds& needs) {
  const Moments& moments = needs.moments;
  const int64_t peak = least_peak(needs);
  // reverse_after[c] is the largest reverse moment after c. It gives need(c, n), because the forward pass records the
  // last segment.
  std::vector<int64_t> reverse_after(needs.reverse.size(), kLeast);
  for (size_t c = reverse_after.size() - 1; c-- > 0;)
    reverse_after[c] = std::max(reverse_after[c + 1], needs.reverse[c + 1]);
  return best_subset(
      moments.n, moments.n, [&](int last, const Prefixes& from, Prefixes& to) { extend(needs, peak, last, from, to); },
      [&](int c, int64_t bytes) {
        const auto at = static_cast<size_t>(c);
        return bytes != kNever && reverse_after[at] - moments.tapes[at] <= peak - bytes;
      });
}

std::vector<int> quadratic_subset(const Moments& moments, bool reentrant) {
  const int64_t peak = least_peak(moments, reentrant);
  std::vector<int64_t> end_need(static_cast<size_t>(moments.n), 0);
  for (int i = 0; i < moments.n; ++i)
    for_each_need(moments, i, reentrant, [&](int j, int64_t need) {
      if (j == moments.n) end_need[static_cast<size_t>(i)] = need;
    });
  return best_subset(
      moments.n, int64_t{moments.n} * moments.n,
      [&](int last, const Prefixes& from, Prefixes& to) { extend(moments, reentrant, peak, last, from, to); },
      [&](int c, int64_t bytes) { return bytes != kNever && end_need[static_cast<size_t>(c)] <= peak - bytes; });
}

}  // namespace

PlanResult plan_peak_linear(const Chain& chain, const PlanRequest& /*request*/, const CheckpointOptions& options) {
  const Moments moments(chain);
  const MonotoneNeeds needs(moments);
  if (!options.reentrant && needs.exact)
    return plan_with_checkpoints(chain, linear_subset(needs), options, PlanStatus::kOptimal);
  if (moments.n <= PeakLinearLimits::kMostQuadraticStages)
    return plan_with_checkpoints(chain, quadratic_subset(moments, options.reentrant), options, PlanStatus::kOptimal);
  if (options.reentrant)
    throw NotApplicable("peak-linear: reentrant checkpoints take time quadratic in the stages: at most " +
                        std::to_string(PeakLinearLimits::kMostQuadraticStages) + ", found " +
                        std::to_string(moments.n));
  return plan_with_checkpoints(chain, linear_subset(needs), options, PlanStatus::kFeasible);
}

}  // namespace headroom::internal
