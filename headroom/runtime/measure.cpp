#include "headroom/runtime/measure.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <chrono>

#include "headroom/core/quote.h"
#include "headroom/runtime/kernels.h"
#include "headroom/runtime/meter.h"

namespace headroom {
namespace {

int64_t storage_bytes(const torch::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
}

int64_t sum_of_storages(const Tensors& tensors) {
  int64_t sum = 0;
  for (const torch::Tensor& tensor : tensors) sum += storage_bytes(tensor);
  return sum;
}

bool same_bits(const Tensors& one, const Tensors& other) {
  return std::ranges::equal(one, other, [](const torch::Tensor& a, const torch::Tensor& b) { return a.equal(b); });
}

/// Bytes and time of one piece of work.
struct Reading {
  int64_t made_bytes = 0;  ///< still there afterwards
  int64_t peak_bytes = 0;  ///< beyond what was there before
  int64_t time_ns = 0;
};

class NodeMeasurer {
 public:
  NodeMeasurer(Meter& meter, const NetworkNode& node, Tensors inputs, std::vector<bool> trains,
               const MeasureOptions& options)
      : meter_(meter), node_(node), inputs_(std::move(inputs)), trains_(std::move(trains)), options_(options) {}

  NodeCosts run(torch::Tensor& output) {
    const torch::Device device = inputs_[0].device();
    const RandomState random_before = RandomState::now(device);
    const Tensors buffers_before = copy_buffers(node_.buffers);
    const auto start_again = [&] {
      random_before.restore();
      restore_buffers(node_.buffers, buffers_before);
    };
    std::vector<uint32_t> versions;
    for (const torch::Tensor& input : inputs_) versions.push_back(static_cast<uint32_t>(input._version()));

    NodeCosts costs;
    for (int i = 0; i < options_.warmups; ++i) forward_and_backward(costs);
    start_again();
    NodeCosts again;
    std::vector<int64_t> forward_ns;
    std::vector<int64_t> backward_ns;
    for (int i = 0; i < options_.repeats; ++i) {
      again = costs;
      forward_and_backward(costs);
      if (i == 0) {
        costs.draws = !(RandomState::now(device) == random_before);
        costs.changes_buffers = !same_bits(node_.buffers, buffers_before);
      } else if (again.tape_bytes != costs.tape_bytes || again.output_bytes != costs.output_bytes) {
        refuse("allocates differently from one run to the next: a tape of " + std::to_string(again.tape_bytes) +
               " bytes, then of " + std::to_string(costs.tape_bytes));
      }
      forward_ns.push_back(costs.forward_ns);
      backward_ns.push_back(costs.backward_ns);
    }
    for (size_t k = 0; k < inputs_.size(); ++k)
      if (inputs_[k]._version() != versions[k]) refuse("changes its input in place");
    costs.forward_ns = median(forward_ns);
    costs.backward_ns = median(backward_ns);

    start_again();
    const torch::Tensor recorded = forward_node(node_, inputs_, true);
    start_again();
    output = measure_forward(costs);
    costs.records_to_run = !output.equal(recorded);
    start_again();
    return costs;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InvalidInput("node " + quote(node_.name) + " " + what);
  }

  template <typename Work>
  Reading read(Work work) {
    const int64_t before = meter_.current_bytes();
    meter_.reset_peak();
    const auto start = std::chrono::steady_clock::now();
    work();
    const auto time = std::chrono::steady_clock::now() - start;
    return Reading{meter_.current_bytes() - before, meter_.peak_bytes() - before,
                   std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()};
  }

  static int64_t median(std::vector<int64_t> numbers) {
    std::ranges::sort(numbers);
    return numbers[numbers.size() / 2];
  }

  torch::Tensor measure_forward(NodeCosts& costs) {
    torch::Tensor output;
    const Reading reading = read([&] { output = forward_node(node_, inputs_, costs.records_to_run); });
    costs.forward_workspace_bytes = reading.peak_bytes - reading.made_bytes;
    return output;
  }

  void forward_and_backward(NodeCosts& costs) {
    NodeOutput made;
    const Reading forward = read([&] { made = record_node(node_, inputs_, trains_); });
    if (!made.output.defined()) refuse("returns no tensor");
    for (const torch::Tensor& input : inputs_)
      if (input.is_alias_of(made.output)) refuse("returns its input or a view of it: join it to another node");
    costs.forward_ns = forward.time_ns;
    costs.output_bytes = storage_bytes(made.output);
    costs.tape_bytes = forward.made_bytes;
    costs.record_workspace_bytes = forward.peak_bytes - forward.made_bytes;

    const torch::Tensor gradient = at::ones_like(made.output);
    NodeGradients gradients;
    const Reading backward = read([&] { gradients = backward_node(node_, made.tape, gradient); });
    costs.backward_ns = backward.time_ns;
    costs.parameter_gradient_bytes = sum_of_storages(gradients.parameters);
    costs.input_gradient_bytes.clear();
    costs.passes_gradient_on.clear();
    costs.backward_workspace_bytes = backward.peak_bytes - costs.parameter_gradient_bytes;
    for (const torch::Tensor& input_gradient : gradients.inputs) {
      costs.passes_gradient_on.push_back(input_gradient.defined() && input_gradient.is_alias_of(gradient));
      costs.input_gradient_bytes.push_back(costs.passes_gradient_on.back() ? 0 : storage_bytes(input_gradient));
      costs.backward_workspace_bytes -= costs.input_gradient_bytes.back();
    }
  }

  Meter& meter_;
  const NetworkNode& node_;
  Tensors inputs_;
  std::vector<bool> trains_;
  MeasureOptions options_;
};

}  // namespace

NetworkCosts measure(const Network& network, const Tensors& inputs, const MeasureOptions& options) {
  network.check_inputs(inputs);
  Meter meter(inputs[0].device());
  NetworkCosts costs;
  costs.input_bytes = storage_bytes(inputs[0]);
  costs.resident_bytes = sum_of_storages(network.parameters()) + sum_of_storages(network.buffers());
  for (size_t i = 1; i < inputs.size(); ++i) costs.resident_bytes += storage_bytes(inputs[i]);
  Tensors values = inputs;
  for (const NetworkNode& node : network.nodes()) {
    Tensors arguments;
    for (const Wire wire : node.inputs) arguments.push_back(values[index(wire)]);
    torch::Tensor output;
    costs.nodes.push_back(
        NodeMeasurer(meter, node, std::move(arguments), network.trained_inputs(node, inputs), options).run(output));
    values.push_back(std::move(output));
  }
  return costs;
}

}  // namespace headroom
