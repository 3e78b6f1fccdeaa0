// Trains a network of the zoo on a GPU plainly and under plans of `auto`: predicted against measured memory, and how
// far the gradients are from plain training's. Usage: train_check NETWORK BATCH
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/executor.h"
#include "headroom/runtime/measure.h"
#include "headroom/runtime/meter.h"
#include "headroom/zoo/zoo.h"

namespace headroom {
namespace {

constexpr double kMiB = 1 << 20;

struct Outcome {
  Tensors gradients;
  int64_t peak_bytes = 0;  ///< beyond what was there before the step
};

/// One step from the same seed; a first one warms up.
template <typename Step>
Outcome train(const Network& network, const Tensors& inputs, Meter& meter, const Step& step) {
  Outcome outcome;
  for (int i = 0; i < 2; ++i) {
    outcome.gradients.clear();
    for (const torch::Tensor& parameter : network.parameters()) parameter.mutable_grad().reset();
    torch::cuda::synchronize();
    const int64_t before = meter.current_bytes();
    meter.reset_peak();
    torch::manual_seed(5);
    step(inputs).backward();
    torch::cuda::synchronize();
    outcome.peak_bytes = meter.peak_bytes() - before;
    for (const torch::Tensor& parameter : network.parameters()) outcome.gradients.push_back(parameter.grad().clone());
  }
  return outcome;
}

double largest_difference(const Tensors& one, const Tensors& other) {
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) largest = std::max(largest, (one[i] - other[i]).abs().max().item<double>());
  return largest;
}

void check(const std::string& name, int64_t batch) {
  const torch::Device device(torch::kCUDA, 0);
  Meter meter(device);
  torch::manual_seed(1);
  const Network network = make_zoo_network(name);
  network.to(device);
  const Tensors inputs = zoo_sample(name, {}, batch, 0, device);
  const auto plainly = [&](const Tensors& batch_inputs) { return network.forward(batch_inputs)[0]; };
  const Outcome plain = train(network, inputs, meter, plainly);
  const Outcome again = train(network, inputs, meter, plainly);
  std::printf("%s, batch %ld: plain training takes %.1f MiB; its gradients differ from its own by %g\n", name.c_str(),
              static_cast<long>(batch), static_cast<double>(plain.peak_bytes) / kMiB,
              largest_difference(again.gradients, plain.gradients));

  const NetworkCosts costs = measure(network, inputs);
  const StepGraph step = make_step_graph(network, costs);
  const Problem problem = make_problem(step);
  const int64_t resident_bytes = step.graph.resident_bytes();
  const int64_t store_all_bytes = simulate(step.graph, store_all(step.graph)).peak_bytes - resident_bytes;
  for (const int percent : {100, 80, 60, 50, 40, 30}) {
    const Plan plan = make_plan(get_planner("auto"), problem, {resident_bytes + store_all_bytes * percent / 100, {}});
    if (!plan.result.schedule) {
      std::printf("  %3d %%: below the smallest budget\n", percent);
      continue;
    }
    const TrainingStep trainer(network, costs, step, *plan.result.schedule);
    const Outcome outcome = train(network, inputs, meter, trainer);
    const auto predicted_bytes = static_cast<double>(*plan.peak_bytes - resident_bytes + trainer.beside_bytes());
    const auto measured_bytes = static_cast<double>(outcome.peak_bytes);
    std::printf("  %3d %%: predicted %.1f MiB, measured %.1f MiB (%+.2f %%), gradients differ by %g\n", percent,
                predicted_bytes / kMiB, measured_bytes / kMiB, 100 * (measured_bytes / predicted_bytes - 1),
                largest_difference(outcome.gradients, plain.gradients));
  }
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: train_check NETWORK BATCH\n");
    return 2;
  }
  headroom::check(argv[1], std::stol(argv[2]));
}
