#include "headroom/plan/place/first_fit.h"

#include <algorithm>

namespace headroom::internal {

void FirstFit::place(std::span<const int32_t> order) {
  placed_.clear();
  offsets_.resize(order.size());
  arena_bytes_ = 0;
  for (const int32_t b : order) {
    const auto block = static_cast<size_t>(b);
    const int32_t first = sections_.first[block];
    const int32_t last = sections_.last[block];
    const int64_t padded = sections_.padded[block];
    int64_t offset = 0;
    size_t i = 0;
    for (; i < placed_.size() && placed_[i].begin < offset + padded; ++i) {
      // Without branches on the overlap, which no processor predicts.
      const Placed& other = placed_[i];
      const bool overlaps = static_cast<int>(other.first <= last) & static_cast<int>(first <= other.last);
      const int64_t above = std::max(offset, other.end);
      offset = overlaps ? above : offset;
    }
    work_ += static_cast<int64_t>(i) + 1;
    const auto end = placed_.begin() + static_cast<std::ptrdiff_t>(i);
    const auto at = std::lower_bound(placed_.begin(), end, offset,
                                     [](const Placed& other, int64_t begin) { return other.begin < begin; });
    placed_.insert(at, {offset, offset + padded, first, last});
    offsets_[block] = offset;
    arena_bytes_ = std::max(arena_bytes_, offset + sections_.bytes[block]);
  }
}

}  // namespace headroom::internal
