#include "headroom/algorithm/least_cut.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

void check(std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) {
      throw InvalidInput("size " + std::to_string(i + 1) + " of a path is " + std::to_string(sizes[i]) +
                         ", expected at least 0");
    }
    if (sizes[i] > std::numeric_limits<int64_t>::max() - sum) {
      throw TooLarge("the sizes of a path do not fit int64 together");
    }
    sum += sizes[i];
  }
}

int64_t total(const Cut& cut) { return cut.kept_sum + cut.largest_inner; }

bool is_better(const Cut& a, const Cut& b) {
  if (total(a) != total(b)) return total(a) < total(b);
  if (a.kept.size() != b.kept.size()) return a.kept.size() < b.kept.size();
  return a.kept < b.kept;
}

}  // namespace

Cut least_cut_within(std::span<const int64_t> sizes, std::span<const int64_t> links, int64_t bound) {
  const size_t n = sizes.size();
  if (n == 0) return {};
  const auto size_of = [&](size_t j) { return j == n ? 0 : sizes[j - 1]; };

  // until[j] is the sum of all sizes and links up to and including position j, so inner(i, j) = until[j] - size_of(j) -
  // until[i].
  std::vector<int64_t> until(n + 1, 0);
  for (size_t j = 1; j <= n; ++j) {
    const int64_t link = links.empty() ? 0 : links[j - 1];
    HEADROOM_ASSERT(link <= bound);
    until[j] = until[j - 1] + link + size_of(j);
  }
  const auto inner = [&](size_t i, size_t j) { return until[j] - size_of(j) - until[i]; };

  // Positions go down, so that of equal choices the smallest next position can be taken. best[i] is the smallest (kept
  // sum, kept count) from i to n with i kept and counted. `window` holds the possible next positions of i, the best one
  // in front.
  std::vector<std::pair<int64_t, int>> best(n + 1);
  std::vector<size_t> next(n + 1, n);
  std::vector<size_t> window(n + 1);
  size_t front = 0;
  size_t back = 0;
  for (size_t i = n; i-- > 0;) {
    const size_t candidate = i + 1;
    while (back > front && best[window[back - 1]] >= best[candidate]) --back;
    window[back++] = candidate;
    while (inner(i, window[front]) > bound) ++front;
    next[i] = window[front];
    best[i] = best[next[i]];
    if (i > 0) best[i] = {best[i].first + size_of(i), best[i].second + 1};
  }

  Cut cut;
  cut.kept_sum = best[0].first;
  for (size_t i = 0; i < n; i = next[i]) {
    if (i > 0) cut.kept.push_back(static_cast<int>(i));
    cut.largest_inner = std::max(cut.largest_inner, inner(i, next[i]));
  }
  return cut;
}

Cut least_over_bounds(int64_t whole, const std::function<Cut(int64_t bound)>& within) {
  Cut best{{}, 0, whole};
  if (whole == 0) return best;
  Cut narrowest = within(0);
  // The bounds strictly between `low` and `high`, with the smallest kept sums at both ends.
  struct Range {
    int64_t low, low_kept, high, high_kept;
  };
  std::vector<Range> ranges = {{0, narrowest.kept_sum, whole, 0}};
  if (is_better(narrowest, best)) best = std::move(narrowest);
  while (!ranges.empty()) {
    const Range range = ranges.back();
    ranges.pop_back();
    if (range.high - range.low < 2 || range.low_kept == range.high_kept) continue;
    if (range.high_kept > total(best) - (range.low + 1)) continue;
    const int64_t middle = range.low + (range.high - range.low) / 2;
    Cut cut = within(middle);
    ranges.push_back({middle, cut.kept_sum, range.high, range.high_kept});
    // All bounds from the cut's largest inner sum up to `middle` give the same cut.
    ranges.push_back({range.low, range.low_kept, std::min(middle, cut.largest_inner), cut.kept_sum});
    if (is_better(cut, best)) best = std::move(cut);
  }
  return best;
}

std::vector<int> least_cut(std::span<const int64_t> sizes) {
  check(sizes);
  int64_t whole = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) whole += sizes[i];
  return least_over_bounds(whole, [&](int64_t bound) { return least_cut_within(sizes, {}, bound); }).kept;
}

}  // namespace headroom::internal
