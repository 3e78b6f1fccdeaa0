#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace headroom::internal {

/// The real time of each benchmark by its name, in the benchmark's unit.
using BenchmarkTimes = std::map<std::string, double>;

/// Runs the benchmarks that the arguments select, prints the usual lines and calls `summarise` with the times.
inline void run_benchmarks(int argc, char** argv, const std::function<void(const BenchmarkTimes&)>& summarise) {
  class Reporter : public benchmark::ConsoleReporter {
   public:
    void ReportRuns(const std::vector<Run>& runs) override {
      ConsoleReporter::ReportRuns(runs);
      for (const Run& run : runs) times[run.benchmark_name()] = run.GetAdjustedRealTime();
    }
    BenchmarkTimes times;
  };
  benchmark::Initialize(&argc, argv);
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  summarise(reporter.times);
}

}  // namespace headroom::internal
