#pragma once

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/executor.h"
#include "headroom/runtime/state.h"

namespace headroom::internal {

/// Returns the loss of a batch: a TrainingStep, or plain_step().
using StepFunction = std::function<torch::Tensor(const Tensors& batch)>;

/// Returns the step of plain training. `network` must outlive it.
StepFunction plain_step(const Network& network);

/// The measured figures of training steps, by step.
struct TrainedSteps {
  std::vector<double> losses;
  std::vector<int64_t> peaks_bytes;
  std::vector<int64_t> times_ns;  ///< Wall-clock times until the device has finished.
};

/// Runs forward, backward and, if there is one, the optimizer's step, and appends their figures to `steps`. The peak is
/// the bytes beyond those that were live before. Gradients stay; call clear_gradients() before the next step.
void run_step(const StepFunction& step, const Tensors& batch, Meter& meter, TrainedSteps& steps,
              torch::optim::Optimizer* optimizer = nullptr);

/// Returns the upper median of numbers; there must be one.
template <typename Number>
Number median(std::vector<Number> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

/// Returns copies of tensors on the host, also of undefined tensors.
Tensors on_host(const Tensors& tensors);

/// Returns copies of the gradients of a network's parameters on the host.
Tensors copy_gradients(const Network& network);
void clear_gradients(const Network& network);

/// The state of training at one moment: parameters, buffers and random generators, copied to the host.
class TrainingState {
 public:
  TrainingState(const Network& network, torch::Device device);
  void restore(const Network& network) const;

 private:
  Tensors parameters_;
  Tensors buffers_;
  RandomState random_;
};

/// How tensors differ: the largest absolute difference, and whether all bits are the same.
struct Difference {
  double largest = 0;
  bool identical = true;

  /// Adds the difference of two lists of the same length on the host.
  void add(const Tensors& left, const Tensors& right);
};

/// The device's memory during and after each step of a schedule.
struct MeasuredMemory {
  std::vector<int64_t> moment_bytes;
  std::vector<int64_t> after_bytes;
};

/// Measures the memory of a schedule's steps while `run` runs the training step once.
MeasuredMemory measure_memory(TrainingStep step, torch::Device device, const std::function<void()>& run);

}  // namespace headroom::internal
