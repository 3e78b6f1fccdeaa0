#include "headroom/train/trainer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

namespace headroom::internal {
namespace {

void wait_for(torch::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace

StepFunction plain_step(const Network& network) {
  return [&network](const Tensors& batch) { return network.forward(batch)[0]; };
}

void run_step(const StepFunction& step, const Tensors& batch, Meter& meter, TrainedSteps& steps,
              torch::optim::Optimizer* optimizer) {
  wait_for(meter.device());
  const int64_t before_bytes = meter.current_bytes();
  meter.reset_peak();
  const auto start = std::chrono::steady_clock::now();
  const torch::Tensor loss = step(batch);
  loss.backward();
  if (optimizer != nullptr) optimizer->step();
  wait_for(meter.device());
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
  steps.peaks_bytes.push_back(meter.peak_bytes() - before_bytes);
  steps.times_ns.push_back(time.count());
  steps.losses.push_back(loss.item<double>());
}

Tensors on_host(const Tensors& tensors) {
  Tensors result;
  for (const torch::Tensor& tensor : tensors)
    result.push_back(tensor.defined() ? tensor.detach().to(torch::kCPU, tensor.scalar_type(), false, true) : tensor);
  return result;
}

Tensors copy_gradients(const Network& network) {
  Tensors gradients;
  for (const torch::Tensor& parameter : network.parameters()) gradients.push_back(parameter.grad());
  return on_host(gradients);
}

void clear_gradients(const Network& network) {
  for (const torch::Tensor& parameter : network.parameters()) parameter.mutable_grad().reset();
}

TrainingState::TrainingState(const Network& network, torch::Device device)
    : parameters_(on_host(network.parameters())),
      buffers_(on_host(network.buffers())),
      random_(RandomState::now(device)) {}

void TrainingState::restore(const Network& network) const {
  const torch::NoGradGuard no_grad;
  restore_buffers(network.parameters(), parameters_);
  restore_buffers(network.buffers(), buffers_);
  random_.restore();
}

void Difference::add(const Tensors& left, const Tensors& right) {
  for (size_t i = 0; i < left.size(); ++i) {
    if (!left[i].defined() && !right[i].defined()) continue;
    if (left[i].defined() != right[i].defined() || !left[i].sizes().equals(right[i].sizes())) {
      *this = {std::numeric_limits<double>::infinity(), false};
      return;
    }
    const torch::Tensor a = left[i].contiguous();
    const torch::Tensor b = right[i].contiguous();
    if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) continue;
    identical = false;
    largest = std::max(largest, (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>());
  }
}

MeasuredMemory measure_memory(TrainingStep step, torch::Device device, const std::function<void()>& run) {
  Meter meter(device);
  step.observe([&meter](size_t /*step*/) { meter.mark({}); });
  run();
  step.observe({});
  MeasuredMemory memory;
  for (const MemoryMark& mark : meter.timeline()) {
    memory.moment_bytes.push_back(mark.peak_bytes);
    memory.after_bytes.push_back(mark.current_bytes);
  }
  return memory;
}

}  // namespace headroom::internal
