#include "headroom/core/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "headroom/core/lifetimes.h"
#include "headroom/core/memory.h"
#include "headroom/core/simulate.h"
#include "tests/support/build.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using testing::steps;

/// The graph of docs/formats.md, with a workspace of `workspace` bytes for b2.
Builder tiny(int64_t workspace = 0) {
  Builder builder("tiny");
  builder.resident("x", 8).value("a", 4).value("loss", 4).value("ga", 4).value("gw", 2);
  builder.op("f1", 5, {"x"}, {"a"});
  builder.op("f2", 3, {"a"}, {"loss"});
  builder.op("b2", 6, {"a", "loss"}, {"ga"}).workspace_bytes = workspace;
  builder.op("b1", 6, {"ga", "x"}, {"gw"});
  builder.outputs({"loss", "gw"});
  return builder;
}

constexpr const char* kTinySteps = "f1 f2 b2 -a b1 -ga";

/// A placement with offsets in the order of find_buffers().
Placement placement(const Graph& graph, const Schedule& schedule, int64_t arena_bytes,
                    const std::vector<int64_t>& offsets) {
  Placement result;
  result.arena_bytes = arena_bytes;
  const std::vector<Buffer> buffers = find_buffers(graph, schedule);
  EXPECT_EQ(buffers.size(), offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i)
    result.offsets.push_back({buffers[i].first_step, buffers[i].value, offsets[i]});
  return result;
}

TEST(Buffers, ByHand) {
  const Builder builder = tiny(1);
  const Graph graph = builder.graph();
  const std::vector<Buffer> expected = {{builder.id("a"), 4, 0, 2},  // dropped in step 3
                                        {builder.id("loss"), 4, 1, 5},
                                        {builder.id("ga"), 4, 2, 4},
                                        {std::nullopt, 1, 2, 2},
                                        {builder.id("gw"), 2, 4, 5}};
  EXPECT_EQ(find_buffers(graph, steps(graph, kTinySteps)), expected);
  EXPECT_TRUE(find_buffers(graph, {}).empty());
}

TEST(Buffers, ReplacedCopiesStayUntilTheEndOfTheRun) {
  const Builder builder = tiny();
  const Graph graph = builder.graph();
  const std::vector<Buffer> expected = {{builder.id("a"), 4, 0, 1}, {builder.id("a"), 4, 1, 1}};
  EXPECT_EQ(find_buffers(graph, steps(graph, "f1 f1")), expected);
}

TEST(Buffers, ARunInPlaceTakesTheBufferOver) {
  // r writes a(4) and the tape t(2), which holds a; k writes g(2) in the place of t; z is 0 bytes.
  Builder builder("tape");
  builder.resident("x", 0).value("a", 4).value("t", 2).value("g", 2).value("z", 0);
  builder.op("r", 1, {"x"}, {"a", "t"}).workspace_bytes = -3;
  builder.op("k", 1, {"t"}, {"g", "z"}).overwrites = {builder.id("t")};
  builder.holds("t", {"a"}).outputs({"g"});
  const Graph graph = builder.graph();
  // steps:                            0 1  2   3
  const Schedule schedule = steps(graph, "r -a k/t -z");
  // t holds a until the moment of k is over; g has the buffer of t.
  const std::vector<Buffer> expected = {{builder.id("a"), 4, 0, 2}, {builder.id("t"), 2, 0, 3}};
  EXPECT_EQ(find_buffers(graph, schedule), expected);
  EXPECT_EQ(verify_placement(graph, schedule, placement(graph, schedule, 6, {2, 0})), std::nullopt);
}

TEST(VerifyPlacement, AcceptsTheExampleOfTheFormat) {
  const Graph graph = tiny().graph();
  const Schedule schedule = steps(graph, kTinySteps);
  const Placement valid = placement(graph, schedule, 12, {0, 4, 8, 0});
  EXPECT_EQ(verify_placement(graph, schedule, valid), std::nullopt);
  Placement reordered = valid;
  std::ranges::reverse(reordered.offsets);
  EXPECT_EQ(verify_placement(graph, schedule, reordered), std::nullopt);
  EXPECT_EQ(verify_placement(graph, {}, {}),
            "the schedule is invalid at step 0: the step ends without its output, value 'loss'");
}

struct Fault {
  const char* name;
  void (*plant)(Placement&);
  const char* message;
};

class VerifyPlacementFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(VerifyPlacementFaults, AreFound) {
  const Graph graph = tiny(1).graph();
  const Schedule schedule = steps(graph, kTinySteps);
  // a 0..4, loss 4..8, ga 8..12, the workspace of b2 12..13, gw 0..2
  Placement planted = placement(graph, schedule, 13, {0, 4, 8, 12, 0});
  ASSERT_EQ(verify_placement(graph, schedule, planted), std::nullopt);
  GetParam().plant(planted);
  EXPECT_EQ(verify_placement(graph, schedule, planted).value_or(""), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, VerifyPlacementFaults,
    ::testing::Values(
        Fault{
            "overlap", [](Placement& p) { p.offsets[1].offset = 3; },
            "offsets[0] ('a' of step 0) with 4 bytes at 0 and offsets[1] ('loss' of step 1) with 4 bytes at 3 overlap "
            "in step 1"},
        Fault{
            "workspace", [](Placement& p) { p.offsets[3].offset = 11; },
            "offsets[2] ('ga' of step 2) with 4 bytes at 8 and offsets[3] (the workspace of step 2) with 1 bytes at 11 "
            "overlap in step 2"},
        Fault{"above", [](Placement& p) { p.arena_bytes = 12; },
              "offsets[3] (the workspace of step 2) with 1 bytes at 12 ends above the arena of 12 bytes"},
        Fault{"far", [](Placement& p) { p.offsets[4].offset = std::numeric_limits<int64_t>::max(); },
              "offsets[4] ('gw' of step 4) with 2 bytes at 9223372036854775807 ends above the arena of 13 bytes"},
        Fault{"negative", [](Placement& p) { p.offsets[4].offset = -1; },
              "offsets[4] ('gw' of step 4) with 2 bytes at -1: the offset must be a multiple of 1"},
        Fault{"alignment", [](Placement& p) { p.alignment = 8; },
              "offsets[1] ('loss' of step 1) with 4 bytes at 4: the offset must be a multiple of 8"},
        Fault{"no alignment", [](Placement& p) { p.alignment = 0; }, "alignment must be at least 1, found 0"},
        Fault{"missing", [](Placement& p) { p.offsets.pop_back(); }, "no entry for 'gw' of step 4"},
        Fault{"missing workspace", [](Placement& p) { p.offsets.erase(p.offsets.begin() + 3); },
              "no entry for the workspace of step 2"},
        Fault{"twice", [](Placement& p) { p.offsets.push_back(p.offsets[2]); },
              "offsets[2] ('ga' of step 2) and offsets[5] ('ga' of step 2) are for the same buffer"},
        Fault{"no step", [](Placement& p) { p.offsets[0].step = 6; },
              "offsets[0] ('a' of step 6): the schedule has 6 steps"},
        Fault{"a drop", [](Placement& p) { p.offsets[0].step = 3; },
              "offsets[0] ('a' of step 3): the step is not a run"},
        Fault{"not written", [](Placement& p) { p.offsets[0].step = 1; },
              "offsets[0] ('a' of step 1): 'f2' does not write this value"},
        Fault{"no workspace", [](Placement& p) { p.offsets[3].step = 1; },
              "offsets[3] (the workspace of step 1): 'f2' has no workspace above 0"},
        Fault{"no value", [](Placement& p) { p.offsets[0].value = value_id(9); },
              "offsets[0]: the graph has no such value"}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::erase(name, ' ');
      return name;
    });

TEST(VerifyPlacement, EntriesOfWhatHasNoAddress) {
  Builder builder("over");
  builder.resident("x", 0).value("a", 4).value("b", 4).value("z", 0);
  builder.op("f", 1, {"x"}, {"a", "z"});
  builder.op("g", 1, {"a"}, {"b"}).overwrites = {builder.id("a")};
  builder.outputs({"b"});
  const Graph graph = builder.graph();
  const Schedule schedule = steps(graph, "f g/a");
  Placement planted = placement(graph, schedule, 4, {0});
  planted.offsets.push_back({1, builder.id("b"), 0});
  EXPECT_EQ(verify_placement(graph, schedule, planted),
            "offsets[1] ('b' of step 1): 'g' runs in place, so its first output has the address of 'a'");
  planted.offsets.back() = {0, builder.id("z"), 0};
  EXPECT_EQ(verify_placement(graph, schedule, planted),
            "offsets[1] ('z' of step 0): a value of 0 bytes has no address");
}

/// Returns random steps that break no rule, and then the ops of store-all that may run.
Schedule random_schedule(testing::Random& random, const Graph& graph) {
  Schedule schedule;
  Memory memory(graph);
  const auto append = [&](const Step& step) {
    if (memory.find_fault(step)) return;
    memory.apply(step);
    schedule.steps.push_back(step);
  };
  for (int i = 0; i < 40; ++i) {
    const OpId op = op_id(static_cast<size_t>(random.number(0, std::ssize(graph.ops()) - 1)));
    const std::vector<ValueId>& overwrites = graph.op(op).overwrites;
    if (random.chance(25))
      append(Step::drop(value_id(static_cast<size_t>(random.number(0, std::ssize(graph.values()) - 1)))));
    else if (!overwrites.empty() && random.chance(60))
      append(Step::run_over(op, overwrites.front()));
    else
      append(Step::run(op));
  }
  for (const OpId op : base_ops(graph)) append(Step::run(op));
  return schedule;
}

/// Stacks all buffers of a schedule: none has the memory of another.
Placement stacked(const Graph& graph, const Schedule& schedule) {
  Placement result;
  for (const Buffer& buffer : find_buffers(graph, schedule)) {
    result.offsets.push_back({buffer.first_step, buffer.value, result.arena_bytes});
    result.arena_bytes += buffer.bytes;
  }
  return result;
}

// The entries that find_buffers() makes are those that the literal check asks for, and the check finds an overlap of two
// buffers exactly where their lifetimes meet.
TEST(VerifyPlacement, AgreesWithBuffersOnRandomSchedules) {
  int valid_count = 0;
  int in_place_count = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    testing::Random random(seed);
    const Graph graph(testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(2, 6))}));
    const Schedule schedule = random_schedule(random, graph);
    if (verify(graph, schedule)) continue;
    ++valid_count;
    in_place_count += static_cast<int>(std::ranges::count_if(schedule.steps, &Step::is_over));
    const std::vector<Buffer> buffers = find_buffers(graph, schedule);
    const Placement valid = stacked(graph, schedule);
    ASSERT_EQ(verify_placement(graph, schedule, valid), std::nullopt) << "seed " << seed;
    for (size_t i = 0; i < buffers.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        Placement planted = valid;
        planted.offsets[i].offset = valid.arena_bytes;
        planted.offsets[k].offset = valid.arena_bytes;
        planted.arena_bytes += std::max(buffers[i].bytes, buffers[k].bytes);
        const bool meet =
            buffers[i].first_step <= buffers[k].last_step && buffers[k].first_step <= buffers[i].last_step;
        ASSERT_EQ(verify_placement(graph, schedule, planted).has_value(), meet)
            << "seed " << seed << ": " << k << ", " << i;
      }
    }
    // The largest sum of what is live at once is the peak without resident values, but for workspaces below 0.
    const Simulation simulation = simulate(graph, schedule);
    for (size_t s = 0; s < schedule.steps.size(); ++s) {
      if (!schedule.steps[s].is_run()) continue;
      int64_t live_bytes = graph.resident_bytes();
      for (const Buffer& buffer : buffers)
        if (buffer.first_step <= s && s <= buffer.last_step) live_bytes += buffer.bytes;
      const int64_t workspace = graph.op(schedule.steps[s].op()).workspace_bytes;
      ASSERT_EQ(live_bytes + std::min<int64_t>(workspace, 0), simulation.moment_bytes[s]) << "seed " << seed;
    }
  }
  EXPECT_GT(valid_count, 200);
  EXPECT_GT(in_place_count, 100);
}

}  // namespace
}  // namespace headroom::internal
