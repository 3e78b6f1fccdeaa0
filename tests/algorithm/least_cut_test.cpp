#include "headroom/algorithm/least_cut.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <string>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

std::string text(const std::vector<int64_t>& numbers) {
  std::string out;
  for (const int64_t number : numbers) out += std::to_string(number) + " ";
  return out;
}

/// Returns the cut that keeps the positions in `mask`, where bit j-1 stands for position j.
Cut cut_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& links, uint32_t mask) {
  Cut cut;
  int64_t inner = 0;
  for (size_t j = 1; j <= sizes.size(); ++j) {
    if (!links.empty()) inner += links[j - 1];
    const bool kept = j < sizes.size() && (mask >> (j - 1) & 1) != 0;
    if (kept || j == sizes.size()) {
      cut.largest_inner = std::max(cut.largest_inner, inner);
      inner = 0;
      if (kept) {
        cut.kept.push_back(static_cast<int>(j));
        cut.kept_sum += sizes[j - 1];
      }
    } else {
      inner += sizes[j - 1];
    }
  }
  return cut;
}

template <typename Key>
std::optional<Cut> best_of_all(const std::vector<int64_t>& sizes, const std::vector<int64_t>& links, Key key,
                               int64_t bound) {
  std::optional<Cut> best;
  for (uint32_t mask = 0; mask < 1u << (sizes.size() - 1); ++mask) {
    Cut cut = cut_of(sizes, links, mask);
    if (cut.largest_inner > bound) continue;
    const auto rank = [&](const Cut& c) { return std::tuple(key(c), c.kept.size(), c.kept); };
    if (!best || rank(cut) < rank(*best)) best = std::move(cut);
  }
  return best;
}

std::vector<int64_t> random_sizes(std::mt19937_64& random, size_t count, uint64_t limit) {
  std::vector<int64_t> sizes(count);
  for (int64_t& size : sizes) size = static_cast<int64_t>(random() % limit);
  return sizes;
}

TEST(LeastCut, ByHand) {
  EXPECT_EQ(least_cut({}), std::vector<int>{});
  EXPECT_EQ(least_cut(std::vector<int64_t>{7}), std::vector<int>{});
  // Keeping position 2 costs 1 and leaves 9 | 9: 10. Keeping nothing: 19.
  EXPECT_EQ(least_cut(std::vector<int64_t>{9, 1, 9, 5}), std::vector<int>{2});
  // 4 | 4 with the middle kept: 8; nothing kept: 12; {1} leaves 8: 12; {1, 2}: 12, and so on.
  EXPECT_EQ(least_cut(std::vector<int64_t>{4, 4, 4, 0}), std::vector<int>{2});
  // Keeping nothing and keeping all both cost 4. The result has fewer positions.
  EXPECT_EQ(least_cut(std::vector<int64_t>{2, 2, 0}), std::vector<int>{});
  // {1} and {2} keep 1 and leave at most 1 inside, 1 + 1 = 2 in sum, which is what keeping nothing costs.
  EXPECT_EQ(least_cut(std::vector<int64_t>{1, 1, 3}), std::vector<int>{});
}

TEST(LeastCut, Vgg19) {
  // Elements per image: conv+ReLU as one stage, pools at 3, 6, 11, 16, 21, fully connected 22-24.
  std::vector<int64_t> sizes;
  const auto block = [&](int convolutions, int64_t channels, int64_t side) {
    for (int i = 0; i < convolutions; ++i) sizes.push_back(channels * side * side);
    sizes.push_back(channels * (side / 2) * (side / 2));
  };
  block(2, 64, 224);
  block(2, 128, 112);
  block(4, 256, 56);
  block(4, 512, 28);
  block(4, 512, 14);
  sizes.insert(sizes.end(), {4096, 4096, 1000});
  ASSERT_EQ(sizes.size(), 24u);

  EXPECT_EQ(least_cut(sizes), (std::vector<int>{3, 6}));
  const auto total = [&](uint32_t mask) {
    const Cut cut = cut_of(sizes, {}, mask);
    return cut.kept_sum + cut.largest_inner;
  };
  EXPECT_EQ(total(1u << 2 | 1u << 5), 7'626'752);
  EXPECT_EQ(total(1u << 2 | 1u << 10), 7'827'456);
}

TEST(LeastCut, EqualsBruteForce) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<int64_t> sizes = random_sizes(random, 1 + random() % 10, seed % 2 == 0 ? 4 : 1000);
    const auto total = [](const Cut& cut) { return cut.kept_sum + cut.largest_inner; };
    const auto expected = best_of_all(sizes, {}, total, std::numeric_limits<int64_t>::max());
    ASSERT_EQ(least_cut(sizes), expected->kept) << "seed " << seed << ": " << text(sizes);
  }
}

TEST(LeastCutWithin, EqualsBruteForce) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t limit = seed % 2 == 0 ? 4 : 1000;
    const std::vector<int64_t> sizes = random_sizes(random, 1 + random() % 10, limit);
    const std::vector<int64_t> links =
        seed % 3 == 0 ? std::vector<int64_t>{} : random_sizes(random, sizes.size(), limit);
    int64_t bound = static_cast<int64_t>(random() % (4 * limit));
    for (const int64_t link : links) bound = std::max(bound, link);
    const auto expected = best_of_all(
        sizes, links, [](const Cut& cut) { return cut.kept_sum; }, bound);
    ASSERT_EQ(least_cut_within(sizes, links, bound), *expected)
        << "seed " << seed << ": sizes " << text(sizes) << " links " << text(links) << " bound " << bound;
  }
}

TEST(LeastCut, LongPaths) {
  // A uniform path of 10,000: k kept of k + 1 segments cost k + ceil((9999 - k) / (k + 1)); 99 + 99 = 198 is the least
  // (with s = k + 1 segments: s - 1 + ceil(10000 / s) - 1, at least 2 * 100 - 2).
  const std::vector<int64_t> uniform(10'000, 1);
  EXPECT_EQ(least_cut(uniform).size(), 99u);

  std::mt19937_64 random(1);
  const std::vector<int64_t> sizes = random_sizes(random, 10'000, 1u << 30);
  const std::vector<int> kept = least_cut(sizes);
  EXPECT_GT(kept.size(), 50u);
  EXPECT_LT(kept.size(), 500u);
}

TEST(LeastCut, Errors) {
  EXPECT_THROW(least_cut(std::vector<int64_t>{1, -1}), InvalidInput);
  EXPECT_THROW(least_cut(std::vector<int64_t>{std::numeric_limits<int64_t>::max(), 1}), InvalidInput);
  EXPECT_EQ(least_cut(std::vector<int64_t>{std::numeric_limits<int64_t>::max(), 0}), std::vector<int>{});
  EXPECT_THROW(least_cut_within(std::vector<int64_t>{1, 1}, std::vector<int64_t>{0, 5}, 4), InternalError);
}

}  // namespace
}  // namespace headroom::internal
