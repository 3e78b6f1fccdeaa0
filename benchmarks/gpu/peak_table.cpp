// The comparison of Hong et al. 2025 on a GPU: the least peak that choosing checkpoints reaches, predicted and measured,
// as rows of a Markdown table. MiB beyond what was there before the step.
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "headroom/runtime/meter.h"
#include "headroom/runtime/train.h"
#include "headroom/zoo/zoo.h"

namespace headroom {
namespace {

struct Case {
  const char* name;
  int64_t batch;
};

// The networks and batches of Feng and Huang 2021, some of them Hong et al.'s.
constexpr std::array<Case, 10> kCases = {{{"alexnet", 1024},
                                          {"vgg11", 64},
                                          {"vgg13", 64},
                                          {"vgg16", 64},
                                          {"vgg19", 64},
                                          {"resnet18", 256},
                                          {"resnet34", 128},
                                          {"resnet50", 64},
                                          {"resnet101", 32},
                                          {"resnet152", 16}}};

constexpr std::array<const char*, 4> kPlanners = {"sqrt", "division-tree", "peak-cubic", "peak-linear"};

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// The largest error of a prediction in this row, in percent.
double print_row(const Case& one) {
  const torch::Device device(torch::kCUDA, 0);
  Meter meter(device);
  torch::manual_seed(1);
  const Network network = make_zoo_network(one.name);
  network.to(device);
  const MeasuredStep measured = measure_step(network, zoo_sample(one.name, {}, one.batch, 0, device));
  meter.reset_peak();
  network.forward(measured.sample)[0].backward();
  std::printf("| %s (%ld) | %.0f |", one.name, static_cast<long>(one.batch),
              mib(meter.peak_bytes() - measured.before_bytes));
  for (const torch::Tensor& parameter : network.parameters()) parameter.mutable_grad().reset();
  double largest_error = 0;
  for (const bool reentrant : {false, true}) {
    for (const char* planner : kPlanners) {
      TrainOptions options;
      options.planner = planner;
      options.planner_options.reentrant = reentrant;
      const PlannedStep planned = plan_step(measured, std::nullopt, options);
      const double predicted = mib(planned.predicted_peak_bytes - measured.before_bytes);
      const double tried = mib(*planned.tried_peak_bytes - measured.before_bytes);
      std::printf(" %.0f / %.0f |", predicted, tried);
      largest_error = std::max(largest_error, std::abs(100 * (tried / predicted - 1)));
    }
  }
  std::printf("\n");
  return largest_error;
}

}  // namespace
}  // namespace headroom

int main() {
  double largest_error = 0;
  for (const headroom::Case& one : headroom::kCases) largest_error = std::max(largest_error, headroom::print_row(one));
  std::printf("largest error of a prediction: %.2f %%\n", largest_error);
  return largest_error <= 2 ? 0 : 1;
}
