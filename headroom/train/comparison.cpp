#include "headroom/train/comparison.h"

#include <torch/optim/sgd.h>

#include <bit>

namespace headroom {
namespace {

/// The state of compare_training().
class Comparer {
 public:
  Comparer(const Network& network, int64_t before_bytes, Meter& meter, const ComparisonOptions& options)
      : network_(network),
        before_bytes_(before_bytes),
        meter_(meter),
        options_(options),
        optimizer_(network.parameters(), torch::optim::SGDOptions(options.learning_rate)) {}

  Comparison run(const TrainingStep& planned, const std::function<Tensors()>& next_batch) {
    bool is_plain = options_.plain;
    TrainingState plain_state(network_, meter_.device());
    TrainingState planned_state = plain_state;
    for (int i = 0; i < options_.steps; ++i) {
      const Tensors batch = next_batch();
      const bool is_last = i + 1 == options_.steps;
      Tensors gradients;
      Tensors buffers;
      if (is_plain) {
        if (i > 0) plain_state.restore(network_);
        is_plain = run_plainly(batch);
        if (is_plain) {
          gradients = copy_gradients(network_);
          buffers = on_host(network_.buffers());
          if (!is_last) plain_state = TrainingState(network_, meter_.device());
        }
        clear_gradients(network_);
        planned_state.restore(network_);
      }
      run_planned(planned, batch, i == 0 && options_.measures_memory);
      if (is_plain) {
        compare(gradients, buffers);
        if (!is_last) planned_state = TrainingState(network_, meter_.device());
      }
      clear_gradients(network_);
      if (options_.progress) options_.progress(static_cast<size_t>(i) + 1, static_cast<size_t>(options_.steps));
    }
    return std::move(result_);
  }

 private:
  void train(const StepFunction& step, const Tensors& batch, std::vector<TrainedStep>& steps) {
    steps.push_back(run_step(step, batch, meter_, &optimizer_));
    steps.back().peak_bytes += before_bytes_;
  }

  /// Returns false, and forgets plain training, if the device's memory does not suffice.
  bool run_plainly(const Tensors& batch) {
    try {
      train(plain_step(network_), batch, result_.plain);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      result_.plain.clear();
      return false;
    }
  }

  void run_planned(const TrainingStep& step, const Tensors& batch, bool measures_memory) {
    if (!measures_memory) return train(step, batch, result_.planned);
    const int64_t more_bytes = meter_.current_bytes() - before_bytes_;
    result_.memory = measure_memory(step, meter_.device(), [&] { train(step, batch, result_.planned); });
    for (int64_t& bytes : result_.memory.moment_bytes) bytes -= more_bytes;
    for (int64_t& bytes : result_.memory.after_bytes) bytes -= more_bytes;
  }

  void compare(const Tensors& gradients, const Tensors& buffers) {
    result_.gradients.add(gradients, copy_gradients(network_));
    result_.buffers.add(buffers, on_host(network_.buffers()));
    const auto bits = [](const std::vector<TrainedStep>& steps) { return std::bit_cast<uint64_t>(steps.back().loss); };
    result_.identical &=
        result_.gradients.identical && result_.buffers.identical && bits(result_.plain) == bits(result_.planned);
  }

  const Network& network_;
  int64_t before_bytes_;
  Meter& meter_;
  const ComparisonOptions& options_;
  torch::optim::SGD optimizer_;
  Comparison result_;
};

}  // namespace

Comparison compare_training(const Network& network, const MeasuredStep& measured, const TrainingStep& planned,
                            const std::function<Tensors()>& next_batch, Meter& meter,
                            const ComparisonOptions& options) {
  return Comparer(network, measured.before_bytes, meter, options).run(planned, next_batch);
}

}  // namespace headroom
