// Measures the simulator on schedules of 10,000 ops, and the timeline of `auto` on the same runs.
#include <benchmark/benchmark.h>

#include <string>

#include "headroom/core/chain.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/auto/search/timeline.h"
#include "headroom/plan/chain/checkpoints.h"

namespace headroom::internal {
namespace {

constexpr int kOps = 10'000;
constexpr int kLength = 3500;  ///< number of stages of the chain

/// Returns a residual network of single ops: forward op i reads the outputs of i-1 and i-3, its backward the gradient and
/// both.
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

/// Returns about 10,000 runs, with tapes that hold the input and output of their stage.
Schedule kept_every_eighth() {
  std::vector<int> checkpoints;
  for (int i = 8; i < kLength; i += 8) checkpoints.push_back(i);
  return checkpoint_schedule(kLength, checkpoints);
}

void simulate_chain(benchmark::State& state) {
  const Graph graph = to_graph(long_chain(kLength));
  simulate_whole(state, graph, kept_every_eighth());
}
BENCHMARK(simulate_chain);

/// Measures building a timeline of the same runs, drops included, which the search does most of the time.
void assign_timeline(benchmark::State& state, const Graph& graph, const Schedule& schedule) {
  std::vector<int32_t> runs;
  for (const Step& step : schedule.steps)
    if (step.is_run()) runs.push_back(static_cast<int32_t>(step.op()));
  const FlatGraph flat(graph);
  Timeline timeline(flat);
  for (auto _ : state) {
    timeline.assign(runs);
    benchmark::DoNotOptimize(timeline.peak_bytes());
  }
}

void timeline_graph(benchmark::State& state) {
  const Graph graph = residual_graph();
  assign_timeline(state, graph, store_all(graph));
}
BENCHMARK(timeline_graph);

void timeline_chain(benchmark::State& state) {
  const Graph graph = to_graph(long_chain(kLength));
  assign_timeline(state, graph, kept_every_eighth());
}
BENCHMARK(timeline_chain);

}  // namespace
}  // namespace headroom::internal
