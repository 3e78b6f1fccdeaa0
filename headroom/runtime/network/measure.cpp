#include "headroom/runtime/network/measure.h"

#include <ATen/ops/ones_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "headroom/core/quote.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/join.h"
#include "headroom/runtime/network/kernels.h"
#include "headroom/runtime/state.h"

namespace headroom {
using namespace internal;
namespace {

int64_t storage_bytes(const torch::Tensor& tensor) {
  return tensor.defined() ? allocated_bytes(static_cast<int64_t>(tensor.storage().nbytes()), tensor.device()) : 0;
}

bool shares_memory(const torch::Tensor& tensor, const std::vector<Tensors>& lists) {
  for (const Tensors& tensors : lists)
    for (const torch::Tensor& other : tensors)
      if (tensor.is_alias_of(other)) return true;
  return false;
}

int64_t sum_of_storages(const Tensors& tensors) {
  int64_t sum = 0;
  for (const torch::Tensor& tensor : tensors) sum += storage_bytes(tensor);
  return sum;
}

/// A gradient for several backwards, each of which consumes it. If it is on another device, it is kept on the host in
/// the meantime, unless other tensors share its memory or it shows only a part of it. In these cases it stays, and is
/// consumed only when it is taken.
class Spare {
 public:
  explicit Spare(torch::Tensor tensor) : tensor_(std::move(tensor)) {
    if (!tensor_.defined() || tensor_.is_cpu()) return;
    const bool is_shared = tensor_.use_count() > 1 || tensor_.storage().use_count() > 1;
    if (is_shared || !tensor_.is_non_overlapping_and_dense() || tensor_.storage().nbytes() != tensor_.nbytes()) return;
    device_ = tensor_.device();
    tensor_ = tensor_.cpu();
  }

  torch::Tensor copy() const {
    if (!tensor_.defined()) return tensor_;
    if (device_) return tensor_.to(*device_);
    return tensor_.is_cpu() ? tensor_.clone() : tensor_;
  }

  torch::Tensor take() { return device_ ? tensor_.to(*device_) : std::move(tensor_); }

 private:
  torch::Tensor tensor_;
  std::optional<torch::Device> device_;  ///< Its own device, if it is kept on the host.
};

/// The arguments of a backward, see backward_node().
struct Givens {
  Spare gradient;
  std::vector<Spare> inputs;
  std::vector<Spare> parameters;

  NodeGradients copy_sums() const {
    NodeGradients sums;
    for (const Spare& one : inputs) sums.inputs.push_back(one.copy());
    for (const Spare& one : parameters) sums.parameters.push_back(one.copy());
    return sums;
  }

  NodeGradients take_sums() {
    NodeGradients sums;
    for (Spare& one : inputs) sums.inputs.push_back(one.take());
    for (Spare& one : parameters) sums.parameters.push_back(one.take());
    return sums;
  }
};

std::string shape_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

/// Bytes and time of one measured call.
struct Reading {
  int64_t made_bytes = 0;  ///< Bytes that are still live after it.
  int64_t peak_bytes = 0;  ///< Peak beyond the bytes live before it.
  int64_t time_ns = 0;
};

/// Reads the meter before and after work on a device, which is idle at both times.
class Bench {
 public:
  explicit Bench(torch::Device device) : meter_(device) {}

  template <typename Work>
  Reading read(Work work) {
    wait();
    const int64_t before = meter_.current_bytes();
    meter_.reset_peak();
    const auto start = std::chrono::steady_clock::now();
    work();
    wait();
    const auto time = std::chrono::steady_clock::now() - start;
    return Reading{meter_.current_bytes() - before, meter_.peak_bytes() - before,
                   std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()};
  }

 private:
  void wait() const {
    if (!meter_.device().is_cpu())
      c10::impl::VirtualGuardImpl(meter_.device().type()).synchronizeDevice(meter_.device().index());
  }

  Meter meter_;
};

/// The times of one kind of work on one node.
class Times {
 public:
  explicit Times(const MeasureOptions& options) : options_(options) {}

  void add(int64_t time_ns) {
    times_ns_.push_back(time_ns);
    sum_ns_ += time_ns;
  }

  bool are_enough() const {
    const auto count = static_cast<int>(times_ns_.size());
    if (count < options_.least_repeats) return false;
    if (count >= options_.most_repeats || sum_ns_ > options_.node_ns) return true;
    const int64_t middle = median_ns();
    const auto is_close = [&](int64_t time) { return std::abs(time - middle) <= middle / 20; };
    return std::ranges::count_if(times_ns_, is_close) > count / 2;
  }

  int64_t median_ns() const {
    std::vector<int64_t> sorted = times_ns_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  const MeasureOptions& options_;
  std::vector<int64_t> times_ns_;
  int64_t sum_ns_ = 0;
};

/// Measures the nodes of a network in order of forward, and then of backward.
class Measurer {
 public:
  Measurer(const Network& network, const Tensors& inputs, const MeasureOptions& options)
      : network_(network), inputs_(inputs), options_(options), bench_(inputs[0].device()) {
    const size_t nodes = network.nodes().size();
    costs_.nodes.resize(nodes);
    costs_.input_bytes = storage_bytes(inputs[0]);
    Tensors resident = network.parameters();
    for (const torch::Tensor& buffer : network.buffers())
      if (std::ranges::none_of(resident, [&](const torch::Tensor& tensor) { return tensor.is_alias_of(buffer); }))
        resident.push_back(buffer);
    resident.insert(resident.end(), inputs.begin() + 1, inputs.end());
    costs_.resident_bytes = sum_of_storages(resident);
    for (const NetworkNode& node : network.nodes())
      for (const torch::Tensor& parameter : node.parameters) ++users_[parameter.unsafeGetTensorImpl()];
    outputs_.resize(nodes);
    gradients_.resize(inputs.size() + nodes);
  }

  NetworkCosts run() {
    const KeptState state(network_.buffers(), inputs_[0].device(), network_.generators());
    const size_t nodes = network_.nodes().size();
    std::vector<size_t> last_reader(nodes, 0);
    for (size_t n = 0; n < nodes; ++n)
      for (const Wire wire : network_.nodes()[n].inputs)
        if (index(wire) >= inputs_.size()) last_reader[index(wire) - inputs_.size()] = n;
    for (size_t n = 0; n < nodes; ++n) {
      measure_forward(n);
      for (const Wire wire : network_.nodes()[n].inputs)
        if (index(wire) >= inputs_.size() && last_reader[index(wire) - inputs_.size()] == n)
          park(outputs_[index(wire) - inputs_.size()]);
      report(n + 1);
    }
    gradients_.back() = at::ones_like(outputs_.back());
    for (size_t n = nodes; n-- > 0;) {
      outputs_[n].reset();
      measure_backward(n);
      report(2 * nodes - n);
    }
    return std::move(costs_);
  }

 private:
  void report(size_t done) const {
    if (options_.progress) options_.progress(done, 2 * network_.nodes().size());
  }

  [[noreturn]] static void refuse(const NetworkNode& node, const std::string& what) {
    throw InvalidInput("node " + quote(node.name) + " " + what);
  }

  /// Moves a value to the host until backward needs it.
  static void park(torch::Tensor& value) {
    if (!value.is_cpu()) value = value.cpu();
  }

  Tensors arguments(size_t n) {
    Tensors result;
    for (const Wire wire : network_.nodes()[n].inputs) {
      if (index(wire) < inputs_.size()) {
        result.push_back(inputs_[index(wire)]);
        continue;
      }
      torch::Tensor& value = outputs_[index(wire) - inputs_.size()];
      value = value.to(inputs_[0].device());
      result.push_back(value);
    }
    return result;
  }

  NodeOutput record(size_t n, const Tensors& from) const {
    const NetworkNode& node = network_.nodes()[n];
    NodeOutput made = record_node(node, from, network_.trained_inputs(node, inputs_));
    if (!made.output.defined()) refuse(node, "returns no tensor");
    return made;
  }

  void measure_forward(size_t n) {
    const NetworkNode& node = network_.nodes()[n];
    NodeCosts& costs = costs_.nodes[n];
    const Tensors from = arguments(n);
    const KeptState state(node.buffers, inputs_[0].device(), node.generators);
    for (int i = 0; i < options_.warmups; ++i) record(n, from);
    state.restore();
    NodeOutput made;
    Times times(options_);
    for (int i = 0; i == 0 || !times.are_enough(); ++i) {
      const torch::Tensor before = std::exchange(made, {}).output;
      const int64_t tape_before_bytes = costs.tape_bytes;
      const Reading reading = bench_.read([&] { made = record(n, from); });
      times.add(reading.time_ns);
      costs.output_bytes =
          shares_memory(made.output, {from, node.parameters, node.buffers}) ? 0 : storage_bytes(made.output);
      costs.tape_bytes = reading.made_bytes;
      costs.record_workspace_bytes = reading.peak_bytes - reading.made_bytes;
      if (i == 0) {
        costs.draws = state.random_has_changed();
        costs.changes_buffers = state.buffers_have_changed();
      } else if (!before.sizes().equals(made.output.sizes())) {
        refuse(node,
               "gives another shape from one run to the next: " + shape_of(before) + ", then " + shape_of(made.output));
      } else if (tape_before_bytes != costs.tape_bytes && inputs_[0].is_cpu()) {
        refuse(node, "allocates differently from one run to the next: a tape of " + std::to_string(tape_before_bytes) +
                         " bytes, then of " + std::to_string(costs.tape_bytes));
      }
    }
    costs.forward_ns = times.median_ns();
    made = {};

    state.restore();
    const torch::Tensor recorded = forward_node(node, from, true);
    state.restore();
    const Reading plain = bench_.read([&] { outputs_[n] = forward_node(node, from, false); });
    costs.forward_workspace_bytes = plain.peak_bytes - plain.made_bytes;
    costs.records_to_run = !outputs_[n].equal(recorded);
    if (!costs.records_to_run) return;
    outputs_[n].reset();
    const Reading again = bench_.read([&] { outputs_[n] = forward_node(node, from, true); });
    costs.forward_workspace_bytes = again.peak_bytes - again.made_bytes;
  }

  /// Returns the gradient of node n's output, and the gradients that later nodes gave its inputs and parameters, and
  /// keeps none of them.
  Givens take_givens(size_t n) {
    const NetworkNode& node = network_.nodes()[n];
    Givens givens{Spare(std::exchange(gradients_[index(network_.wire_of_node(n))], {})), {}, {}};
    for (const Wire wire : node.inputs) givens.inputs.emplace_back(std::exchange(gradients_[index(wire)], {}));
    for (const torch::Tensor& parameter : node.parameters)
      givens.parameters.emplace_back(std::exchange(parameter_gradients_[parameter.unsafeGetTensorImpl()], {}));
    return givens;
  }

  /// Returns whose memory the gradient of input k is: that of the output's gradient, `given`, where somebody still uses
  /// it, that of another input's gradient, or its own.
  GradientMemory memory_of_input_gradient(const Tensors& gradients, size_t k, const c10::StorageImpl* given) const {
    const torch::Tensor& gradient = gradients[k];
    const auto is_in_use = [&](const torch::Tensor& other) { return other.defined() && other.is_alias_of(gradient); };
    GradientMemory memory;
    if (gradient.defined() && given != nullptr && gradient.storage().unsafeGetStorageImpl() == given &&
        std::ranges::any_of(gradients_, is_in_use)) {
      memory.shared_with = GradientMemory::kOutputGradient;
    } else if (gradient.defined()) {
      for (size_t j = 0; j < k && !memory.shared_with; ++j)
        if (gradients[j].defined() && gradient.is_alias_of(gradients[j])) memory.shared_with = static_cast<int>(j);
    }
    if (!memory.shared_with) memory.bytes = storage_bytes(gradient);
    return memory;
  }

  void measure_backward(size_t n) {
    const NetworkNode& node = network_.nodes()[n];
    NodeCosts& costs = costs_.nodes[n];
    const Tensors from = arguments(n);
    Givens givens = take_givens(n);
    NodeGradients gradients;
    const auto run = [&](NodeOutput made, torch::Tensor gradient, NodeGradients sums) {
      made.output.reset();
      return bench_.read(
          [&] { gradients = backward_node(node, std::move(made.tape), std::move(gradient), std::move(sums)); });
    };
    Times times(options_);
    for (int i = -options_.warmups; i <= 0 || !times.are_enough(); ++i) {
      gradients = {};
      const Reading reading = run(record(n, from), givens.gradient.copy(), givens.copy_sums());
      if (i >= 0) times.add(reading.time_ns);
    }
    costs.backward_ns = times.median_ns();
    gradients = {};
    std::optional<int64_t> held_peak_bytes;
    try {
      NodeOutput made = record(n, from);
      const torch::Tensor output = made.output;
      const torch::Tensor gradient = givens.gradient.copy();
      held_peak_bytes = run(std::move(made), gradient, givens.copy_sums()).peak_bytes;
    } catch (const c10::OutOfMemoryError&) {
      // An earlier backward succeeded, so memory is short only for keeping the output and its gradient as well.
    }
    gradients = {};

    // Run once as the executor does, where gradients that share memory share it too.
    torch::Tensor gradient = givens.gradient.take();
    NodeGradients sums = givens.take_sums();
    // The gradient of the loss belongs to autograd and is not freed.
    const torch::Tensor kept = n + 1 == network_.nodes().size() ? gradient : torch::Tensor();
    const int64_t gradient_bytes = storage_bytes(gradient);
    std::vector<bool> is_new;
    for (const torch::Tensor& sum : sums.parameters) is_new.push_back(!sum.defined());
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> given;
    if (gradient.defined()) given = gradient.storage().getWeakStorageImpl();
    NodeOutput made = record(n, from);
    const RandomState random = RandomState::now(inputs_[0].device(), node.generators);
    const Reading reading = run(std::move(made), std::move(gradient), std::move(sums));
    costs.backward_draws = !(RandomState::now(inputs_[0].device(), node.generators) == random);
    for (size_t k = 0; k < is_new.size(); ++k)
      if (is_new[k]) costs.parameter_gradient_bytes += storage_bytes(gradients.parameters[k]);
    int64_t made_bytes = costs.parameter_gradient_bytes;
    const auto still_given = given ? given->lock() : nullptr;
    for (size_t k = 0; k < gradients.inputs.size(); ++k) {
      const GradientMemory memory = memory_of_input_gradient(gradients.inputs, k, still_given.get());
      made_bytes += memory.bytes;
      costs.input_gradients.push_back(memory);
    }
    costs.backward_workspace_bytes = reading.peak_bytes - made_bytes;
    const int64_t held_bytes = held_peak_bytes.value_or(reading.peak_bytes + costs.output_bytes + gradient_bytes);
    costs.held_backward_workspace_bytes = std::max(held_bytes - made_bytes, costs.backward_workspace_bytes);
    keep(node, std::move(gradients));
  }

  /// Keeps the gradients that a node's backward has computed for the backwards that add to them or read them.
  void keep(const NetworkNode& node, NodeGradients gradients) {
    for (size_t k = 0; k < node.inputs.size(); ++k)
      if (gradients.inputs[k].defined()) gradients_[index(node.inputs[k])] = std::move(gradients.inputs[k]);
    for (size_t k = 0; k < node.parameters.size(); ++k) {
      const c10::TensorImpl* parameter = node.parameters[k].unsafeGetTensorImpl();
      if (users_.at(parameter) > 1) parameter_gradients_[parameter] = std::move(gradients.parameters[k]);
    }
  }

  const Network& network_;
  const Tensors& inputs_;
  const MeasureOptions& options_;
  Bench bench_;
  NetworkCosts costs_;
  Tensors outputs_;                                                      ///< By node.
  Tensors gradients_;                                                    ///< By wire.
  std::map<const c10::TensorImpl*, int> users_;                          ///< By parameter: number of nodes that use it.
  std::map<const c10::TensorImpl*, torch::Tensor> parameter_gradients_;  ///< By parameter that several nodes use.
};

}  // namespace

MeasuredNetwork measure(const Network& network, const Tensors& inputs, const MeasureOptions& options) {
  const Traits traits = find_traits(network, inputs);
  Network joined = join(with_side_effects(network, traits.effects), traits.joins);
  NetworkCosts costs = Measurer(joined, inputs, options).run();
  return {std::move(joined), std::move(costs)};
}

}  // namespace headroom
