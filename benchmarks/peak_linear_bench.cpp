// peak-linear from 1,000 to 1,000,000 stages: time for a stage. Up to about 100,000 much of it goes into the fewest
// checkpoints among equals, which is capped; beyond, the time for a stage stays the same.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <map>

#include "headroom/plan/peak_linear.h"

namespace headroom {
namespace {

/// Sizes that fall and rise as a network's do, seeded.
Chain uneven_chain(int64_t length) {
  Chain chain{"uneven", 1000, 1000, 0, {}};
  uint64_t seed = 1;
  for (int64_t i = 0; i < length; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const auto output = static_cast<int64_t>(1000 + (seed >> 40U) % 9000);
    chain.stages.push_back(Stage{"s", output, 2 * output, output, output + 500, 0, 100, 10});
  }
  return chain;
}

void peak_linear(benchmark::State& state) {
  const Chain chain = uneven_chain(state.range(0));
  size_t checkpoints = 0;
  for (auto _ : state) checkpoints = plan_peak_linear(chain, {}).checkpoints.size();
  state.counters["checkpoints"] = static_cast<double>(checkpoints);
}
BENCHMARK(peak_linear)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMillisecond);

class WithRatio : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) time_ms_[run.run_name.args] = run.GetAdjustedRealTime();
  }
  void Finalize() override {
    const double reference_ms = time_ms_["100000"];
    for (const auto& [stages, ms] : time_ms_)
      std::printf("peak-linear, %s stages: %.1f ns a stage, %.2f times that at 100000 stages\n", stages.c_str(),
                  1e6 * ms / std::stod(stages), ms / std::stod(stages) / (reference_ms / 100'000));
  }

 private:
  std::map<std::string, double> time_ms_;
};

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  headroom::WithRatio reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
}
