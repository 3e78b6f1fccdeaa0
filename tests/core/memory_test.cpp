#include "headroom/core/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/chain.h"
#include "headroom/core/lifetimes.h"
#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "tests/claims/inputs.h"
#include "tests/support/build.h"
#include "tests/support/memory_rules.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::MemoryRules;
using testing::MemoryState;
using testing::Random;
using testing::Replay;
using testing::steps;

/// The example of memory.h: r writes a(4) and t(1), t holds a; b reads t and writes g(2).
Graph tape_graph() {
  Builder builder("tape");
  builder.value("a", 4).value("t", 1).value("g", 2);
  builder.op("r", 1, {}, {"a", "t"});
  builder.op("b", 1, {"t"}, {"g"});
  builder.holds("t", {"a"}).outputs({"g"});
  return builder.graph();
}

TEST(Memory, FollowsTheExampleOfItsHeader) {
  const Graph graph = tape_graph();
  Memory memory(graph);
  std::vector<int64_t> moments;
  std::vector<int64_t> after;
  std::vector<std::vector<Memory::Copy>> freed;
  for (const Step& step : steps(graph, "r -a r b -t").steps) {
    ASSERT_FALSE(memory.find_fault(step));
    if (step.is_run()) moments.push_back(*memory.find_moment_bytes(step));
    memory.apply(step);
    after.push_back(memory.bytes());
    freed.emplace_back(memory.freed().begin(), memory.freed().end());
  }
  EXPECT_THAT(moments, ElementsAre(5, 10, 7));
  EXPECT_THAT(after, ElementsAre(5, 5, 5, 7, 6));
  EXPECT_THAT(freed, ElementsAre(ElementsAre(), ElementsAre(), ElementsAre(1, 0), ElementsAre(), ElementsAre(3)));
  EXPECT_EQ(memory.copy_count(), 5);
  EXPECT_EQ(memory.held_only_count(), 0);
}

/// Returns a random step that breaks no rule, or nothing if no attempt finds one.
std::optional<Step> random_allowed_step(Random& random, const Graph& graph, const MemoryRules& rules,
                                        const MemoryState& state) {
  for (int attempt = 0; attempt < 60; ++attempt) {
    Step step = Step::drop(value_id(static_cast<size_t>(random.number(0, std::ssize(graph.values()) - 1))));
    if (random.chance(70)) {
      const OpId op = op_id(static_cast<size_t>(random.number(0, std::ssize(graph.ops()) - 1)));
      const std::vector<ValueId>& over = graph.op(op).overwrites;
      const bool in_place = !over.empty() && random.chance(70);
      step = in_place ? Step::run_over(op, over[static_cast<size_t>(random.number(0, std::ssize(over) - 1))])
                      : Step::run(op);
    }
    if (rules.broken_rules(state, step).empty()) return step;
  }
  return std::nullopt;
}

Step random_step(Random& random, const Graph& graph) {
  const ValueId value = value_id(static_cast<size_t>(random.number(0, std::ssize(graph.values()) - 1)));
  if (random.chance(40)) return Step::drop(value);
  const OpId op = op_id(static_cast<size_t>(random.number(0, std::ssize(graph.ops()) - 1)));
  return random.chance(60) ? Step::run_over(op, value) : Step::run(op);
}

/// Returns up to `length` valid steps. Half of the schedules may end early, with three random steps, valid or not.
Schedule random_schedule(Random& random, const Graph& graph, size_t length) {
  const MemoryRules rules(graph);
  MemoryState state;
  Schedule schedule;
  const bool may_break = random.chance(50);
  while (schedule.steps.size() < length) {
    const std::optional<Step> step = random_allowed_step(random, graph, rules, state);
    if (!step || (may_break && random.chance(5))) {
      for (int i = 0; i < 3; ++i) schedule.steps.push_back(random_step(random, graph));
      return schedule;
    }
    rules.apply(state, *step);
    schedule.steps.push_back(*step);
  }
  return schedule;
}

struct Case {
  Graph graph;
  Schedule schedule;
  std::string text;  ///< description for messages
};

Case random_case(uint64_t seed) {
  Random random(seed);
  testing::Input input = testing::random_input(seed);
  if (seed % 4 == 1)
    input = {testing::random_graph(random, {.forward_ops = static_cast<int>(random.number(1, 7))}), {}};
  Graph graph = input.chain ? to_graph(*input.chain) : Graph(input.graph);
  Schedule schedule = random_schedule(random, graph, static_cast<size_t>(random.number(0, 40)));
  std::string text = "seed " + std::to_string(seed) + "\n" + to_text(graph) + to_text(graph, schedule);
  return {std::move(graph), std::move(schedule), std::move(text)};
}

constexpr uint64_t kSeeds = 6000;

/// Counts how often the random cases have used each rule.
struct Met {
  int valid = 0;
  int over = 0;
  int negative = 0;
  std::vector<std::string> errors;  ///< the distinct ends of messages
};

void expect_as_by_rules(const Case& tested, Met& met) {
  const auto& [graph, schedule, text] = tested;
  const Replay expected = testing::replay(graph, schedule);
  const Simulation simulation = simulate(graph, schedule);
  ASSERT_EQ(simulation.moment_bytes, expected.moment_bytes) << text;
  ASSERT_EQ(simulation.after_bytes, expected.after_bytes) << text;
  ASSERT_EQ(simulation.time_ns, expected.time_ns) << text;
  ASSERT_EQ(!simulation.error, expected.is_valid())
      << text << (simulation.error ? simulation.error->message : expected.errors[0]);
  if (simulation.error) {
    ASSERT_EQ(simulation.error->step, expected.error_step) << text;
    ASSERT_THAT(expected.errors, Contains(simulation.error->message)) << text;
    const std::string rule = simulation.error->message.substr(simulation.error->message.rfind(": ") + 1);
    if (std::ranges::find(met.errors, rule) == met.errors.end()) met.errors.push_back(rule);
    if (simulation.error->step < schedule.steps.size()) return;
  }
  ASSERT_EQ(simulation.peak_bytes, expected.peak_bytes) << text;
  ASSERT_EQ(lifetimes(graph, schedule), expected.lifetimes) << text;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    std::vector<ValueId> alive;
    for (size_t v = 0; v < graph.values().size(); ++v)
      if (std::ranges::any_of(expected.lifetimes, [&](const Lifetime& life) {
            return life.value == value_id(v) && life.first_step <= i && i <= life.last_step;
          }))
        alive.push_back(value_id(v));
    ASSERT_EQ(alive_during(graph, schedule, i), alive) << text << "step " << i;
    met.over += schedule.steps[i].is_over() ? 1 : 0;
    met.negative += schedule.steps[i].is_run() && graph.op(schedule.steps[i].op()).workspace_bytes < 0 ? 1 : 0;
  }
  met.valid += simulation.error ? 0 : 1;
}

TEST(Memory, SimulateAndLifetimesFollowTheRules) {
  Met met;
  for (uint64_t seed = 0; seed < kSeeds && !HasFatalFailure(); ++seed) expect_as_by_rules(random_case(seed), met);
  EXPECT_GT(met.valid, 500);
  EXPECT_GT(met.over, 1000);
  EXPECT_GT(met.negative, 1000);
  // A drop of a resident value and of one that is not alive, a read, a second run, four ways to run in place, outputs.
  EXPECT_GE(met.errors.size(), 9U) << ::testing::PrintToString(met.errors);
}

/// The observable state of a tracker without the numbers of copies.
void expect_equal(const Memory& memory, const Memory& expected, const Graph& graph, const std::string& text) {
  ASSERT_EQ(memory.bytes(), expected.bytes()) << text;
  ASSERT_EQ(memory.held_only_count(), expected.held_only_count()) << text;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    ASSERT_EQ(memory.is_alive(value_id(v)), expected.is_alive(value_id(v))) << text;
    ASSERT_EQ(memory.is_held(value_id(v)), expected.is_held(value_id(v))) << text;
  }
}

TEST(Memory, UndoTakesAStepBack) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFatalFailure(); ++seed) {
    const auto [graph, schedule, text] = random_case(seed);
    Random random(seed);
    const MemoryRules rules(graph);
    MemoryState state;
    Memory memory(graph);
    Memory untouched(graph);
    for (const Step& step : schedule.steps) {
      if (untouched.find_fault(step)) break;
      for (int i = 0; i < 3; ++i) {
        const std::optional<Step> trial = random_allowed_step(random, graph, rules, state);
        if (!trial) break;
        memory.apply(*trial);
        memory.undo();
        expect_equal(memory, untouched, graph, text);
        ASSERT_EQ(memory.copy_count(), untouched.copy_count()) << text;
      }
      ASSERT_FALSE(memory.find_fault(step)) << text;
      memory.apply(step);
      untouched.apply(step);
      rules.apply(state, step);
      ASSERT_THAT(memory.freed(), ::testing::ElementsAreArray(untouched.freed())) << text;
      expect_equal(memory, untouched, graph, text);
    }
  }
}

/// Returns a new tracker with the same live copies.
Memory rebuilt(const Memory& memory, const Graph& graph, const Schedule& schedule, size_t step_count) {
  Memory result(graph);
  for (size_t i = 0; i < step_count; ++i)
    if (schedule.steps[i].is_run()) result.restore_run(schedule.steps[i].op());
  std::vector<Memory::Copy> number(static_cast<size_t>(memory.copy_count()), Memory::kNone);
  const auto is_added = [&](Memory::Copy copy) { return copy < 0 || number[static_cast<size_t>(copy)] >= 0; };
  for (bool changed = true; changed;) {
    changed = false;
    for (Memory::Copy copy = 0; copy < memory.copy_count(); ++copy) {
      if (!memory.is_live(copy) || is_added(copy) || !std::ranges::all_of(memory.held_by(copy), is_added)) continue;
      std::vector<Memory::Copy> held;
      for (const Memory::Copy other : memory.held_by(copy))
        held.push_back(other < 0 ? other : number[static_cast<size_t>(other)]);
      const ValueId id = memory.value(copy);
      number[static_cast<size_t>(copy)] = result.restore(id, memory.current_copy(id) == copy, held);
      changed = true;
    }
  }
  return result;
}

TEST(Memory, ContinuesFromARestoredState) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFatalFailure(); ++seed) {
    const auto [graph, schedule, text] = random_case(seed);
    const size_t restored_at = schedule.steps.size() / 2;
    Memory memory(graph);
    Memory restored(graph);
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
      if (i == restored_at) restored = rebuilt(memory, graph, schedule, i);
      const std::optional<Fault> fault = memory.find_fault(schedule.steps[i]);
      if (i >= restored_at) {
        expect_equal(restored, memory, graph, text);
        ASSERT_EQ(restored.find_fault(schedule.steps[i]).has_value(), fault.has_value()) << text;
      }
      if (fault) break;
      memory.apply(schedule.steps[i]);
      if (i >= restored_at) restored.apply(schedule.steps[i]);
    }
  }
}

TEST(Memory, FindsNoMomentThatDoesNotFit) {
  Builder builder("big");
  builder.value("a", int64_t{1} << 62).value("b", 0);
  builder.op("f", 1, {}, {"a"}).workspace_bytes = (int64_t{1} << 62) - 1;
  builder.op("g", 1, {}, {"b"}).workspace_bytes = 0;
  builder.outputs({"a"});
  const Graph graph = builder.graph();
  Memory memory(graph);
  EXPECT_EQ(memory.find_moment_bytes(Step::run(OpId{0})), INT64_MAX);
  memory.apply(Step::run(OpId{0}));
  EXPECT_EQ(memory.find_moment_bytes(Step::run(OpId{0})), std::nullopt);
  EXPECT_EQ(memory.find_moment_bytes(Step::run(OpId{1})), int64_t{1} << 62);
}

/// Tests the reference with values derived by hand.
TEST(MemoryRules, FindWhatIsWrong) {
  const Graph graph = parse_graph_text(
      "graph g\n"
      "op f 2 once workspace=3: -> a=4\n"
      "op g 1 over=a: a -> b=4\n"
      "outputs b\n");
  const auto errors = [&](const char* schedule) {
    return testing::replay(graph, parse_schedule_text(schedule, graph)).errors;
  };
  EXPECT_THAT(errors("f g/a"), ElementsAre());
  EXPECT_THAT(errors("g"), ElementsAre("run 'g', value 'a': reads a value that is not alive"));
  EXPECT_THAT(errors("f f"), ElementsAre("run 'f': runs an op again that may run only once"));
  EXPECT_THAT(errors("f -a -a"), ElementsAre("drop, value 'a': drops a value that is not alive"));
  EXPECT_THAT(errors("f g g/a"),
              ElementsAre("run 'g', value 'b': runs in place although the op's first output is alive already"));
  EXPECT_THAT(errors("f"), ElementsAre("the step ends without its output, value 'b'"));
  const Replay good = testing::replay(graph, parse_schedule_text("f g -a", graph));
  EXPECT_THAT(good.moment_bytes, ElementsAre(7, 8, 8));
  EXPECT_THAT(good.after_bytes, ElementsAre(4, 8, 4));
  EXPECT_EQ(good.peak_bytes, 8);
  EXPECT_EQ(good.time_ns, 3);
  EXPECT_THAT(good.lifetimes, ElementsAre(Lifetime{ValueId{0}, 0, 2}, Lifetime{ValueId{1}, 1, 2}));
}

}  // namespace
}  // namespace headroom::internal
