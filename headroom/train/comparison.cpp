#include "headroom/train/comparison.h"

#include <torch/optim/sgd.h>

#include <bit>

namespace headroom::internal {
namespace {

/// The state of compare_training().
class Comparer {
 public:
  Comparer(const Network& network, int64_t before_bytes, Meter& meter, double learning_rate)
      : network_(network),
        before_bytes_(before_bytes),
        meter_(meter),
        optimizer_(network.parameters(), torch::optim::SGDOptions(learning_rate)) {}

  void train(const StepFunction& step, const Tensors& batch, TrainedSteps& steps) {
    run_step(step, batch, meter_, steps, &optimizer_);
    steps.peaks_bytes.back() += before_bytes_;
  }

  /// Forgets plain training if the device's memory does not suffice.
  void train_plainly(const Tensors& batch) {
    try {
      train(plain_step(network_), batch, *result.plain);
    } catch (const c10::OutOfMemoryError&) {
      result.plain.reset();
    }
  }

  void train_measured(const TrainingStep& step, const Tensors& batch) {
    const int64_t more_bytes = meter_.current_bytes() - before_bytes_;
    result.memory = measure_memory(step, meter_.device(), [&] { train(step, batch, result.planned); });
    for (int64_t& bytes : result.memory.moment_bytes) bytes -= more_bytes;
    for (int64_t& bytes : result.memory.after_bytes) bytes -= more_bytes;
  }

  void compare(const Tensors& gradients, const Tensors& buffers) {
    result.gradients.add(gradients, copy_gradients(network_));
    result.buffers.add(buffers, on_host(network_.buffers()));
    const auto bits = [](const TrainedSteps& steps) { return std::bit_cast<uint64_t>(steps.losses.back()); };
    result.identical &=
        result.gradients.identical && result.buffers.identical && bits(*result.plain) == bits(result.planned);
  }

  Comparison result;

 private:
  const Network& network_;
  int64_t before_bytes_;
  Meter& meter_;
  torch::optim::SGD optimizer_;
};

}  // namespace

Comparison compare_training(const Network& network, const MeasuredStep& measured, const TrainingStep& planned,
                            const std::function<Tensors()>& next_batch, Meter& meter,
                            const ComparisonOptions& options) {
  Comparer comparer(network, measured.before_bytes, meter, options.learning_rate);
  if (options.plain) comparer.result.plain.emplace();
  TrainingState plain_state(network, meter.device());
  TrainingState planned_state = plain_state;
  for (int i = 0; i < options.steps; ++i) {
    const Tensors batch = next_batch();
    const bool is_last = i + 1 == options.steps;
    Tensors gradients;
    Tensors buffers;
    if (comparer.result.plain) {
      if (i > 0) plain_state.restore(network);
      comparer.train_plainly(batch);
      if (comparer.result.plain) {
        gradients = copy_gradients(network);
        buffers = on_host(network.buffers());
        if (!is_last) plain_state = TrainingState(network, meter.device());
      }
      clear_gradients(network);
      planned_state.restore(network);
    }
    if (i == 0 && options.measures_memory) {
      comparer.train_measured(planned, batch);
    } else {
      comparer.train(planned, batch, comparer.result.planned);
    }
    if (comparer.result.plain) {
      comparer.compare(gradients, buffers);
      if (!is_last) planned_state = TrainingState(network, meter.device());
    }
    clear_gradients(network);
    if (options.progress) options.progress(static_cast<size_t>(i) + 1, static_cast<size_t>(options.steps));
  }
  return std::move(comparer.result);
}

}  // namespace headroom::internal
