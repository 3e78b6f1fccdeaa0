#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace headroom::internal {

/// Disjoint sets of the numbers 0..n-1 that can be joined but not split. The smallest member of a set represents it. A
/// call takes amortised O(log n).
class UnionFind {
 public:
  explicit UnionFind(int n) : parent_(static_cast<size_t>(n)) { std::iota(parent_.begin(), parent_.end(), 0); }

  int find(int x) {
    while (parent(x) != x) x = parent(x) = parent(parent(x));
    return x;
  }

  void join(int a, int b) {
    a = find(a);
    b = find(b);
    parent(std::max(a, b)) = std::min(a, b);
  }

 private:
  int& parent(int x) { return parent_[static_cast<size_t>(x)]; }

  std::vector<int> parent_;
};

}  // namespace headroom::internal
