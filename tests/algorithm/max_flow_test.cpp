#include "headroom/algorithm/max_flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headroom/core/error.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

struct Arc {
  int from;
  int to;
  FlowAmount capacity;
};

/// A network of nodes 0 (the source), 1 (the sink) and others.
struct Network {
  int nodes = 2;
  std::vector<Arc> arcs;

  std::string text() const {
    std::string out = std::to_string(nodes) + " nodes:";
    for (const Arc& arc : arcs)
      out += " " + std::to_string(arc.from) + "->" + std::to_string(arc.to) + " (" +
             (arc.capacity == MaxFlow::kUnlimited ? "unlimited" : std::to_string(static_cast<int64_t>(arc.capacity))) +
             ")";
    return out;
  }
};

/// Returns the minimum capacity of the arcs out of a set of nodes with the source and without the sink, or kUnlimited if an
/// unlimited arc leaves each such set.
FlowAmount least_cut_by_force(const Network& network) {
  FlowAmount least = MaxFlow::kUnlimited;
  for (uint32_t set = 1; set < uint32_t{1} << static_cast<unsigned>(network.nodes); ++set) {
    const auto has = [&](int node) { return (set >> static_cast<unsigned>(node) & 1U) != 0; };
    if (!has(0) || has(1)) continue;
    FlowAmount sum = 0;
    for (const Arc& arc : network.arcs)
      if (has(arc.from) && !has(arc.to))
        sum = arc.capacity == MaxFlow::kUnlimited ? MaxFlow::kUnlimited
                                                  : std::min(sum + arc.capacity, MaxFlow::kUnlimited);
    least = std::min(least, sum);
  }
  return least;
}

Network random_network(testing::Random& random, int64_t most) {
  Network network;
  network.nodes = static_cast<int>(random.number(2, 8));
  for (int64_t arcs = random.number(0, 3 * network.nodes); arcs > 0; --arcs) {
    const auto node = [&] { return static_cast<int>(random.number(0, network.nodes - 1)); };
    const FlowAmount capacity = random.chance(15) ? MaxFlow::kUnlimited : FlowAmount{random.number(0, most)};
    network.arcs.push_back({node(), node(), capacity});
  }
  return network;
}

struct Solved {
  MaxFlow flow;
  std::vector<int> edges;
  FlowAmount value;
};

Solved solve(const Network& network) {
  Solved solved{MaxFlow(network.nodes), {}, 0};
  for (const Arc& arc : network.arcs) solved.edges.push_back(solved.flow.add_edge(arc.from, arc.to, arc.capacity));
  solved.value = solved.flow.run(0, 1);
  return solved;
}

// 0 -> 2 (3), 0 -> 3 (2), 2 -> 3 (1), 2 -> 1 (1), 3 -> 1 (4). A flow of 1 passes 2, and 2 + 1 pass 3. The cut is 2 -> 1,
// 2 -> 3 and 0 -> 3, with a capacity of 4.
TEST(MaxFlow, ByHand) {
  MaxFlow flow(2);
  const int a = flow.add_node();
  const int b = flow.add_node();
  const int to_a = flow.add_edge(0, a, 3);
  const int to_b = flow.add_edge(0, b, 2);
  const int across = flow.add_edge(a, b, 1);
  const int from_a = flow.add_edge(a, 1, 1);
  flow.add_edge(b, 1, 4);
  EXPECT_EQ(flow.run(0, 1), 4);
  EXPECT_FALSE(flow.is_cut(to_a));
  EXPECT_TRUE(flow.is_cut(to_b));
  EXPECT_TRUE(flow.is_cut(across));
  EXPECT_TRUE(flow.is_cut(from_a));
  EXPECT_EQ(flow.find_error(), nullptr);
}

// 0 -> 2 and 2 -> 1 are both cuts of capacity 5. The one closer to the source is returned.
TEST(MaxFlow, CutNearestToTheSource) {
  const Solved solved = solve({3, {{0, 2, 5}, {2, 1, 5}}});
  EXPECT_EQ(solved.value, 5);
  EXPECT_TRUE(solved.flow.is_cut(solved.edges[0]));
  EXPECT_FALSE(solved.flow.is_cut(solved.edges[1]));
}

TEST(MaxFlow, NoPath) {
  const Solved solved = solve({4, {{0, 2, MaxFlow::kUnlimited}, {3, 1, 7}, {2, 0, 1}}});
  EXPECT_EQ(solved.value, 0);
  EXPECT_EQ(solved.flow.find_error(), nullptr);
}

// 2 * (2^63 - 1) does not fit an int64, and half of it less one has more digits than a double.
TEST(MaxFlow, ExactWhereProductsAreLarge) {
  const FlowAmount large = std::numeric_limits<int64_t>::max();
  const Solved sum = solve({3, {{0, 2, MaxFlow::kUnlimited}, {2, 1, large}, {2, 1, large}}});
  EXPECT_EQ(sum.value, 2 * large);
  EXPECT_EQ(sum.flow.find_error(), nullptr);
  const FlowAmount half = large * large / 2;
  const Solved product = solve({4, {{0, 2, MaxFlow::kUnlimited}, {2, 3, half}, {3, 1, half - 1}}});
  EXPECT_EQ(product.value, half - 1);
  EXPECT_EQ(product.flow.find_error(), nullptr);
}

// The new edge crosses the cut and has no flow.
TEST(MaxFlow, FindsThatACutIsNotTheFlow) {
  Solved solved = solve({3, {{0, 2, 5}, {2, 1, 4}}});
  EXPECT_EQ(solved.flow.find_error(), nullptr);
  solved.flow.add_edge(0, 1, 1);
  EXPECT_STREQ(solved.flow.find_error(), "the values of flow and cut differ");
  solved.flow.add_edge(0, 1, MaxFlow::kUnlimited);
  EXPECT_STREQ(solved.flow.find_error(), "an unlimited edge is cut");
}

TEST(MaxFlow, RefusesWhatItCannotCount) {
  EXPECT_THROW(solve({3, {{0, 2, MaxFlow::kUnlimited}, {2, 1, MaxFlow::kUnlimited}}}), InternalError) << "no limit";
  EXPECT_THROW(solve({2, {{0, 1, -1}}}), InternalError);
  const FlowAmount half = MaxFlow::kUnlimited / 2;
  EXPECT_THROW(solve({2, {{0, 1, half}, {0, 1, half}}}), InternalError) << "not less than unlimited together";
  EXPECT_EQ(solve({2, {{0, 1, half}, {0, 1, half - 1}}}).value, MaxFlow::kUnlimited - 1);
}

TEST(MaxFlow, RandomAgainstAllCuts) {
  int limited = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    testing::Random random(seed);
    Network network = random_network(random, seed % 2 == 0 ? 4 : std::numeric_limits<int64_t>::max() / 2);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + network.text());
    const FlowAmount least = least_cut_by_force(network);
    if (least == MaxFlow::kUnlimited) {
      EXPECT_THROW(solve(network), InternalError);
      continue;
    }
    ++limited;
    Solved solved = solve(network);
    ASSERT_TRUE(solved.value == least);
    ASSERT_EQ(solved.flow.find_error(), nullptr);
    FlowAmount cut = 0;
    for (size_t i = 0; i < network.arcs.size(); ++i)
      if (solved.flow.is_cut(solved.edges[i])) cut += network.arcs[i].capacity;
    ASSERT_TRUE(cut == least);
    // Solving again with other capacities gives the result of a new network.
    for (size_t i = 0; i < network.arcs.size(); ++i) {
      if (network.arcs[i].capacity == MaxFlow::kUnlimited) continue;
      network.arcs[i].capacity = random.number(0, 9);
      solved.flow.set_capacity(solved.edges[i], network.arcs[i].capacity);
    }
    ASSERT_TRUE(solved.flow.run(0, 1) == least_cut_by_force(network));
    ASSERT_EQ(solved.flow.find_error(), nullptr);
  }
  EXPECT_GT(limited, 2000);
}

}  // namespace
}  // namespace headroom::internal
