#include "headroom/plan/graph/division_tree.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "headroom/core/simulate.h"
#include "tests/plan/training_step.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::ForwardSpec;
using testing::path;
using testing::random_forward;
using testing::training_step;

ForwardGraph forward_of(const ForwardSpec& spec) { return forward_graph(Graph(training_step(spec)), "division-tree"); }

/// Returns a tree as "linear(…)", "branch(…)" or "complicated(…)" with joints and the children that are not empty.
std::string text(const DivisionTree& tree, int node = 0) {
  const DivisionNode& n = tree.nodes[static_cast<size_t>(node)];
  const char* const kinds[] = {"linear(", "branch(", "complicated("};
  std::string out = kinds[static_cast<size_t>(n.kind)];
  std::vector<std::string> parts;
  for (const int joint : n.joints) parts.push_back(std::to_string(joint));
  for (const int child : n.children) {
    if (child >= 0) parts.push_back(text(tree, child));
  }
  for (size_t i = 0; i < parts.size(); ++i) out += (i == 0 ? "" : " ") + parts[i];
  return out + ")";
}

std::string tree_of(const ForwardSpec& spec) { return text(division_tree(forward_of(spec))); }

/// Returns all vertices inside a node.
std::set<int> inside(const DivisionTree& tree, int node) {
  std::set<int> vertices;
  std::vector<int> open = {node};
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (next < 0) continue;
    const DivisionNode& n = tree.nodes[static_cast<size_t>(next)];
    vertices.insert(n.joints.begin(), n.joints.end());
    open.insert(open.end(), n.children.begin(), n.children.end());
  }
  return vertices;
}

/// Returns the connected components of `vertices` without `removed`, by `edges`.
std::vector<std::set<int>> parts_without(std::set<int> vertices, const std::vector<std::pair<int, int>>& edges,
                                         const std::set<int>& removed) {
  for (const int v : removed) vertices.erase(v);
  std::vector<std::set<int>> parts;
  while (!vertices.empty()) {
    std::set<int> part;
    std::vector<int> open = {*vertices.begin()};
    while (!open.empty()) {
      const int v = open.back();
      open.pop_back();
      if (vertices.erase(v) == 0) continue;
      part.insert(v);
      for (const auto& [a, b] : edges) {
        if (a == v) open.push_back(b);
        if (b == v) open.push_back(a);
      }
    }
    parts.push_back(part);
  }
  return parts;
}

TEST(DivisionTree, HandMade) {
  EXPECT_EQ(tree_of(path({1})), "linear()");
  EXPECT_EQ(tree_of(path({1, 1, 1})), "linear(0 1)");
  // A residual block: 0 -> 1 -> 2 -> 3 and 0 -> 3.
  EXPECT_EQ(tree_of({{1, 1, 1, 1}, {{0, 1}, {0, 3}, {1, 2}, {2, 3}}, {}}), "linear(0 branch(linear(1 2)))");
  // An inception block between 0 and 5: 1, 2 -> 3, 4.
  EXPECT_EQ(tree_of({{1, 1, 1, 1, 1, 1}, {{0, 1}, {0, 2}, {0, 4}, {1, 5}, {2, 3}, {3, 5}, {4, 5}}, {}}),
            "linear(0 branch(linear(1) linear(2 3) linear(4)))");
  // The Wheatstone bridge: 0 -> 1, 2; 1 -> 2; 1, 2 -> 3.
  EXPECT_EQ(tree_of({{1, 1, 1, 1}, {{0, 1}, {0, 2}, {1, 2}, {1, 3}, {2, 3}}, {}}), "linear(0 complicated(1 2))");
  // The same with a residual block (1 inside) instead of the edge 0 -> 2 and the path 3 4 instead of the bridge 2 -> 5.
  EXPECT_EQ(
      tree_of({{1, 1, 1, 1, 1, 1, 1}, {{0, 1}, {0, 2}, {0, 5}, {1, 2}, {2, 3}, {2, 6}, {3, 4}, {4, 5}, {5, 6}}, {}}),
      "linear(0 complicated(2 5 linear(3 4) branch(linear(1))))");
}

TEST(DivisionTree, SidesGoWhereTheyBelong) {
  // The path 0 1 2 3 with 4, which nothing reads, after 1: between 1 and 2.
  EXPECT_EQ(tree_of({{1, 1, 1, 1, 1}, {{0, 1}, {1, 2}, {2, 3}, {1, 4}}, {}}), "linear(0 1 2 branch(linear(4)))");
  // The path 1 2 3 4 with 0, which reads nothing, before 3: between 2 and 3.
  EXPECT_EQ(tree_of({{1, 1, 1, 1, 1}, {{0, 3}, {1, 2}, {2, 3}, {3, 4}}, {}}), "linear(1 2 3 branch(linear(0)))");
  // 0 and 4 are a component of their own, which comes before the path.
  EXPECT_EQ(tree_of({{1, 1, 1, 1, 1, 1}, {{0, 4}, {1, 2}, {2, 3}, {3, 5}}, {}}), "linear(1 2 3 branch(linear(0 4)))");
  // The same 0, now with another reader, 5, which is between 0 and 3.
  EXPECT_EQ(tree_of({{1, 1, 1, 1, 1, 1}, {{0, 3}, {0, 5}, {1, 2}, {2, 3}, {3, 4}}, {}}),
            "linear(1 2 3 branch(linear(0 branch(linear(5)))))");
  // Nothing is connected.
  EXPECT_EQ(tree_of({{1, 1, 1}, {}, {}}), "branch(linear(0) linear(1))");
}

TEST(DivisionTree, OfRandomGraphs) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random(seed);
    const int n = 1 + static_cast<int>(random() % 12);
    const ForwardSpec spec = random_forward(random, n, 5 + random() % 40, 9, true);
    const ForwardGraph forward = forward_of(spec);
    const DivisionTree tree = division_tree(forward);
    const std::string input = "seed " + std::to_string(seed) + ": " + spec.text();
    std::vector<std::pair<int, int>> edges = spec.edges;
    edges.emplace_back(-1, 0);

    std::vector<int> times_joint(static_cast<size_t>(n), 0);
    for (size_t i = 0; i < tree.nodes.size(); ++i) {
      const DivisionNode& node = tree.nodes[i];
      for (const int joint : node.joints) ++times_joint[static_cast<size_t>(joint)];
      const std::set<int> inner = inside(tree, static_cast<int>(i));
      int64_t cost = 0;
      for (const int v : inner) cost += spec.bytes[static_cast<size_t>(v)];
      EXPECT_EQ(node.cost_bytes, cost) << input;
      std::set<int> all = inner;
      all.insert({node.source, node.target});
      for (const auto& [a, b] : edges) {
        EXPECT_TRUE(all.contains(b) || !inner.contains(a)) << input;
        EXPECT_TRUE(all.contains(a) || !inner.contains(b)) << input;
      }
      if (node.kind != DivisionKind::kComplicated) continue;

      // The largest segments: components that removing two vertices, other than both ends, cuts off from both ends.
      std::vector<std::pair<int, int>> closed;
      for (const auto& edge : edges) {
        if (all.contains(edge.first) && all.contains(edge.second)) closed.push_back(edge);
      }
      closed.emplace_back(node.source, node.target);
      std::set<std::set<int>> segments;
      for (const int u : all) {
        for (const int v : all) {
          if (u >= v || (u == node.source && v == node.target)) continue;
          std::set<int> segment;
          for (const std::set<int>& part : parts_without(all, closed, {u, v})) {
            if (!part.contains(node.source) && !part.contains(node.target)) segment.insert(part.begin(), part.end());
          }
          if (!segment.empty()) segments.insert(segment);
        }
      }
      std::set<std::set<int>> largest;
      for (const std::set<int>& a : segments) {
        const bool inside_other = std::ranges::any_of(
            segments, [&](const std::set<int>& b) { return a != b && std::ranges::includes(b, a); });
        if (!inside_other) largest.insert(a);
      }
      std::set<std::set<int>> children;
      for (const int child : node.children) children.insert(inside(tree, child));
      EXPECT_EQ(children, largest) << input;
    }
    for (int v = 0; v < n; ++v) {
      ASSERT_EQ(times_joint[static_cast<size_t>(v)], v == tree.nodes.front().target ? 0 : 1) << input;
    }
  }
}

TEST(LeastDivision, OfAPathIsLeastCut) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> sizes(1 + random() % 30);
    for (int64_t& size : sizes) size = static_cast<int64_t>(random() % (seed % 2 == 0 ? 5 : 1000));
    const ForwardGraph forward = forward_of(path(sizes));
    std::vector<int> kept = least_division(forward, division_tree(forward)).kept;
    for (int& v : kept) ++v;  // Positions count from 1.
    ASSERT_EQ(kept, least_cut(sizes)) << "seed " << seed << ": " << path(sizes).text();
  }
}

TEST(LeastDivision, OpensABlockThatIsTooLarge) {
  // Two residual blocks of inner size 20 with outputs of size 1, the target last: 0 | 1 2 | 3 | 4 5 | 6 | 7.
  const ForwardSpec spec{
      {1, 10, 10, 1, 10, 10, 1, 1}, {{0, 1}, {0, 3}, {1, 2}, {2, 3}, {3, 4}, {3, 6}, {4, 5}, {5, 6}, {6, 7}}, {}};
  const ForwardGraph forward = forward_of(spec);
  const Cut cut = least_division(forward, division_tree(forward));
  // Keeping 3 leaves 0 1 2 (21) and 4 5 6 (21): 22. Opening the blocks for a bound of 10 keeps 0, 3, 6 and one of ten
  // in each: 33. Keeping 0 and 6 too: 3 + 20 = 23.
  EXPECT_EQ(cut.kept, std::vector<int>{3});
  EXPECT_EQ(cut.kept_sum, 1);
  EXPECT_EQ(cut.largest_inner, 21);

  // One block 1 2 3 4 5 with 3 small: opened, with both its ends 0 and 6 kept, and 3: 1 + 1 + 1 + 20.
  const ForwardSpec inner{
      {1, 10, 10, 1, 10, 10, 1, 1}, {{0, 1}, {0, 6}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}}, {}};
  const ForwardGraph opened = forward_of(inner);
  EXPECT_EQ(least_division(opened, division_tree(opened)), (Cut{{0, 3, 6}, 3, 20}));
}

TEST(LeastDivision, SaysWhatItsChoiceCosts) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const int n = 1 + static_cast<int>(random() % 14);
    const ForwardSpec spec = random_forward(random, n, 5 + random() % 40, 20, seed % 2 == 0);
    const ForwardGraph forward = forward_of(spec);
    const DivisionTree tree = division_tree(forward);
    const Cut cut = least_division(forward, tree);
    const std::string input = "seed " + std::to_string(seed) + ": " + spec.text();
    std::set<int> removed(cut.kept.begin(), cut.kept.end());
    int64_t kept_sum = 0;
    for (const int v : removed) kept_sum += spec.bytes[static_cast<size_t>(v)];
    EXPECT_EQ(cut.kept_sum, kept_sum) << input;
    EXPECT_FALSE(removed.contains(tree.nodes.front().target)) << input;
    removed.insert(tree.nodes.front().target);
    std::set<int> all;
    int64_t whole = 0;
    for (int v = 0; v < n; ++v) {
      all.insert(v);
      whole += v == tree.nodes.front().target ? 0 : spec.bytes[static_cast<size_t>(v)];
    }
    for (const std::set<int>& part : parts_without(all, spec.edges, removed)) {
      int64_t sum = 0;
      for (const int v : part) sum += spec.bytes[static_cast<size_t>(v)];
      EXPECT_LE(sum, cut.largest_inner) << input;
    }
    ASSERT_LE(cut.kept_sum + cut.largest_inner, whole) << input;
  }
}

TEST(PlanDivisionTree, ByHand) {
  // The second example above: 1 2 are recomputed, 4 5 and the target 7 are recorded.
  const ForwardSpec spec{
      {1, 10, 10, 1, 10, 10, 1, 1}, {{0, 1}, {0, 6}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}}, {}};
  const Graph graph(training_step(spec));
  const PlanResult result = plan_division_tree(graph, {});
  EXPECT_EQ(result.status, PlanStatus::kFeasible);
  ASSERT_TRUE(result.schedule);
  std::string runs;
  for (const Step& step : result.schedule->steps) {
    if (step.is_run()) runs += graph.op(step.op()).name + " ";
  }
  EXPECT_EQ(runs, "f0 f1 f2 f3 f4 f5 f6 f7 b7 b6 b5 b4 f1 f2 b3 b2 b1 b0 ");
}

TEST(PlanDivisionTree, IsValid) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const ForwardSpec spec =
        random_forward(random, 1 + static_cast<int>(random() % 20), 3 + random() % 40, 20, seed % 2 == 0);
    const Graph graph(training_step(spec));
    const auto error = verify(graph, *plan_division_tree(graph, {}).schedule);
    ASSERT_FALSE(error) << "seed " << seed << ": " << spec.text() << ": " << error->message;
  }
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    testing::Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 12))}));
    const auto error = verify(graph, *plan_division_tree(graph, {}).schedule);
    ASSERT_FALSE(error) << "seed " << seed << ": " << error->message;
  }
}

TEST(PlanDivisionTree, LargeGraphs) {
  std::mt19937_64 random(1);
  // A graph that is a single complicated node, and a long path of nested skips.
  ForwardSpec tangle;
  ForwardSpec nested = path(std::vector<int64_t>(2000, 1));
  for (int v = 0; v < 1500; ++v) {
    tangle.bytes.push_back(static_cast<int64_t>(random() % 100));
    for (int i = 1; i <= 3 && v - i >= 0; ++i) tangle.edges.emplace_back(v - i, v);
  }
  for (int v = 0; v < 990; ++v) nested.edges.emplace_back(v, 1999 - v);
  for (const ForwardSpec& spec : {tangle, nested}) {
    const Graph graph(training_step(spec));
    EXPECT_FALSE(verify(graph, *plan_division_tree(graph, {}).schedule));
  }
  // Graphs that are too large for the search for segments are cut into runs.
  ForwardSpec wide;
  for (int v = 0; v < 8'000; ++v) {
    wide.bytes.push_back(1);
    if (v > 0) wide.edges.emplace_back(v - 1, v);
    if (v > 1) wide.edges.emplace_back(v - 2, v);
    if (v > 4) wide.edges.emplace_back(v / 2, v);
  }
  const Graph graph(training_step(wide));
  EXPECT_FALSE(verify(graph, *plan_division_tree(graph, {}).schedule));
}

TEST(PlanDivisionTree, Refuses) {
  GraphSpec spec = training_step(path({1, 2}));
  for (Op& op : spec.ops) op.phase = Phase::kForward;
  EXPECT_THROW(plan_division_tree(Graph(spec), {}), NotApplicable);
}

}  // namespace
}  // namespace headroom::internal
