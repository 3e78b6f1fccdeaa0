// Valid graphs that are difficult for planners: alternatives that read values computed from their own output, or values that
// only they need, negative workspaces, held copies, and ops that only an alternative needs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "headroom/core/simulate.h"
#include "headroom/io/text.h"
#include "headroom/plan/auto/auto.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/bounds/time_bound.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/planners.h"
#include "tests/support/random.h"

namespace headroom::internal {
namespace {

using testing::Random;

Plan plan_by(const char* planner, const Problem& problem, int64_t budget_bytes, bool keep_order = false) {
  PlanRequest request{budget_bytes, {}};
  request.limits.keep_order = keep_order;
  request.limits.threads = 1;
  return make_plan(get_planner(planner), problem, request);
}

/// Returns whether first runs follow the base order as docs/formats.md words it: of two groups of alternatives that every
/// schedule runs, the one with all ops listed before all ops of the other runs first.
bool keeps_base_order(const Graph& graph, const Schedule& schedule) {
  const NeededGroups groups = find_needed_groups(graph);
  std::vector<size_t> first_step(groups.ops.size(), schedule.steps.size());
  for (size_t i = schedule.steps.size(); i-- > 0;)
    if (schedule.steps[i].is_run())
      first_step[static_cast<size_t>(groups.group_of_op[index(schedule.steps[i].op())])] = i;
  for (size_t g = 0; g < groups.ops.size(); ++g)
    for (size_t h = 0; h < groups.ops.size(); ++h)
      if (groups.needed[g] != 0 && groups.needed[h] != 0 && groups.ops[g].back() < groups.ops[h].front() &&
          first_step[g] > first_step[h])
        return false;
  return true;
}

/// Returns a path of `count` forward ops, each read by its backward op, with `more` lines of alternatives after the second.
Graph path_with(int count, const std::string& after_second, const std::string& at_end) {
  std::string text = "graph path\nvalue x 1 resident\n";
  const auto name = [](const char* kind, int i) { return kind + std::to_string(i); };
  for (int i = 0; i < count; ++i) {
    text += "op " + name("f", i) + " 10: " + (i == 0 ? "x" : name("a", i - 1)) + " -> " + name("a", i) + "=10\n";
    if (i == 1) text += after_second;
  }
  for (int i = count; i-- > 0;)
    text += "op " + name("b", i) + " 20 backward: " + name("a", i) + " " + (i + 1 == count ? "x" : name("g", i + 1)) +
            " -> " + name("g", i) + "=10\n";
  return parse_graph_text(text + at_end + "outputs g0\n");
}

// a0 is computed from x in 10 ns, or in 5 from a1, which is computed from a0.
TEST(AwkwardGraphs, AnInverseOfTheNextOp) {
  for (const int count : {8, 12, 30}) {
    const Problem problem = make_problem(path_with(count, "op i1 5: a1 -> a0\n", ""));
    for (const int64_t budget_bytes : {problem.base_peak_bytes, problem.base_peak_bytes * 2 / 3, int64_t{45}}) {
      const Plan plan = plan_by("auto", problem, budget_bytes);
      ASSERT_TRUE(plan.time_ns) << count << " at " << budget_bytes;
      EXPECT_LE(*plan.peak_bytes, budget_bytes);
      if (count > 8) continue;
      EXPECT_EQ(plan.time_ns, plan_by("exhaustive", problem, budget_bytes).time_ns) << budget_bytes;
    }
  }
}

// The second producer of a0 reads e, which nothing else needs and store-all does not compute.
TEST(AwkwardGraphs, AnAlternativeThatReadsWhatNothingElseMakes) {
  for (const int count : {6, 14, 30}) {
    const Problem problem = make_problem(path_with(count, "", "op e 1 backward: x -> e=1\nop r 1 backward: e -> a0\n"));
    for (const int64_t budget_bytes : {problem.base_peak_bytes, problem.base_peak_bytes * 2 / 3, int64_t{45}}) {
      const Plan plan = plan_by("auto", problem, budget_bytes);
      ASSERT_TRUE(plan.time_ns) << count << " at " << budget_bytes;
      EXPECT_LE(*plan.peak_bytes, budget_bytes);
      if (count > 6) continue;
      EXPECT_EQ(plan.time_ns, plan_by("exhaustive", problem, budget_bytes).time_ns) << budget_bytes;
    }
  }
}

// Store-all computes a by `wide`, which needs `big` of 1000 bytes. By `slim`, 4 + 1 bytes are enough.
TEST(AwkwardGraphs, AnOpThatOnlyAnAlternativeNeedsIsNoLowerBound) {
  const Problem problem =
      make_problem(parse_graph_text("graph g\nvalue x 0 resident\n"
                                    "op big 1 workspace=1000: x -> e=1\n"
                                    "op slim 5: x -> a=4\n"
                                    "op wide 3: x e -> a\n"
                                    "op b 1 backward: a -> g=1\noutputs g\n"));
  EXPECT_EQ(peak_lower_bound_bytes(FlatGraph(problem.graph)), 5);
  for (const char* planner : {"auto", "exhaustive"}) {
    const Plan plan = plan_by(planner, problem, 100);
    EXPECT_EQ(plan.result.status, PlanStatus::kOptimal) << planner;
    EXPECT_EQ(plan.peak_bytes, 5) << planner;
    EXPECT_EQ(plan.time_ns, 6) << planner;  // slim and b
  }
}

// The last op gives back 150 of the 200 bytes that it writes while it runs, and there is no run after it: the 200 at the
// end are in no moment. f h k take 110 together; with a recomputed (6 ns) the largest moment is that of h, 100.
TEST(AwkwardGraphs, OutputsThatNoMomentCounts) {
  const Problem problem =
      make_problem(parse_graph_text("graph g\nvalue x 0 resident\n"
                                    "op f 1: x -> a=50\nop h 1: a -> b=50\nop k 1: b -> c=10\n"
                                    "op m 1: a c -> d=10\n"
                                    "op u 1 backward workspace=-150: d -> w=200\noutputs w\n"));
  for (const char* planner : {"auto", "exhaustive"}) {
    const Plan plan = plan_by(planner, problem, 105);
    EXPECT_EQ(plan.result.status, PlanStatus::kOptimal) << planner;
    EXPECT_EQ(plan.peak_bytes, 100) << planner;
    EXPECT_EQ(plan.time_ns, 6) << planner;
    EXPECT_EQ(plan_by(planner, problem, 99).result.status, PlanStatus::kInfeasible) << planner;
  }
}

// fb is read only by bg: run after fs, the step takes 12 ns within 10 bytes. In base order a and b do not fit together
// (16), so that each runs twice: 22.
TEST(AwkwardGraphs, NothingIsOptimalOutOfOrderIfTheOrderIsKept) {
  const Problem problem =
      make_problem(parse_graph_text("graph g\nvalue x 0 resident\n"
                                    "op fa 5: x -> a=8\nop fb 5: x -> b=8\nop fs 1: a -> s=1\n"
                                    "op bg 1 backward: b s -> g=1\noutputs g\n"));
  for (const Planner& planner : planners()) {
    if (!planner.takes_graphs) continue;
    const Plan plan = plan_by(planner.name.data(), problem, 10, true);
    if (!plan.result.schedule) continue;
    EXPECT_TRUE(keeps_base_order(problem.graph, *plan.result.schedule)) << planner.name;
    EXPECT_GE(*plan.time_ns, 22) << planner.name;
  }
  for (const char* planner : {"auto", "exhaustive"}) {
    EXPECT_EQ(plan_by(planner, problem, 10, true).time_ns, 22) << planner;
    EXPECT_EQ(plan_by(planner, problem, 10, true).result.status, PlanStatus::kOptimal) << planner;
    const Plan any = plan_by(planner, problem, 10);
    EXPECT_EQ(any.time_ns, 12) << planner;
    EXPECT_EQ(any.result.status, PlanStatus::kOptimal) << planner;
    EXPECT_EQ(any.result.lower_bound_ns, 12) << planner;
    EXPECT_EQ(plan_by(planner, problem, 9).result.status, PlanStatus::kInfeasible) << planner << ": bg needs 10";
  }
}

// tape holds b, so that dropping b frees nothing. But only after that drop can r write b in the place of a: within 2 bytes
// t (1 ns) runs once.
TEST(AwkwardGraphs, AHeldValueIsDroppedToRunInPlace) {
  const Graph graph = parse_graph_text(
      "graph g\nop mk 0: -> a=1\nop t 1: -> b=1 tape=0\nop c 0: b -> c=0\n"
      "op r 0 over=a: c a -> b d=0\nhold tape b\noutputs tape d\n");
  const PlanResult plan = plan_exhaustive(graph, {2, {}});
  ASSERT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(simulate(graph, *plan.schedule).time_ns, 1);
  EXPECT_EQ(plan.lower_bound_ns, 1);
}

// The copy of tape holds the first b. v writes another b, and both stay in memory as long as tape is live: with big, w would
// take 5 + 5 + 5 + 6. If t reruns before z, its new tape holds the current b (s 1, b 5 and 8 more: 14), and w takes 16.
// After z it is too late: 1 + 5 + 5 + 8 = 19.
TEST(AwkwardGraphs, ARerunFreesWhatIsHeld) {
  const Graph graph = parse_graph_text(
      "graph g\nop mk 0 once: -> s=1\nop t 1 workspace=8: s -> b=5 tape=0\nop u 1: s b -> k=0\n"
      "op v 0 once: k -> b l=0\nop z 1 once: l -> big=5\nop w 1: l b tape big -> y=6\nhold tape b\noutputs y\n");
  const PlanResult plan = plan_exhaustive(graph, {16, {}});
  ASSERT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(simulate(graph, *plan.schedule).time_ns, 5);  // t u v t z w
}

// Store-all computes a by `late`, which is listed after p and reads its output. That keeps the base order, although another
// producer of a is listed before p.
TEST(AwkwardGraphs, AlternativesListedFarApart) {
  const Problem problem =
      make_problem(parse_graph_text("graph g\nvalue x 0 resident\n"
                                    "op early 100: x -> a=1\nop p 1: x -> z=1\n"
                                    "op late 1: z -> a\nop c 1 backward: a -> y=1\noutputs y z\n"));
  for (const char* planner : {"store-all", "auto", "exhaustive"}) {
    const Plan plan = plan_by(planner, problem, problem.base_peak_bytes);
    EXPECT_EQ(plan.time_ns, 3) << planner;
    EXPECT_TRUE(keeps_base_order(problem.graph, *plan.result.schedule)) << planner;
  }
}

/// Returns a random graph of ops in any combination that lint() passes: alternatives of any inputs, holds, runs in place,
/// ops that run once, workspaces of both signs, no bytes, several outputs, ops that nothing needs.
GraphSpec awkward_graph(Random& random, int op_count, int alternatives_percent) {
  GraphSpec spec;
  spec.name = "awkward";
  spec.values.push_back(Value{"x", random.number(0, 5), true, {}});
  const auto has = [](const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); };
  const auto any_value = [&](int64_t first) {
    return value_id(static_cast<size_t>(random.number(std::max<int64_t>(first, 0), std::ssize(spec.values) - 1)));
  };
  for (int i = 0; i < op_count; ++i) {
    Op op{.name = "o" + std::to_string(i), .inputs = {}, .outputs = {}, .overwrites = {}};
    op.phase = i > op_count / 2 ? Phase::kBackward : Phase::kForward;
    op.time_ns = random.chance(10) ? 100 : random.number(0, 9);
    if (random.chance(25)) op.workspace_bytes = random.number(-12, 8);
    op.recompute = !random.chance(15);
    for (int64_t k = random.number(0, 3); k > 0; --k) {
      const ValueId id = any_value(random.chance(50) ? std::ssize(spec.values) - 4 : 0);
      if (!has(op.inputs, id)) op.inputs.push_back(id);
    }
    const ValueId old = any_value(0);
    if (random.chance(alternatives_percent) && !spec.values[index(old)].resident && !has(op.inputs, old)) {
      op.outputs.push_back(old);
      for (const ValueId held : spec.values[index(old)].holds)
        if (!has(op.inputs, held)) op.inputs.push_back(held);
    }
    for (int64_t k = random.number(op.outputs.empty() ? 1 : 0, 2); k > 0; --k) {
      Value value{"v" + std::to_string(spec.values.size()), random.number(0, 9), false, {}};
      for (const std::vector<ValueId>* ids : {&op.inputs, &op.outputs})
        for (const ValueId id : *ids)
          if (random.chance(15)) value.holds.push_back(id);
      if (op.outputs.empty() && !op.inputs.empty() && random.chance(40)) {
        const ValueId over = op.inputs.front();
        value.bytes = spec.values[index(over)].bytes;
        if (!spec.values[index(over)].resident) op.overwrites.push_back(over);
      }
      op.outputs.push_back(value_id(spec.values.size()));
      spec.values.push_back(std::move(value));
    }
    spec.ops.push_back(std::move(op));
  }
  spec.outputs.push_back(spec.ops.back().outputs.front());
  if (const ValueId id = any_value(1); id != spec.outputs.front()) spec.outputs.push_back(id);
  return spec;
}

/// Checks every planner at some budgets: its schedule is valid (make_plan() throws for an invalid one), in base order but for
/// those of `auto` and `exhaustive` without `keep_order`, and no plan contradicts the proof of another.
void expect_sound(const Graph& graph, bool keep_order, const std::string& where) {
  const Problem problem = make_problem(graph);
  std::vector<Plan> plans;
  const int64_t resident_bytes = problem.graph.resident_bytes();
  const int64_t span_bytes = problem.base_peak_bytes - resident_bytes;
  for (const int64_t quarters : {4, 3, 2, 1}) {
    for (const Planner& planner : planners()) {
      PlanRequest request{resident_bytes + span_bytes * quarters / 4, {10'000, Effort::kLow, 1, keep_order}};
      try {
        plans.push_back(make_plan(planner, problem, request));
      } catch (const NotApplicable&) {
        continue;
      }
      const std::optional<Schedule>& schedule = plans.back().result.schedule;
      const bool may_move = !keep_order && (planner.name == "auto" || planner.name == "exhaustive");
      ASSERT_TRUE(may_move || !schedule || keeps_base_order(problem.graph, *schedule)) << planner.name << where;
    }
  }
  const MemoryBounds bounds(problem.graph, {.keep_order = keep_order});
  const int64_t least_bytes = peak_lower_bound_bytes(FlatGraph(problem.graph));
  for (const Plan& plan : plans) {
    if (!plan.peak_bytes) continue;
    ASSERT_GE(*plan.peak_bytes, least_bytes) << plan.planner->name << where;
    const MemoryBound bound = bounds.within(*plan.peak_bytes, 10);
    ASSERT_TRUE(bound.is_feasible) << plan.planner->name << where;
    ASSERT_LE(bound.time_ns, *plan.time_ns) << plan.planner->name << where;
    for (const Plan& other : plans) {
      if (*other.budget_bytes < *plan.peak_bytes) continue;
      if (other.planner->name != "auto" && other.planner->name != "exhaustive") continue;
      ASSERT_NE(other.result.status, PlanStatus::kInfeasible) << other.planner->name << where;
      ASSERT_LE(other.result.lower_bound_ns, *plan.time_ns) << other.planner->name << where;
      if (other.result.status != PlanStatus::kOptimal) continue;
      ASSERT_LE(*other.time_ns, *plan.time_ns) << other.planner->name << where;
    }
  }
}

TEST(AwkwardGraphs, NoPlannerFailsOrIsBelied) {
  int graphs = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    const auto op_count = static_cast<int>(random.number(3, seed % 4 == 0 ? 45 : 12));
    const GraphSpec spec = awkward_graph(random, op_count, 20 * static_cast<int>(seed % 3));
    if (lint(spec)) continue;
    ++graphs;
    const Graph graph(spec);
    for (const bool keep_order : {false, true}) {
      expect_sound(graph, keep_order, " at seed " + std::to_string(seed) + "\n" + to_text(graph));
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(graphs, 150);
}

}  // namespace
}  // namespace headroom::internal
