// Repeats the comparison of Hong et al. 2025 on a GPU: the smallest peak that each planner reaches by choosing checkpoints,
// predicted and measured, as a JSON object. Peaks are in MiB, less the memory in use before the step.
//
//   peak_table NETWORK BATCH
//
// Exit status 1: a prediction is off by more than 2 %.
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "headroom/runtime/train.h"
#include "headroom/train/trainer.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal {
namespace {

constexpr std::array<const char*, 4> kPlanners = {"sqrt", "division-tree", "peak-cubic", "peak-linear"};

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Prints the row of a network. Returns the largest error of a prediction, in percent.
double print_row(const std::string& name, int64_t batch) {
  const torch::Device device(torch::kCUDA, 0);
  Meter meter(device);
  torch::manual_seed(1);
  const Network network = make_zoo_network(name);
  network.to(device);
  const MeasuredStep measured = measure_step(network, zoo_sample(name, {}, batch, 0, device));
  TrainedSteps plain;
  run_step(plain_step(network), measured.sample, meter, plain);
  nlohmann::ordered_json figures = {{"plain_mib", mib(plain.peaks_bytes.back())}};
  clear_gradients(network);
  double largest_error = 0;
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
      largest_error = std::max(largest_error, std::abs(100 * (tried / predicted - 1)));
    }
  }
  std::printf("%s\n", figures.dump().c_str());
  return largest_error;
}

}  // namespace
}  // namespace headroom::internal

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: peak_table NETWORK BATCH\n");
    return 2;
  }
  const double largest_error = headroom::internal::print_row(argv[1], std::stol(argv[2]));
  if (largest_error > 2) std::fprintf(stderr, "a prediction is off by %.2f %%\n", largest_error);
  return largest_error <= 2 ? 0 : 1;
}
