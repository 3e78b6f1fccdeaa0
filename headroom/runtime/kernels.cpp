#include "headroom/runtime/kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/custom_class.h>

#include <algorithm>
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

/// Gradients on their way into backward.
struct Given : torch::CustomClassHolder {
  Tensors gradients;
};

/// A start for backward at several tensors at once whose gradients autograd owns: torch::autograd::grad() itself would
/// keep those it is given until it ends. It is the first to run, so what it gives a tensor is what others are added to.
struct HandOver : torch::autograd::Function<HandOver> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Given>& given,
                               at::TensorList tensors) {
    context->saved_data[kGiven] = c10::IValue::make_capsule(given);
    return at::empty({0}, tensors[0].options().requires_grad(false));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& /*of_nothing*/) {
    auto given = context->saved_data[kGiven].toCapsule();
    torch::autograd::variable_list gradients = {torch::Tensor()};  // `given` is no variable
    for (torch::Tensor& gradient : static_cast<Given*>(given.get())->gradients)
      gradients.push_back(std::move(gradient));
    return gradients;
  }

 private:
  static constexpr const char* kGiven = "given";
};

/// Takes the hooks off tensors while it lives.
class HooksAside {
 public:
  explicit HooksAside(const Tensors& tensors) : tensors_(tensors) { exchange(); }
  ~HooksAside() { exchange(); }
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;

 private:
  void exchange() {
    hooks_.resize(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) std::swap(hooks_[i], torch::autograd::impl::hooks(tensors_[i]));
  }
  const Tensors& tensors_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

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

NodeGradients backward_node(const NetworkNode& node, Tape tape, torch::Tensor gradient, NodeGradients sums) {
  sums.inputs.resize(tape.leaves.size());
  sums.parameters.resize(node.parameters.size());
  if (!gradient.defined() || !tape.output.requires_grad()) return sums;
  Tensors sources;
  std::vector<torch::Tensor*> results;  ///< by source: where its gradient goes
  Tensors starts = {std::move(tape.output)};
  auto given = c10::make_intrusive<Given>();
  given->gradients = {std::move(gradient)};
  const auto add_source = [&](const torch::Tensor& source, torch::Tensor& sum) {
    sources.push_back(source);
    results.push_back(&sum);
    if (!sum.defined()) return;
    starts.push_back(source);
    given->gradients.push_back(std::move(sum));
  };
  for (size_t k = 0; k < tape.leaves.size(); ++k)
    if (tape.leaves[k].requires_grad() && first_place(tape.leaves, k) == k) add_source(tape.leaves[k], sums.inputs[k]);
  for (size_t k = 0; k < node.parameters.size(); ++k) add_source(node.parameters[k], sums.parameters[k]);
  if (sources.empty()) return sums;
  const HooksAside no_hooks(node.parameters);
  named(node, "backward", tape.leaves, [&] {
    torch::Tensor start;
    {
      const at::AutoGradMode mode(true);
      start = HandOver::apply(given, at::TensorList(starts));
      starts.clear();
    }
    Tensors gradients = torch::autograd::grad({start}, sources, {at::empty_like(start)}, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < results.size(); ++i) *results[i] = std::move(gradients[i]);
  });
  return sums;
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

EarlierState::EarlierState(torch::Device device, const std::optional<RandomState>& random, Tensors buffers,
                           const Tensors& then)
    : buffers_(std::move(buffers)) {
  if (random) {
    random_now_ = RandomState::now(device);
    random->restore();
  }
  for (size_t i = 0; i < then.size(); ++i) {
    now_.push_back(buffers_[i].variable_data());
    buffers_[i].set_data(then[i]);
  }
}

EarlierState::~EarlierState() {
  if (random_now_) random_now_->restore();
  for (size_t i = 0; i < now_.size(); ++i) buffers_[i].set_data(now_[i]);
}

KeptState::KeptState(Tensors buffers, torch::Device device)
    : device_(device),
      random_(RandomState::now(device)),
      buffers_(std::move(buffers)),
      saved_(copy_buffers(buffers_)) {}

void KeptState::restore() const {
  random_.restore();
  restore_buffers(buffers_, saved_);
}

bool KeptState::random_has_changed() const { return !(RandomState::now(device_) == random_); }

bool KeptState::buffers_have_changed() const {
  return !std::ranges::equal(buffers_, saved_,
                             [](const torch::Tensor& a, const torch::Tensor& b) { return a.equal(b); });
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
