#include "headroom/runtime/kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <sstream>

#include "headroom/core/quote.h"

namespace headroom {
namespace {

std::runtime_error failure(const NetworkNode& node, const char* what, const Tensors& inputs, const char* why) {
  std::ostringstream text;
  text << what << " of node " << quote(node.name) << " on";
  for (const torch::Tensor& input : inputs)
    if (input.defined()) text << " " << input.sizes();
  text << ": " << why;
  return std::runtime_error(text.str());
}

/// Runs `work`, and says in what it fails: which node, on which shapes.
template <typename Work>
auto named(const NetworkNode& node, const char* what, const Tensors& inputs, Work work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    throw failure(node, what, inputs, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw failure(node, what, inputs, error.what());
  }
}

/// Where tensor k stands first: one that a node reads in several places is one leaf, so that its gradients add up in
/// autograd's order.
size_t first_place(const Tensors& tensors, size_t k) {
  for (size_t i = 0; i < k; ++i)
    if (tensors[i].is_same(tensors[k])) return i;
  return k;
}

at::Generator default_generator(torch::Device device) { return at::globalContext().defaultGenerator(device); }

}  // namespace

torch::Tensor forward_node(const NetworkNode& node, const Tensors& inputs, bool records) {
  const at::AutoGradMode mode(records);
  const torch::Tensor output = named(node, "forward", inputs, [&] { return node.forward(inputs); });
  return output.defined() ? output.detach() : output;
}

NodeOutput record_node(const NetworkNode& node, const Tensors& inputs, const std::vector<bool>& trains) {
  const at::AutoGradMode mode(true);
  NodeOutput result;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const size_t first = first_place(inputs, k);
    torch::Tensor leaf = first < k ? result.tape.leaves[first] : inputs[k].detach();
    if (trains[k]) leaf.requires_grad_(true);
    result.tape.leaves.push_back(std::move(leaf));
  }
  result.tape.output = named(node, "forward", inputs, [&] { return node.forward(result.tape.leaves); });
  if (result.tape.output.defined()) result.output = result.tape.output.detach();
  return result;
}

NodeGradients backward_node(const NetworkNode& node, const Tape& tape, const torch::Tensor& gradient) {
  const auto is_source = [&](size_t k) { return tape.leaves[k].requires_grad() && first_place(tape.leaves, k) == k; };
  Tensors sources;
  for (size_t k = 0; k < tape.leaves.size(); ++k)
    if (is_source(k)) sources.push_back(tape.leaves[k]);
  sources.insert(sources.end(), node.parameters.begin(), node.parameters.end());
  NodeGradients result;
  result.inputs.resize(tape.leaves.size());
  result.parameters.resize(node.parameters.size());
  if (sources.empty()) return result;
  Tensors gradients = named(node, "backward", {gradient}, [&] {
    return torch::autograd::grad({tape.output}, sources, {gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  });
  size_t next = 0;
  for (size_t k = 0; k < tape.leaves.size(); ++k)
    if (is_source(k)) result.inputs[k] = std::move(gradients[next++]);
  for (torch::Tensor& parameter : result.parameters) parameter = std::move(gradients[next++]);
  return result;
}

RandomState RandomState::now(torch::Device device) {
  at::Generator generator = default_generator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return RandomState(device, generator.clone());
}

void RandomState::restore() const {
  at::Generator generator = default_generator(device_);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  if (!device_.is_cpu()) {
    generator.set_state(generator_.get_state());
    return;
  }
  // Not through a state tensor, which would count as memory of the step.
  auto* to = at::check_generator<at::CPUGeneratorImpl>(generator);
  auto* from = at::check_generator<at::CPUGeneratorImpl>(generator_);
  to->set_engine(from->engine());
  to->set_next_float_normal_sample(from->next_float_normal_sample());
  to->set_next_double_normal_sample(from->next_double_normal_sample());
}

bool RandomState::operator==(const RandomState& other) const {
  return generator_.get_state().equal(other.generator_.get_state());
}

Tensors copy_buffers(const Tensors& buffers) {
  Tensors copies;
  for (const torch::Tensor& buffer : buffers) copies.push_back(buffer.detach().clone());
  return copies;
}

void restore_buffers(const Tensors& buffers, const Tensors& saved) {
  const at::NoGradGuard no_grad;
  // variable_data() has a version counter of its own.
  for (size_t i = 0; i < saved.size(); ++i) buffers[i].variable_data().copy_(saved[i]);
}

}  // namespace headroom
