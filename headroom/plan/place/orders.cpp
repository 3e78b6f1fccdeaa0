#include "headroom/plan/place/orders.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "headroom/algorithm/range_max.h"

namespace headroom::internal {
namespace {

/// Keys are scaled to about this number, so that they can be changed by small parts without overflow.
constexpr int64_t kLargestKey = int64_t{1} << 40;
/// Parts are counted in this share of a key.
constexpr int64_t kPartsPerPercent = 10;

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

/// Shifts all keys by the same number of bits, so that the largest is between half of kLargestKey and kLargestKey.
void scale(std::vector<int64_t>& keys) {
  int64_t largest = keys.empty() ? 0 : *std::ranges::max_element(keys);
  if (largest <= 0) return;
  int up = 0;
  int down = 0;
  for (; largest > kLargestKey; largest /= 2) ++down;
  for (; largest <= kLargestKey / 2; largest *= 2) ++up;
  for (int64_t& key : keys) key = (key >> down) << up;
}

}  // namespace

int64_t PlaceRandom::number(int64_t min, int64_t max) {
  state_ += 0x9E3779B97F4A7C15U;
  uint64_t bits = state_;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  bits ^= bits >> 31U;
  return min + static_cast<int64_t>(bits % static_cast<uint64_t>(max - min + 1));
}

BlockOrders::BlockOrders(const Sections& sections) {
  RangeMax totals;
  totals.assign(sections.total_bytes);
  for (size_t b = 0; b < sections.padded.size(); ++b) {
    const int64_t length = sections.last[b] - sections.first[b] + 1;
    const auto first = static_cast<size_t>(sections.first[b]);
    keys_[static_cast<size_t>(BlockKey::kTotal)].push_back(totals.most(first, first + static_cast<size_t>(length)));
    keys_[static_cast<size_t>(BlockKey::kSize)].push_back(sections.padded[b]);
    keys_[static_cast<size_t>(BlockKey::kArea)].push_back(saturating_product(sections.padded[b], length));
    keys_[static_cast<size_t>(BlockKey::kLength)].push_back(length);
  }
  for (std::vector<int64_t>& keys : keys_) scale(keys);
}

std::vector<int32_t> BlockOrders::sorted(const BlockKeys& keys, int64_t noise_percent, PlaceRandom& random) const {
  const int64_t most_parts = noise_percent * kPartsPerPercent;
  std::vector<std::array<int64_t, 3>> key_of(keys_.front().size());
  for (size_t b = 0; b < key_of.size(); ++b) {
    for (size_t k = 0; k < keys.size(); ++k) {
      const int64_t value = key(keys[k])[b];
      const int64_t parts = most_parts == 0 ? 0 : random.number(-most_parts, most_parts);
      key_of[b][k] = value + value / (100 * kPartsPerPercent) * parts;
    }
  }
  std::vector<int32_t> order(key_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return key_of[static_cast<size_t>(a)] > key_of[static_cast<size_t>(b)]; });
  return order;
}

std::vector<int32_t> ranks_of(const std::vector<int32_t>& order) {
  std::vector<int32_t> ranks(order.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return ranks;
}

}  // namespace headroom::internal
