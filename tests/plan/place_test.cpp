#include "headroom/plan/place/place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "headroom/core/error.h"
#include "headroom/core/simulate.h"
#include "headroom/io/json.h"
#include "headroom/plan/place/first_fit.h"
#include "headroom/plan/place/section_search.h"
#include "headroom/plan/place/solver.h"
#include "tests/support/build.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using testing::Random;

std::string describe(const PlaceProblem& problem) {
  std::string text = "alignment " + std::to_string(problem.alignment);
  for (const Block& block : problem.blocks)
    text +=
        ", " + std::to_string(block.bytes) + " in " + std::to_string(block.first) + ".." + std::to_string(block.last);
  return text;
}

/// Returns what is wrong with a solution, by comparing every pair of blocks.
std::string fault_of(const PlaceProblem& problem, const PlaceSolution& solution) {
  if (solution.offsets.size() != problem.blocks.size()) return "not one offset for each block";
  int64_t top = 0;
  for (size_t i = 0; i < problem.blocks.size(); ++i) {
    const Block& a = problem.blocks[i];
    const int64_t begin = solution.offsets[i];
    top = std::max(top, begin + a.bytes);
    if (begin < 0 || begin % problem.alignment != 0) return "offset " + std::to_string(i);
    for (size_t k = 0; k < i; ++k) {
      const Block& b = problem.blocks[k];
      const bool meet = a.first <= b.last && b.first <= a.last;
      if (meet && begin < solution.offsets[k] + b.bytes && solution.offsets[k] < begin + a.bytes)
        return "overlap of " + std::to_string(k) + " and " + std::to_string(i);
    }
  }
  return top == solution.arena_bytes ? "" : "arena";
}

/// Returns the smallest arena, by trying all orders in which blocks can be put down: in some order, each block of a
/// smallest placement is at the lowest offset above those before it that it meets.
int64_t brute_force(const PlaceProblem& problem) {
  std::vector<size_t> order(problem.blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> end(order.size(), 0);  // By position in the order, rounded up.
    int64_t arena = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const Block& a = problem.blocks[order[i]];
      int64_t offset = 0;
      for (size_t k = 0; k < i; ++k) {
        const Block& b = problem.blocks[order[k]];
        if (a.first <= b.last && b.first <= a.last) offset = std::max(offset, end[k]);
      }
      arena = std::max(arena, offset + a.bytes);
      end[i] = (offset + a.bytes + problem.alignment - 1) / problem.alignment * problem.alignment;
    }
    best = std::min(best, arena);
  } while (std::ranges::next_permutation(order).found);
  return best;
}

PlaceProblem random_problem(Random& random, int64_t block_count, int64_t most_bytes, int64_t times) {
  PlaceProblem problem;
  problem.alignment = random.chance(70) ? 1 : random.number(2, 5);
  for (int64_t i = 0; i < block_count; ++i) {
    const int64_t first = random.number(0, times - 1);
    problem.blocks.push_back({random.number(1, most_bytes), first, random.number(first, times - 1)});
  }
  return problem;
}

TEST(Sections, ByHand) {
  // a 0..2, b 1..4, c 3..5: {a, b} at 1, {b, c} at 3
  const Sections sections({{{3, 0, 2}, {4, 1, 4}, {5, 3, 5}}, 4});
  EXPECT_EQ(sections.first, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(sections.last, (std::vector<int32_t>{0, 1, 1}));
  EXPECT_EQ(sections.padded, (std::vector<int64_t>{4, 4, 8}));
  EXPECT_EQ(sections.total_bytes, (std::vector<int64_t>{8, 12}));
  EXPECT_EQ(sections.padding_bytes, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(sections.lower_bound_bytes, 9);  // c on top of b: 4 + 5; a on top of b: 4 + 3
}

TEST(Sections, SumsThatDoNotFit) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(Sections({{{kMost, 0, 0}, {1, 1, 1}}, 1}), TooLarge);
  EXPECT_THROW(Sections({{{5, 0, 0}, {1, 1, 1}}, kMost - 1}), TooLarge);
}

TEST(FirstFit, FillsHoles) {
  // Blocks 0 and 2 are live at time 1, block 1 before; 3 fits under block 2.
  const Sections sections({{{4, 0, 1}, {3, 0, 0}, {2, 1, 1}, {3, 1, 1}}, 1});
  FirstFit first_fit(sections);
  first_fit.place(std::vector<int32_t>{0, 1, 2, 3});
  EXPECT_EQ(first_fit.arena_bytes(), 9);
  first_fit.place(std::vector<int32_t>{1, 3, 0, 2});
  EXPECT_EQ(first_fit.offsets(), (std::vector<int64_t>{3, 0, 7, 0}));
}

TEST(SectionSearch, ProvesThatNothingFits) {
  // Three blocks of 2 and 3 around a block that meets them all: 2+3 at time 0, 3+2 at time 1 and so on.
  const PlaceProblem problem{{{2, 0, 1}, {3, 1, 2}, {2, 2, 3}, {3, 0, 0}, {3, 3, 3}}, 1};
  const Sections sections(problem);
  SectionSearch search(sections);
  const std::vector<int32_t> ranks{0, 1, 2, 3, 4};
  EXPECT_EQ(search.run(5, ranks, 1000, false), SectionSearch::Outcome::kFits);
  EXPECT_EQ(search.run(4, ranks, 1000, false), SectionSearch::Outcome::kDoesNotFit);
  EXPECT_EQ(search.run(5, ranks, 0, true), SectionSearch::Outcome::kNotFound);
}

TEST(SolvePlacement, NoBlocks) {
  const PlaceSolution solution = solve_placement({});
  EXPECT_EQ(solution.arena_bytes, 0);
  EXPECT_EQ(solution.lower_bound_bytes, 0);
}

TEST(SolvePlacement, WhereTheLargestSumIsNotReached) {
  // At most 9 bytes are live at once, at times 2, 3, 5 and 6, where no byte is left over.
  const PlaceProblem problem{
      {{3, 6, 6}, {1, 2, 5}, {1, 0, 1}, {3, 3, 6}, {3, 4, 7}, {4, 7, 7}, {2, 0, 0}, {4, 2, 2}, {4, 0, 3}, {2, 5, 5}},
      1};
  const PlaceSolution solution = solve_placement(problem);
  EXPECT_EQ(fault_of(problem, solution), "");
  EXPECT_EQ(Sections(problem).lower_bound_bytes, 9);
  EXPECT_EQ(solution.arena_bytes, 10);
  EXPECT_EQ(solution.lower_bound_bytes, 10);
  EXPECT_EQ(brute_force(problem), 10);
}

TEST(SolvePlacement, IsOptimalOnSmallProblems) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Random random(seed);
    const int64_t block_count = random.number(1, seed % 10 == 0 ? 8 : 7);
    const PlaceProblem problem = random_problem(random, block_count, 6, random.number(2, 7));
    const PlaceSolution solution = solve_placement(problem);
    ASSERT_EQ(fault_of(problem, solution), "") << "seed " << seed << ": " << describe(problem);
    ASSERT_EQ(solution.arena_bytes, brute_force(problem)) << "seed " << seed << ": " << describe(problem);
    ASSERT_EQ(solution.lower_bound_bytes, solution.arena_bytes) << "seed " << seed << ": " << describe(problem);
  }
}

TEST(SolvePlacement, IsValidOnLargerProblemsAndMoreWorkIsNeverWorse) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const PlaceProblem problem = random_problem(random, random.number(20, 120), seed % 2 == 0 ? 20 : 1'000'000, 60);
    PlaceParams params;
    int64_t last_bytes = std::numeric_limits<int64_t>::max();
    for (const int64_t work : {0, 20'000, 400'000}) {
      params.work_per_block = 0;
      params.least_work = work;
      const PlaceSolution solution = solve_placement(problem, params);
      ASSERT_EQ(fault_of(problem, solution), "") << "seed " << seed << ": " << describe(problem);
      ASSERT_GE(solution.arena_bytes, solution.lower_bound_bytes) << "seed " << seed;
      ASSERT_LE(solution.arena_bytes, last_bytes) << "seed " << seed;
      last_bytes = solution.arena_bytes;
    }
    params.enough_bytes = last_bytes;
    EXPECT_LE(solve_placement(problem, params).arena_bytes, last_bytes + last_bytes / 10) << "seed " << seed;
  }
}

/// The graph and the schedule of docs/formats.md.
Graph tiny() {
  Builder builder("tiny");
  builder.resident("x", 8).value("a", 4).value("loss", 4).value("ga", 4).value("gw", 2);
  builder.op("f1", 5, {"x"}, {"a"});
  builder.op("f2", 3, {"a"}, {"loss"});
  builder.op("b2", 6, {"a", "loss"}, {"ga"});
  builder.op("b1", 6, {"ga", "x"}, {"gw"});
  builder.outputs({"loss", "gw"});
  return builder.graph();
}

TEST(Place, TheExampleOfTheFormat) {
  const Graph graph = tiny();
  const Schedule schedule = testing::steps(graph, "f1 f2 b2 -a b1 -ga");
  const PlaceResult result = place(graph, schedule);
  EXPECT_TRUE(result.is_optimal());
  std::string text = write_json(graph, result.placement);
  std::string expected =
      R"({"format": "headroom.placement/1", "graph": "tiny", "alignment": 1, "arena_bytes": 12,
 "offsets": [{"step": 0, "value": "a", "offset": 0}, {"step": 1, "value": "loss", "offset": 4}, {"step": 2, "value": "ga", "offset": 8}, {"step": 4, "value": "gw", "offset": 0}]})";
  // The same but for blanks and line breaks.
  for (std::string* form : {&text, &expected}) std::erase_if(*form, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(text, expected);
}

TEST(Place, AlignedOffsets) {
  const Graph graph = tiny();
  const Schedule schedule = testing::steps(graph, "f1 f2 b2 -a b1 -ga");
  const PlaceResult result = place(graph, schedule, {.alignment = 512});
  EXPECT_EQ(verify_placement(graph, schedule, result.placement), std::nullopt);
  EXPECT_EQ(result.placement.arena_bytes, 2 * 512 + 4);  // The topmost buffer ends at its own size.
  EXPECT_TRUE(result.is_optimal());
  EXPECT_THROW(place(graph, schedule, {.alignment = std::numeric_limits<int64_t>::max()}), TooLarge);
}

TEST(Place, IsValidAndAtLeastThePeakOnRandomGraphs) {
  int negative_count = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(2, 9))}));
    const Schedule schedule = store_all(graph);
    const int64_t alignment = random.chance(50) ? 1 : random.number(2, 9);
    const PlaceResult result = place(graph, schedule, {.alignment = alignment});
    ASSERT_EQ(verify_placement(graph, schedule, result.placement), std::nullopt) << "seed " << seed;
    const bool has_negative = std::ranges::any_of(graph.ops(), [](const Op& op) { return op.workspace_bytes < 0; });
    negative_count += has_negative ? 1 : 0;
    // A placement does not count on workspaces below 0, so its arena is never below the peak either.
    ASSERT_GE(result.placement.arena_bytes, simulate(graph, schedule).peak_bytes - graph.resident_bytes())
        << "seed " << seed;
  }
  EXPECT_GT(negative_count, 10);
}

}  // namespace
}  // namespace headroom::internal
