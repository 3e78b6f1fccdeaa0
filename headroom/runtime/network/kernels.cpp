#include "headroom/runtime/network/kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/custom_class.h>
#include <torch/nn/module.h>

#include <sstream>

#include "headroom/core/quote.h"
#include "headroom/runtime/frame.h"
#include "headroom/runtime/state.h"

namespace headroom::internal {
namespace {

std::string describe(const NetworkNode& node, const char* work, const Tensors& inputs) {
  std::ostringstream text;
  text << work << " of node " << quote(node.name) << " on";
  for (const torch::Tensor& input : inputs)
    if (input.defined()) text << " " << input.sizes();
  return text.str();
}

/// Runs `function`, and adds to its exception which node failed and on which shapes.
template <typename Function>
auto named(const NetworkNode& node, const char* work, const Tensors& inputs, Function function) {
  try {
    return function();
  } catch (const std::exception&) {
    rethrow_with(describe(node, work, inputs), node.annotate_error);
  }
}

/// Returns the first position of tensor k. A tensor that a node reads in several places is one leaf, so that its
/// gradients are summed in autograd's order.
size_t first_place(const Tensors& tensors, size_t k) {
  for (size_t i = 0; i < k; ++i)
    if (tensors[i].is_same(tensors[k])) return i;
  return k;
}

/// Holds gradients that backward will take.
struct Given : torch::CustomClassHolder {
  Tensors gradients;
};

/// An autograd function that starts backward at several tensors at once with gradients that autograd owns:
/// torch::autograd::grad() would keep the gradients that it is given until it ends. It runs first, so other gradients
/// are added to those that it gives.
struct HandOver : torch::autograd::Function<HandOver> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Given>& given,
                               at::TensorList tensors) {
    context->saved_data[kGiven] = c10::IValue::make_capsule(given);
    return at::empty({0}, tensors[0].options().requires_grad(false));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& /*of_nothing*/) {
    auto given = context->saved_data[kGiven].toCapsule();
    torch::autograd::variable_list gradients = {torch::Tensor()};  // `given` is no variable and gets no gradient.
    for (torch::Tensor& gradient : static_cast<Given*>(given.get())->gradients)
      gradients.push_back(std::move(gradient));
    return gradients;
  }

 private:
  static constexpr const char* kGiven = "given";
};

/// Removes the hooks of tensors during its lifetime.
class HooksAside {
 public:
  explicit HooksAside(const Tensors& tensors) {
    for (const torch::Tensor& tensor : tensors)
      if (!torch::autograd::impl::hooks(tensor).empty()) tensors_.push_back(tensor);
    exchange();
  }
  ~HooksAside() { exchange(); }
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;

 private:
  void exchange() {
    hooks_.resize(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) std::swap(hooks_[i], torch::autograd::impl::hooks(tensors_[i]));
  }
  Tensors tensors_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

std::vector<std::shared_ptr<torch::nn::Module>> all_modules(const NetworkNode& node) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& module : node.modules)
    for (auto& part : module->modules()) modules.push_back(std::move(part));
  return modules;
}

void set_training_modes(const NetworkNode& node, const std::vector<bool>& modes) {
  if (training_modes(node) == modes) return;
  const auto modules = all_modules(node);
  // A module comes before its submodules, which its train() also sets.
  for (size_t i = 0; i < modules.size(); ++i) modules[i]->train(modes[i]);
}

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
  std::vector<torch::Tensor*> results;  ///< By source: the place for its gradient.
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

std::vector<Tensors> replayed_buffers(const MeasuredNetwork& measured) {
  const std::vector<NetworkNode>& nodes = measured.network.nodes();
  Tensors changed;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (measured.costs.nodes[n].changes_buffers)
      changed.insert(changed.end(), nodes[n].buffers.begin(), nodes[n].buffers.end());
  std::vector<Tensors> replayed(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const torch::Tensor& buffer : nodes[n].buffers)
      if (is_alias_in(changed, buffer) && !is_alias_in(replayed[n], buffer)) replayed[n].push_back(buffer);
  return replayed;
}

std::vector<bool> training_modes(const NetworkNode& node) {
  std::vector<bool> modes;
  for (const auto& module : all_modules(node)) modes.push_back(module->is_training());
  return modes;
}

EarlierModes::EarlierModes(const NetworkNode& node) : node_(node), now_(training_modes(node)) {}

EarlierModes::EarlierModes(const NetworkNode& node, const std::vector<bool>& modes) : EarlierModes(node) {
  set_training_modes(node, modes);  // The destructor of the delegating constructor's object runs where this throws.
}

EarlierModes::~EarlierModes() {
  run_without_throwing([this] { set_training_modes(node_, now_); });
}

}  // namespace headroom::internal
