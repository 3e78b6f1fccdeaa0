#include "headroom/algorithm/pareto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headroom::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Point {
  int x;
  int y;
  char name;
};

std::vector<char> front_of(std::vector<Point> points) {
  std::vector<char> names;
  for (const Point& point : pareto_front(std::move(points), &Point::x, &Point::y)) names.push_back(point.name);
  return names;
}

// b is dominated by a (1 <= 2, 5 <= 5). d equals c and comes later. f has the x of c and a larger y.
TEST(ParetoFront, ByHand) {
  EXPECT_THAT(front_of({{9, 1, 'e'}, {2, 5, 'b'}, {3, 2, 'c'}, {1, 5, 'a'}, {3, 2, 'd'}, {3, 4, 'f'}}),
              ElementsAre('a', 'c', 'e'));
  EXPECT_THAT(front_of({}), IsEmpty());
}

}  // namespace
}  // namespace headroom::internal
