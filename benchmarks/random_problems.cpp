#include "benchmarks/random_problems.h"

#include "tests/support/random.h"

using namespace headroom;
using namespace headroom::internal;

Graph medium_graph(uint64_t seed) {
  testing::Random random(seed);
  const int forward_ops = static_cast<int>(random.number(20, 100));
  return Graph(testing::random_graph(random, {.forward_ops = forward_ops, .most_bytes = 100, .special = false}));
}

std::vector<Problem> random_problems(int count) {
  std::vector<Problem> problems;
  for (int seed = 1; seed <= count; ++seed) {
    testing::Random random(static_cast<uint64_t>(seed));
    problems.push_back(make_problem(testing::random_chain(random, static_cast<int>(random.number(4, 13)))));
    const int forward_ops = static_cast<int>(random.number(4, 20));
    problems.push_back(
        make_problem(Graph(testing::random_graph(random, {.forward_ops = forward_ops, .special = random.chance(50)}))));
    problems.push_back(make_problem(medium_graph(static_cast<uint64_t>(seed))));
  }
  return problems;
}
