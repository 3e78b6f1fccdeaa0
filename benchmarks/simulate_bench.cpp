// The simulator on schedules of 10,000 ops: steps a second of a whole simulation, and a change to a schedule by
// ScheduleEditor against simulating it again.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdio>
#include <string>

#include "benchmarks/summary.h"
#include "headroom/core/chain.h"
#include "headroom/core/edit.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/chain/checkpoints.h"

namespace headroom {
namespace {

constexpr int kOps = 10'000;
constexpr int kChanges = 4;  ///< in one iteration of edit_graph

/// A residual network op by op: forward op i reads the outputs of i-1 and i-3, its backward the gradient and both.
Graph residual_graph() {
  GraphSpec spec;
  spec.name = "residual";
  const auto add = [&](const std::string& name, int64_t bytes, bool resident) {
    spec.values.push_back(Value{name, bytes, resident, {}});
    return value_id(spec.values.size() - 1);
  };
  std::vector<ValueId> outputs = {add("x", 1000, true)};
  std::vector<std::vector<ValueId>> reads = {{}};
  for (int i = 1; i <= kOps / 2; ++i) {
    const auto at = static_cast<size_t>(i);
    reads.push_back({outputs[at - 1]});
    if (i >= 3) reads.back().push_back(outputs[at - 3]);
    outputs.push_back(add("a" + std::to_string(i), 1000 + i % 7, false));
    spec.ops.push_back(
        Op{.name = "f" + std::to_string(i), .inputs = reads.back(), .outputs = {outputs.back()}, .overwrites = {}});
    spec.ops.back().time_ns = 100;
  }
  ValueId gradient = outputs.back();
  for (int i = kOps / 2; i >= 1; --i) {
    const auto at = static_cast<size_t>(i);
    std::vector<ValueId> inputs = reads[at];
    if (gradient != outputs[at]) inputs.push_back(outputs[at]);
    inputs.push_back(gradient);
    gradient = add("g" + std::to_string(i), 1000 + i % 5, false);
    spec.ops.push_back(Op{.name = "b" + std::to_string(i),
                          .phase = Phase::kBackward,
                          .inputs = std::move(inputs),
                          .outputs = {gradient},
                          .overwrites = {}});
    spec.ops.back().time_ns = 200;
  }
  spec.outputs = {gradient};
  return Graph(std::move(spec));
}

Chain long_chain(int length) {
  Chain chain{"long", 1000, 1000, 1000, {}};
  for (int i = 1; i <= length; ++i)
    chain.stages.push_back(Stage{"s", 100, 200, 1000 + i % 7, 2000 + i % 5, 10, 20, 30});
  return chain;
}

void simulate_whole(benchmark::State& state, const Graph& graph, const Schedule& schedule) {
  for (auto _ : state) benchmark::DoNotOptimize(simulate(graph, schedule).peak_bytes);
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(schedule.steps.size()));
  state.counters["steps"] = static_cast<double>(schedule.steps.size());
}

void simulate_graph(benchmark::State& state) {
  const Graph graph = residual_graph();
  simulate_whole(state, graph, store_all(graph));
}
BENCHMARK(simulate_graph);

/// Every eighth stage kept: about 10,000 runs, tapes that hold their stage's input and output.
void simulate_chain(benchmark::State& state) {
  constexpr int kLength = 3500;
  const Graph graph = to_graph(long_chain(kLength));
  std::vector<int> checkpoints;
  for (int i = 8; i < kLength; i += 8) checkpoints.push_back(i);
  simulate_whole(state, graph, checkpoint_schedule(kLength, checkpoints));
}
BENCHMARK(simulate_chain);

/// Give up an activation after its forward readers and make it again before its first backward reader, look at the
/// peak, and take that back: what a search does all the time.
void edit_graph(benchmark::State& state) {
  const Graph graph = residual_graph();
  ScheduleEditor editor(graph, store_all(graph));
  std::vector<ScheduleEditor::Handle> backward_reader;
  for (const ValueId id : {ValueId{100}, ValueId{1000}, ValueId{2500}, ValueId{4000}}) {
    for (const auto handle : editor.touching(id)) {
      const Step step = editor.step(handle);
      if (!step.is_run() || graph.op(step.op()).phase == Phase::kForward) continue;
      backward_reader.push_back(handle);
      break;
    }
  }
  size_t next = 0;
  for (auto _ : state) {
    const ValueId id = std::array{ValueId{100}, ValueId{1000}, ValueId{2500}, ValueId{4000}}[next];
    const auto before = backward_reader[next];
    next = (next + 1) % backward_reader.size();
    const auto last_forward = editor.touching(id)[2];
    const auto drop = editor.insert(editor.next(last_forward), Step::drop(id));
    const auto rerun = editor.insert(before, Step::run(graph.producers(id).front()));
    benchmark::DoNotOptimize(editor.peak_bytes());
    editor.erase(rerun);
    editor.erase(drop);
  }
  state.SetItemsProcessed(state.iterations() * kChanges);
}
BENCHMARK(edit_graph);

void print_ratio(const BenchmarkTimes& times_ns) {
  if (!times_ns.contains("simulate_graph") || !times_ns.contains("edit_graph")) return;
  const double change_ns = times_ns.at("edit_graph") / kChanges;
  std::printf("a change by ScheduleEditor: %.0f times cheaper than simulating the schedule again\n",
              times_ns.at("simulate_graph") / change_ns);
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { headroom::run_benchmarks(argc, argv, headroom::print_ratio); }
