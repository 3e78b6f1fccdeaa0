#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace headroom::internal {

/// Returns the Pareto front of some points for two costs, both to be minimised: the first cost ascending, the second
/// strictly descending. Of points equal in both costs the first stays. `first` and `second` are functions or pointers to
/// members. O(n log n).
template <typename Point, typename First, typename Second>
std::vector<Point> pareto_front(std::vector<Point> points, First first, Second second) {
  std::ranges::stable_sort(
      points, {}, [&](const Point& point) { return std::pair(std::invoke(first, point), std::invoke(second, point)); });
  std::vector<Point> front;
  for (Point& point : points)
    if (front.empty() || std::invoke(second, point) < std::invoke(second, front.back()))
      front.push_back(std::move(point));
  return front;
}

}  // namespace headroom::internal
