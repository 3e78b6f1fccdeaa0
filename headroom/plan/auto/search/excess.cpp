#include "headroom/plan/auto/search/excess.h"

#include <algorithm>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

double excess_above(const Timeline& timeline, int64_t target_bytes) {
  double sum = 0;
  if (timeline.peak_bytes() <= target_bytes) return sum;
  for (const int64_t moment : timeline.moments())
    sum += moment > target_bytes ? static_cast<double>(moment - target_bytes) : 0;
  return sum;
}

void Excess::assign(const Timeline& timeline, int64_t target_bytes) {
  timeline_ = &timeline;
  target_bytes_ = target_bytes;
  counts_.assign(at(timeline.size()) + 1, 0);
  sums_.assign(at(timeline.size()) + 1, 0);
  for (int32_t p = 0; p < timeline.size(); ++p) {
    const bool is_over = timeline.moment(p) > target_bytes;
    counts_[at(p) + 1] = counts_[at(p)] + (is_over ? 1 : 0);
    sums_[at(p) + 1] = sums_[at(p)] + (is_over ? static_cast<double>(timeline.moment(p) - target_bytes) : 0);
  }
}

int32_t Excess::first_over() const {
  return static_cast<int32_t>(std::ranges::upper_bound(counts_, 0) - counts_.begin()) - 1;
}

int32_t Excess::last_over() const {
  return static_cast<int32_t>(std::ranges::lower_bound(counts_, counts_.back()) - counts_.begin()) - 1;
}

double Excess::freed(int32_t first, int32_t last, int64_t bytes) const {
  if (first > last) return 0;
  const int32_t count = counts_[at(last) + 1] - counts_[at(first)];
  if (count == 0) return 0;
  return std::min(static_cast<double>(bytes) * count, sums_[at(last) + 1] - sums_[at(first)]);
}

double Excess::added(int32_t first, int32_t last, int64_t bytes, double most) const {
  if (first > last || bytes == 0) return 0;
  const int32_t over = counts_[at(last) + 1] - counts_[at(first)];
  if (over == 0 && timeline_->most(first, last) <= target_bytes_ - bytes) return 0;
  if (most <= 0) return 1;
  const double least = static_cast<double>(bytes) * over;
  if (least > most) return least;
  double sum = 0;
  const auto added = [&](int64_t moment) {
    const double excess = static_cast<double>(moment - target_bytes_) + static_cast<double>(bytes);
    return std::clamp(excess, 0.0, static_cast<double>(bytes));
  };
  for (int32_t p = first; p <= last && sum <= most;) {
    const bool is_whole_block = p % Timeline::kBlock == 0 && p + Timeline::kBlock - 1 <= last;
    sum += is_whole_block ? Timeline::kBlock * added(timeline_->most_of_block(p)) : added(timeline_->moment(p));
    p += is_whole_block ? Timeline::kBlock : 1;
  }
  return sum;
}

}  // namespace headroom::internal
