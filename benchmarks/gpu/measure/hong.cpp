// Repeats the measurements of Hong et al. 2025. Bytes are in MiB, less the memory in use before the step.
//
//   hong peaks NETWORK BATCH                       the smallest peak of each planner by choosing checkpoints
//   hong timeline NETWORK BATCH [SIZE [I,J,...]]   memory during and after each run of a step with these checkpoints
//   hong planning                                  planning time of chains of up to a million stages; needs no GPU
//
// Prints JSON objects, predicted beside measured. Exit status 1: a prediction is off by more than 2 %.
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/uneven_chain.h"
#include "headroom/plan/chain/checkpoints.h"
#include "headroom/plan/chain/peak_cubic.h"
#include "headroom/plan/chain/peak_linear.h"
#include "headroom/plan/chain/sqrt.h"
#include "headroom/runtime/train.h"
#include "headroom/train/trainer.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal {
namespace {

using Figures = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kPlanners = {"sqrt", "division-tree", "peak-cubic", "peak-linear"};
constexpr double kTolerancePercent = 2;

double mib(int64_t bytes) { return std::round(static_cast<double>(bytes) / (1 << 20) * 1000) / 1000; }

double error_percent(double predicted, double measured) { return std::abs(100 * (measured / predicted - 1)); }

void print(const Figures& figures) {
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
}

/// Returns the exit status for the largest error of a prediction.
int judge(double largest_percent) {
  if (largest_percent <= kTolerancePercent) return 0;
  std::fprintf(stderr, "a prediction is off by %.2f %%\n", largest_percent);
  return 1;
}

torch::Device device() { return {torch::cuda::is_available() ? torch::kCUDA : torch::kCPU}; }

struct Bench {
  Network network;
  MeasuredStep measured;
};

Bench measure(const std::string& name, int64_t batch, int64_t size) {
  torch::manual_seed(1);
  Network network = make_zoo_network(name);
  network.to(device());
  MeasuredStep measured = measure_step(network, zoo_sample(name, {}, batch, size, device()));
  return {std::move(network), std::move(measured)};
}

int print_peaks(const std::string& name, int64_t batch, int64_t size) {
  Meter meter(device());
  const Bench bench = measure(name, batch, size);
  const MeasuredStep& measured = bench.measured;
  TrainedSteps plain;
  run_step(plain_step(bench.network), measured.sample, meter, plain);
  Figures figures = {{"plain_mib", mib(plain.peaks_bytes.back())}};
  clear_gradients(bench.network);
  double largest_percent = 0;
  for (const bool reentrant : {false, true}) {
    for (const char* planner : kPlanners) {
      TrainOptions options;
      options.planner = planner;
      options.planner_options.reentrant = reentrant;
      const PlannedStep planned = plan_step(measured, std::nullopt, options);
      const double predicted = mib(planned.predicted_peak_bytes - measured.before_bytes);
      const double tried = mib(*planned.tried_peak_bytes - measured.before_bytes);
      figures[planner + std::string(reentrant ? ", reentrant" : "")] = {{"predicted_mib", predicted},
                                                                        {"measured_mib", tried}};
      largest_percent = std::max(largest_percent, error_percent(predicted, tried));
    }
  }
  print(figures);
  return judge(largest_percent);
}

int print_timeline(const std::string& name, int64_t batch, int64_t size, const std::vector<int>& checkpoints) {
  const Meter meter(device());
  const Bench bench = measure(name, batch, size);
  const MeasuredStep& measured = bench.measured;
  const Schedule schedule = checkpoint_schedule(measured.problem.chain->length(), checkpoints, {});
  const TrainingStep step = make_training_step(measured, schedule);
  const Simulation predicted = predict(measured, step);
  step(measured.sample).backward();  // Libraries allocate their workspaces.
  clear_gradients(bench.network);
  const MeasuredMemory memory = measure_memory(step, device(), [&] { step(measured.sample).backward(); });
  const std::vector<Step>& steps = step.schedule().steps;
  Figures figures = {{"network", name}, {"batch", batch}, {"checkpoints", checkpoints}};
  double largest_percent = 0;
  for (size_t run = 0; run < steps.size();) {
    size_t last = run;  // The last of the drops that follow the run.
    while (last + 1 < steps.size() && !steps[last + 1].is_run()) ++last;
    const std::array<std::pair<const char*, std::pair<int64_t, int64_t>>, 2> points = {
        {{"during", {predicted.moment_bytes[run], memory.moment_bytes[run]}},
         {"after", {predicted.after_bytes[last], memory.after_bytes[last]}}}};
    for (const auto& [moment, bytes] : points) {
      const double expected = mib(bytes.first - measured.before_bytes);
      const double found = mib(bytes.second - measured.before_bytes);
      figures[std::string("predicted_") + moment + "_mib"].push_back(expected);
      figures[std::string("measured_") + moment + "_mib"].push_back(found);
      if (expected > 0) largest_percent = std::max(largest_percent, error_percent(expected, found));
    }
    run = last + 1;
  }
  figures["largest_error"] = largest_percent / 100;
  print(figures);
  return judge(largest_percent);
}

int print_planning() {
  constexpr double kMostS = 2;  // A planner that took longer is not asked for more stages.
  using Planner = PlanResult (*)(const Chain&, const PlanRequest&, const CheckpointOptions&);
  const std::array<std::pair<const char*, Planner>, 3> planners = {
      {{"sqrt", plan_sqrt}, {"peak-cubic", plan_peak_cubic}, {"peak-linear", plan_peak_linear}}};
  for (const auto& [name, planner] : planners) {
    for (const int64_t stages : {10, 100, 300, 1000, 3000, 10'000, 100'000, 1'000'000}) {
      const Chain chain = uneven_chain(stages);
      const auto start = std::chrono::steady_clock::now();
      const PlanResult result = planner(chain, {}, {});
      const double taken_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      print({{"planner", name}, {"stages", stages}, {"ms", 1e3 * taken_s}, {"checkpoints", result.checkpoints.size()}});
      if (taken_s > kMostS) break;
    }
  }
  return 0;
}

std::vector<int> parse_checkpoints(const std::string& text) {
  std::vector<int> checkpoints;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');) checkpoints.push_back(std::stoi(number));
  return checkpoints;
}

}  // namespace
}  // namespace headroom::internal

int main(int argc, char** argv) {
  using namespace headroom::internal;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "planning" && arguments.size() == 1) return print_planning();
  const bool is_timeline = command == "timeline";
  if ((command != "peaks" && !is_timeline) || arguments.size() < 3 || arguments.size() > (is_timeline ? 5U : 4U)) {
    std::fprintf(stderr,
                 "usage: hong peaks NETWORK BATCH [SIZE] | timeline NETWORK BATCH [SIZE [I,J,...]] | planning\n");
    return 2;
  }
  const int64_t batch = std::stol(arguments[2]);
  const int64_t size = arguments.size() > 3 ? std::stol(arguments[3]) : 0;
  if (!is_timeline) return print_peaks(arguments[1], batch, size);
  return print_timeline(arguments[1], batch, size, parse_checkpoints(arguments.size() > 4 ? arguments[4] : ""));
}
