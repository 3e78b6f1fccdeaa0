// Compares the `chain` planner at 339 stages and 500 slots with the plain recurrence. Prints for several budgets the times
// of both, their ratio (times_faster), and the memory of the planner (MB).
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/plain_chain.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/chain/chain.h"
#include "headroom/plan/chain/needs.h"

namespace headroom::internal {
namespace {

constexpr int64_t kSlots = 500;

/// Returns a chain like ResNet-1001 on 32x32 images in batches of 128: a stem, three groups of 112 bottleneck blocks,
/// pooling, the classifier and the loss, 339 stages in all. Bytes follow from shapes, times from bytes and
/// multiplications.
Chain resnet_1001() {
  constexpr int64_t kBatch = 128;
  constexpr int64_t kFloat = 4;
  Chain chain;
  chain.name = "resnet-1001-like";
  chain.input_bytes = kBatch * 3 * 32 * 32 * kFloat;
  chain.input_gradient_bytes = 0;
  const auto add = [&](std::string name, int64_t output, int64_t tape, int64_t workspace, int64_t weights,
                       int64_t products) {
    Stage stage;
    stage.name = std::move(name);
    stage.output_bytes = output;
    stage.tape_bytes = tape;
    stage.forward_workspace_bytes = workspace;
    stage.backward_workspace_bytes = 2 * workspace;
    stage.gradient_bytes = weights * kFloat;
    stage.forward_ns = products / 5'000 + tape / 400 + 1'000;
    stage.backward_ns = 2 * stage.forward_ns;
    chain.resident_bytes += weights * kFloat;
    chain.stages.push_back(stage);
  };
  const int64_t stem = kBatch * 16 * 32 * 32 * kFloat;
  add("stem", stem, stem, 0, 3 * 16 * 9, kBatch * 32 * 32 * 3 * 16 * 9);
  int64_t in_channels = 16;
  int64_t in_side = 32;
  for (int group = 0; group < 3; ++group) {
    const int64_t channels = int64_t{16} << group;
    const int64_t side = 32 >> group;
    for (int block = 0; block < 112; ++block) {
      const int64_t pixels = kBatch * side * side;
      const int64_t narrow = pixels * channels * kFloat;
      const int64_t input = kBatch * in_side * in_side * in_channels * kFloat;
      const int64_t weights = in_channels * channels + 9 * channels * channels + 4 * channels * channels +
                              (block == 0 ? 4 * channels * in_channels : 0);
      add("block" + std::to_string(group) + "." + std::to_string(block), 4 * narrow, 4 * narrow + 4 * narrow + input,
          narrow, weights, pixels * weights);
      in_channels = 4 * channels;
      in_side = side;
    }
  }
  add("pool", kBatch * 256 * kFloat, kBatch * 256 * kFloat, 0, 0, kBatch * 256 * 64);
  add("loss", kFloat, kBatch * 10 * kFloat, 0, 256 * 10, kBatch * 256 * 10);
  return chain;
}

/// Returns the resident bytes plus a share, in percent, of what store-all adds to them.
struct Case {
  Chain chain = resnet_1001();
  int64_t left_bytes;
  PlanRequest request;
  explicit Case(int64_t per_cent) {
    left_bytes = ChainMoments(chain).record_all_bytes() / 100 * per_cent;
    request.budget_bytes = left_bytes + chain.resident_bytes + chain.input_bytes + chain.gradient_bytes(chain.length());
  }
};

/// Time and result of the plain recurrence for each share of the budget, in percent.
struct Plain {
  double seconds = 0;
  double extra_ns = 0;
};
std::map<int64_t, Plain>& plain_results() {
  static std::map<int64_t, Plain> results;
  return results;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void plain(benchmark::State& state) {
  const Case input(state.range(0));
  const int64_t slot_bytes = input.left_bytes / kSlots;
  std::vector<int64_t> forward_ns;
  for (const Stage& stage : input.chain.stages) forward_ns.push_back(stage.forward_ns);
  const ChainNeeds needs = ChainMoments(input.chain).needs(slot_bytes);
  Plain& result = plain_results()[state.range(0)];
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    result.extra_ns = plain_chain(needs, input.left_bytes / slot_bytes, forward_ns);
    result.seconds = seconds_since(start);
  }
}

/// Returns by how much planning raises the maximum resident set of a process: the difference between a child process that
/// plans and one that does not.
int64_t planning_bytes(const Case& input, const PlanRequest& request) {
  const auto child_peak_kib = [&](bool plans) -> int64_t {
    const pid_t child = fork();
    if (child == 0) {
      if (plans) benchmark::DoNotOptimize(plan_chain(input.chain, request, {.slots = kSlots}));
      std::_Exit(0);
    }
    rusage usage{};
    int status = 0;
    wait4(child, &status, 0, &usage);
    return usage.ru_maxrss;
  };
  const int64_t idle_kib = child_peak_kib(false);
  return (child_peak_kib(true) - idle_kib) * 1024;
}

/// Measures all of plan_chain(), including the smallest budget and the schedule.
void planner(benchmark::State& state) {
  const Case input(state.range(0));
  PlanRequest request = input.request;
  request.limits.threads = static_cast<int>(state.range(1));
  state.counters["MB"] = static_cast<double>(planning_bytes(input, request)) / 1e6;
  PlanResult result;
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    result = plan_chain(input.chain, request, {.slots = kSlots});
    seconds += seconds_since(start);
  }
  const Simulation simulation = simulate(to_graph(input.chain), *result.schedule);
  if (simulation.error || simulation.peak_bytes > *request.budget_bytes) {
    state.SkipWithError("not a plan within the budget");
    return;
  }
  const auto reference = plain_results().find(state.range(0));
  if (reference == plain_results().end()) return;
  if (static_cast<double>(simulation.time_ns - result.lower_bound_ns) != reference->second.extra_ns) {
    state.SkipWithError("not the time of the plain recurrence");
    return;
  }
  state.counters["times_faster"] = reference->second.seconds * static_cast<double>(state.iterations()) / seconds;
}

BENCHMARK(plain)
    ->Name("chain/plain/339_stages_500_slots/per_cent")
    ->Arg(10)
    ->Arg(50)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(planner)
    ->Name("chain/planner/339_stages_500_slots/per_cent/threads")
    ->ArgsProduct({{10, 50}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace headroom::internal

BENCHMARK_MAIN();
