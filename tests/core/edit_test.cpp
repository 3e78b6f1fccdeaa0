#include "headroom/core/edit.h"

#include <gtest/gtest.h>

#include "headroom/core/chain.h"
#include "headroom/core/error.h"
#include "headroom/core/simulate.h"
#include "tests/support/random.h"

namespace headroom {
namespace {

using testing::Random;
using Handle = ScheduleEditor::Handle;

void expect_as_simulated(const Graph& graph, const ScheduleEditor& editor, const std::string& where) {
  const Schedule schedule = editor.schedule();
  const Simulation simulation = simulate(graph, schedule);
  ASSERT_EQ(editor.size(), schedule.steps.size()) << where;
  ASSERT_EQ(editor.valid(), !simulation.error.has_value())
      << where << (simulation.error ? simulation.error->message : std::string());
  if (!editor.valid()) return;
  ASSERT_EQ(editor.peak_bytes(), simulation.peak_bytes) << where;
  ASSERT_EQ(editor.time_ns(), simulation.time_ns) << where;
  size_t position = 0;
  for (Handle handle = editor.first(); handle != ScheduleEditor::kEnd; handle = editor.next(handle), ++position) {
    ASSERT_EQ(editor.position(handle), position) << where;
    if (editor.step(handle).is_run()) {
      ASSERT_EQ(editor.moment_bytes(handle), simulation.moment_bytes[position]) << where;
    }
  }
  if (simulation.peak_step) {
    ASSERT_EQ(editor.position(editor.peak_step()), *simulation.peak_step) << where;
  }
}

Handle handle_at(const ScheduleEditor& editor, int64_t position) {
  Handle handle = editor.first();
  while (position-- > 0) handle = editor.next(handle);
  return handle;
}

Step random_step(const Graph& graph, Random& random) {
  const OpId op = op_id(static_cast<size_t>(random.number(0, std::ssize(graph.ops()) - 1)));
  if (random.chance(40))
    return Step::drop(value_id(static_cast<size_t>(random.number(0, std::ssize(graph.values()) - 1))));
  if (random.chance(30) && !graph.op(op).inputs.empty()) return Step::run_over(op, graph.op(op).inputs.front());
  return Step::run(op);
}

/// Random changes, most of which make the schedule invalid, each taken back by its opposite before the next.
void edit_at_random(const Graph& graph, uint64_t seed, int edits) {
  Random random(seed);
  ScheduleEditor editor(graph, store_all(graph));
  const std::string where = "seed " + std::to_string(seed);
  expect_as_simulated(graph, editor, where);
  for (int i = 0; i < edits && !::testing::Test::HasFatalFailure(); ++i) {
    const auto size = static_cast<int64_t>(editor.size());
    if (random.chance(50) || size == 0) {
      const int64_t position = random.number(0, size);
      const Handle before = position == size ? ScheduleEditor::kEnd : handle_at(editor, position);
      const Handle added = editor.insert(before, random_step(graph, random));
      expect_as_simulated(graph, editor, where + ", inserted at " + std::to_string(position));
      if (editor.valid() && random.chance(60)) continue;
      editor.erase(added);
    } else {
      const Handle removed = handle_at(editor, random.number(0, size - 1));
      const Step step = editor.step(removed);
      const Handle before = editor.next(removed);
      editor.erase(removed);
      expect_as_simulated(graph, editor, where + ", erased");
      if (editor.valid() && random.chance(60)) continue;
      editor.insert(before, step);
    }
    expect_as_simulated(graph, editor, where + ", taken back");
  }
}

TEST(ScheduleEditor, AgreesWithSimulateOnRandomGraphs) {
  for (uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const int ops = static_cast<int>(random.number(1, 7));
    edit_at_random(Graph(testing::random_graph(random, {.forward_ops = ops})), seed, 60);
  }
}

TEST(ScheduleEditor, AgreesWithSimulateOnRandomChains) {
  for (uint64_t seed = 1; seed <= 200 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    edit_at_random(to_graph(testing::random_chain(random, static_cast<int>(random.number(1, 6)))), seed, 60);
  }
}

TEST(ScheduleEditor, MovesARecomputation) {
  // x(1, resident) -> f -> a(5); f2: a -> b(2); b2: b -> gb(1); b1: a, gb -> g(1).
  GraphSpec spec;
  spec.name = "two";
  spec.values = {
      {"x", 1, true, {}}, {"a", 5, false, {}}, {"b", 2, false, {}}, {"gb", 1, false, {}}, {"g", 1, false, {}}};
  const auto op = [](const char* name, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    Op result{.name = name, .inputs = std::move(inputs), .outputs = std::move(outputs), .overwrites = {}};
    result.time_ns = 10;
    return result;
  };
  constexpr ValueId x{0}, a{1}, b{2}, gb{3}, g{4};
  spec.ops = {op("f", {x}, {a}), op("f2", {a}, {b}), op("b2", {b}, {gb}), op("b1", {a, gb}, {g})};
  spec.outputs = {g};
  const Graph graph(spec);
  // Plain: the largest moment is b2: 1 + 5 + 2 + 1 = 9.
  ScheduleEditor editor(graph, store_all(graph));
  EXPECT_EQ(editor.peak_bytes(), 9);
  EXPECT_EQ(editor.position(editor.peak_step()), 2U);
  EXPECT_EQ(editor.time_ns(), 40);
  // Give a up after f2 and make it again before b1: f2 has 1+5+2 = 8, f again 1+1+5 = 7, b1 1+1+5+1 = 8.
  const Handle b2 = handle_at(editor, 2);
  const Handle b1 = handle_at(editor, 4);
  editor.insert(b2, Step::drop(a));
  EXPECT_FALSE(editor.valid());
  editor.insert(b1, Step::run(OpId{0}));
  EXPECT_TRUE(editor.valid());
  EXPECT_EQ(editor.peak_bytes(), 8);
  EXPECT_EQ(editor.time_ns(), 50);
  EXPECT_EQ(editor.touching(a).size(), 6U);  // f, f2, drop, f, b1, drop
}

TEST(ScheduleEditor, EmptySchedule) {
  const Graph graph(GraphSpec{"none", {{"x", 3, true, {}}}, {}, {}});
  const ScheduleEditor editor(graph, Schedule{});
  EXPECT_TRUE(editor.valid());
  EXPECT_EQ(editor.peak_bytes(), 3);
  EXPECT_EQ(editor.peak_step(), ScheduleEditor::kEnd);
  EXPECT_EQ(editor.first(), ScheduleEditor::kEnd);
}

TEST(ScheduleEditor, RefusesSumsThatDoNotFit) {
  GraphSpec spec{"big", {{"x", 1, true, {}}, {"a", int64_t{1} << 62, false, {}}}, {}, {ValueId{1}}};
  spec.ops.push_back(Op{.name = "f", .inputs = {ValueId{0}}, .outputs = {ValueId{1}}, .overwrites = {}});
  const Graph graph(spec);
  ScheduleEditor editor(graph, Schedule{{Step::run(OpId{0})}});
  EXPECT_THROW(editor.insert(ScheduleEditor::kEnd, Step::run(OpId{0})), InvalidInput);
  EXPECT_TRUE(editor.valid());
  EXPECT_EQ(editor.peak_bytes(), (int64_t{1} << 62) + 1);
}

}  // namespace
}  // namespace headroom
