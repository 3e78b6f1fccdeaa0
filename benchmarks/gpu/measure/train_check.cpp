// Trains a network of the zoo on a GPU plainly and inside budgets: predicted against measured peak, time against plain
// training, side by side, and how far the gradients are from plain training's.
//
//   train_check NETWORK BATCH                 from all of plain training's memory down to the smallest budget
//   train_check NETWORK BATCH BUDGET_BYTES    one budget, with the process limited to 1.05 of it from its start
//
// Prints a JSON object for each: `what` is "plain", a budget's share, "smallest" or "limited".
// Exit status 1: a measured peak above its budget, or more than 2 % from the prediction.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <torch/cuda.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "headroom/runtime/train.h"
#include "headroom/train/trainer.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal {
namespace {

constexpr double kMiB = 1 << 20;

double mib(int64_t bytes) { return static_cast<double>(bytes) / kMiB; }

/// Runs one step from the same seed, appends its figures to `steps` and returns its gradients.
Tensors run(const Network& network, const Tensors& inputs, Meter& meter, const StepFunction& step,
            TrainedSteps& steps) {
  clear_gradients(network);
  torch::manual_seed(5);
  run_step(step, inputs, meter, steps);
  Tensors gradients = copy_gradients(network);
  clear_gradients(network);
  return gradients;
}

double largest_difference(const Tensors& left, const Tensors& right) {
  Difference difference;
  difference.add(left, right);
  return difference.largest;
}

struct Bench {
  Network network;
  Tensors inputs;
};

Bench make_bench(const std::string& name, int64_t batch) {
  const torch::Device device(torch::kCUDA, 0);
  torch::manual_seed(1);
  Network network = make_zoo_network(name);
  network.to(device);
  return {std::move(network), zoo_sample(name, {}, batch, 0, device)};
}

/// What is printed: a JSON object on a line, for the harness.
using Figures = nlohmann::ordered_json;

void print(const Figures& figures) {
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
}

/// Adds what a step took beyond what was there before it. Returns whether that is within the budget and as predicted.
bool add_peak(Figures& figures, int64_t before_bytes, int64_t budget_bytes, const PlannedStep& planned,
              int64_t measured_bytes) {
  const double predicted = mib(planned.predicted_peak_bytes - before_bytes);
  const double measured = mib(measured_bytes);
  const double error = 100 * (measured / predicted - 1);
  const bool is_right = before_bytes + measured_bytes <= budget_bytes && std::abs(error) <= 2;
  figures["budget_mib"] = mib(budget_bytes - before_bytes);
  figures["predicted_mib"] = predicted;
  figures["measured_mib"] = measured;
  figures["right"] = is_right;
  if (!is_right)
    std::fprintf(stderr, "%s: measured %.1f MiB, predicted %.1f, budget %.1f\n",
                 figures["what"].get<std::string>().c_str(), measured, predicted, mib(budget_bytes - before_bytes));
  return is_right;
}

bool check_budgets(const std::string& name, int64_t batch) {
  Meter meter(torch::Device(torch::kCUDA, 0));
  const Bench bench = make_bench(name, batch);
  const int64_t bare_bytes = meter.current_bytes();
  const StepFunction plainly = plain_step(bench.network);
  TrainedSteps plain;  // The first step warms up.
  run(bench.network, bench.inputs, meter, plainly, plain);
  const Tensors gradients = run(bench.network, bench.inputs, meter, plainly, plain);
  const Tensors again = run(bench.network, bench.inputs, meter, plainly, plain);
  const auto start = std::chrono::steady_clock::now();
  const MeasuredStep measured = measure_step(bench.network, bench.inputs);
  const double measure_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t before_bytes = measured.before_bytes;
  int64_t largest_workspace_bytes = 0;
  for (const NodeCosts& costs : measured.measured.costs.nodes)
    largest_workspace_bytes = std::max(largest_workspace_bytes, costs.record_workspace_bytes);
  // What libraries keep for good, and what they take at most while a node records.
  print({{"what", "plain"},
         {"measured_mib", mib(plain.peaks_bytes[1])},
         {"time_ms", static_cast<double>(plain.times_ns[2]) / 1e6},
         {"differs", largest_difference(again, gradients)},
         {"measure_s", measure_s},
         {"kept_mib", mib(before_bytes - bare_bytes)},
         {"workspace_mib", mib(largest_workspace_bytes)}});

  const TrainingStep all = make_training_step(measured, store_all(measured.step.graph));
  const int64_t most_bytes = predict(measured, all).peak_bytes - before_bytes;
  const int64_t least_bytes = smallest_budget_bytes(measured) - before_bytes;
  std::vector<std::pair<std::string, int64_t>> budgets;
  for (const int percent : {100, 80, 60, 50, 40, 30})
    if (most_bytes * percent / 100 > least_bytes)
      budgets.emplace_back(std::to_string(percent) + " %", before_bytes + most_bytes * percent / 100);
  budgets.emplace_back("smallest", before_bytes + least_bytes + least_bytes / 100);
  bool all_right = true;
  for (const auto& [what, budget_bytes] : budgets) {
    Figures figures = {{"what", what}};
    try {
      const PlannedStep planned = plan_step(measured, budget_bytes);
      TrainedSteps warm_up;
      run(bench.network, bench.inputs, meter, planned.step, warm_up);
      TrainedSteps plain_steps;
      TrainedSteps steps;
      Tensors found;
      for (int i = 0; i < 5; ++i) {
        run(bench.network, bench.inputs, meter, plainly, plain_steps);
        found = run(bench.network, bench.inputs, meter, planned.step, steps);
      }
      all_right &= add_peak(figures, before_bytes, budget_bytes, planned, steps.peaks_bytes.back());
      figures["time_ratio"] =
          static_cast<double>(median(steps.times_ns)) / static_cast<double>(median(plain_steps.times_ns));
      figures["planned_ratio"] =
          static_cast<double>(*planned.plan.time_ns) / static_cast<double>(planned.plan.base_time_ns);
      figures["differs"] = largest_difference(found, gradients);
    } catch (const BudgetTooSmall& error) {
      std::fprintf(stderr, "%s: %s\n", what.c_str(), error.what());
      figures["error"] = error.what();
      all_right = false;
    }
    print(figures);
  }
  return all_right;
}

bool check_limited(const std::string& name, int64_t batch, int64_t budget_bytes) {
  const torch::Device device(torch::kCUDA, 0);
  Meter meter(device);
  size_t free_bytes = 0;
  size_t device_bytes = 0;
  cudaMemGetInfo(&free_bytes, &device_bytes);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      1.05 * static_cast<double>(budget_bytes) / static_cast<double>(device_bytes), 0);
  const Bench bench = make_bench(name, batch);
  const MeasuredStep measured = measure_step(bench.network, bench.inputs);
  const PlannedStep planned = plan_step(measured, budget_bytes);
  torch::optim::SGD optimizer(bench.network.parameters(), torch::optim::SGDOptions(0.01));
  meter.reset_peak();
  for (int i = 0; i < 10; ++i) {
    optimizer.zero_grad();
    planned.step(bench.inputs).backward();
    optimizer.step();
  }
  torch::cuda::synchronize();
  const int64_t peak_bytes = meter.peak_bytes() - measured.before_bytes;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  Figures figures = {{"what", "limited"}};
  const bool is_right = add_peak(figures, measured.before_bytes, budget_bytes, planned, peak_bytes);
  figures["held_to_mib"] = 1.05 * mib(budget_bytes);
  figures["taken_mib"] = mib(stats.reserved_bytes[0].peak);
  print(figures);
  return is_right;
}

}  // namespace
}  // namespace headroom::internal

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: train_check NETWORK BATCH [BUDGET_BYTES]\n");
    return 2;
  }
  const std::string name = argv[1];
  const long batch = std::stol(argv[2]);
  return (argc == 3 ? headroom::internal::check_budgets(name, batch)
                    : headroom::internal::check_limited(name, batch, std::stoll(argv[3])))
             ? 0
             : 1;
}
