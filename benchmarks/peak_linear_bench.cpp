// Measures the time of peak-linear per stage, from 1,000 to 1,000,000 stages. Up to about 100,000 stages much of it is the
// search for the fewest checkpoints among equal plans, which is capped. Beyond that the time per stage is constant.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>

#include "benchmarks/summary.h"
#include "benchmarks/uneven_chain.h"
#include "headroom/plan/chain/peak_linear.h"

namespace headroom::internal {
namespace {

void peak_linear(benchmark::State& state) {
  const Chain chain = uneven_chain(state.range(0));
  size_t checkpoints = 0;
  for (auto _ : state) checkpoints = plan_peak_linear(chain, {}).checkpoints.size();
  state.counters["checkpoints"] = static_cast<double>(checkpoints);
}
BENCHMARK(peak_linear)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMillisecond);

void print_ratios(const BenchmarkTimes& times_ms) {
  const auto ns_a_stage = [&](const std::string& stages) {
    const auto time = times_ms.find("peak_linear/" + stages);
    return time == times_ms.end() ? 0 : 1e6 * time->second / std::stod(stages);
  };
  const double reference_ns = ns_a_stage("100000");
  for (const char* stages : {"1000", "10000", "100000", "1000000"})
    std::printf("peak-linear, %s stages: %.1f ns a stage, %.2f times that at 100000 stages\n", stages,
                ns_a_stage(stages), ns_a_stage(stages) / reference_ns);
}

}  // namespace
}  // namespace headroom::internal

int main(int argc, char** argv) { headroom::internal::run_benchmarks(argc, argv, headroom::internal::print_ratios); }
