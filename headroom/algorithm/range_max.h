#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace headroom::internal {

/// A sequence of numbers in which adding to a range and finding the maximum of a range take O(log n).
///
/// It is a binary tree over the numbers, processed from the bottom up. A node stores the maximum below it without what
/// was added to the ranges of the nodes above; nothing is ever pushed down.
class RangeMax {
 public:
  /// Replaces the numbers. Takes O(n).
  void assign(std::span<const int64_t> numbers) {
    leaves_ = std::bit_ceil(numbers.size() + 2);  // A range query touches one more leaf on each side.
    largest_.assign(2 * leaves_, kLeast);
    added_.assign(leaves_, 0);
    std::ranges::copy(numbers, largest_.begin() + static_cast<std::ptrdiff_t>(leaves_) + 1);
    for (size_t node = leaves_; --node > 0;) update(node);
  }

  /// Adds to the numbers in [first, end).
  void add(size_t first, size_t end, int64_t amount) {
    size_t left = leaves_ + first;
    size_t right = leaves_ + end + 1;
    const auto add_below = [&](size_t node) {
      largest_[node] += amount;
      if (node < leaves_) added_[node] += amount;
    };
    while ((left ^ right) != 1) {
      if (left % 2 == 0) add_below(left + 1);
      if (right % 2 == 1) add_below(right - 1);
      update(left /= 2);
      update(right /= 2);
    }
    while ((left /= 2) > 0) update(left);
  }

  /// Returns the maximum in [first, end), which must not be empty.
  int64_t most(size_t first, size_t end) const {
    size_t left = leaves_ + first;
    size_t right = leaves_ + end + 1;
    int64_t left_most = kLeast;
    int64_t right_most = kLeast;
    while ((left ^ right) != 1) {
      if (left % 2 == 0) left_most = std::max(left_most, largest_[left + 1]);
      if (right % 2 == 1) right_most = std::max(right_most, largest_[right - 1]);
      left_most += added_[left /= 2];
      right_most += added_[right /= 2];
    }
    int64_t most = std::max(left_most, right_most);
    while ((left /= 2) > 0) most += added_[left];
    return most;
  }

 private:
  /// A number below all others, and far enough from the smallest int64 that adding to it does not overflow.
  static constexpr int64_t kLeast = std::numeric_limits<int64_t>::min() / 2;

  void update(size_t node) { largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]) + added_[node]; }

  size_t leaves_ = 0;
  /// By node: maximum below it. The children of node i are 2 i and 2 i + 1, and the root is 1.
  std::vector<int64_t> largest_;
  std::vector<int64_t> added_;  ///< By inner node: amount added to all numbers below it.
};

}  // namespace headroom::internal
