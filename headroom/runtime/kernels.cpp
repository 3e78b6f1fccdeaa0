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
#include <torch/nn/module.h>

#include <algorithm>
#include <sstream>
#include <typeinfo>

#include "headroom/core/quote.h"

namespace headroom {
namespace {

std::string describe(const NetworkNode& node, const char* work, const Tensors& inputs) {
  std::ostringstream text;
  text << work << " of node " << quote(node.name) << " on";
  for (const torch::Tensor& input : inputs)
    if (input.defined()) text << " " << input.sizes();
  return text.str();
}

/// Runs `function`, and adds to its exception which node failed and on which shapes. The exception keeps its type.
template <typename Function>
auto named(const NetworkNode& node, const char* work, const Tensors& inputs, Function function) {
  try {
    return function();
  } catch (c10::Error& error) {
    error.add_context(describe(node, work, inputs));
    throw;
  } catch (const std::exception& error) {
    if (typeid(error) == typeid(std::runtime_error))
      throw std::runtime_error(describe(node, work, inputs) + ": " + error.what());
    if (node.annotate_error) node.annotate_error(describe(node, work, inputs));
    throw;
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

at::Generator default_generator(torch::Device device) { return at::globalContext().defaultGenerator(device); }

/// Returns whether two generators have the same state. On the CPU it makes no state tensors, which would count as
/// memory of the step.
bool have_same_state(const at::Generator& one, const at::Generator& two) {
  if (!one.device().is_cpu()) return one.get_state().equal(two.get_state());
  auto* first = at::check_generator<at::CPUGeneratorImpl>(one);
  auto* second = at::check_generator<at::CPUGeneratorImpl>(two);
  const at::mt19937_data_pod state = first->engine().data();
  const at::mt19937_data_pod other = second->engine().data();
  return state.seed_ == other.seed_ && state.left_ == other.left_ && state.next_ == other.next_ &&
         state.state_ == other.state_ && first->next_float_normal_sample() == second->next_float_normal_sample() &&
         first->next_double_normal_sample() == second->next_double_normal_sample();
}

/// Returns the bytes of a tensor's storage as a tensor.
torch::Tensor bytes_of(const torch::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(tensor.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

void swap_memory(const c10::Storage& storage, const c10::Storage& other) {
  at::DataPtr memory = storage.set_data_ptr(at::DataPtr());
  memory = other.set_data_ptr(std::move(memory));
  storage.set_data_ptr(std::move(memory));
}

void swap_memory(const Tensors& tensors, const Tensors& others) {
  for (size_t i = 0; i < others.size(); ++i) swap_memory(tensors[i].storage(), others[i].storage());
}

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

RandomState RandomState::now(torch::Device device, const std::vector<at::Generator>& generators) {
  std::vector<at::Generator> all = generators;
  all.push_back(default_generator(torch::kCPU));
  if (!device.is_cpu()) all.push_back(default_generator(device));
  return of(all);
}

RandomState RandomState::of(const std::vector<at::Generator>& generators) {
  RandomState state;
  for (at::Generator generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state.saved_.push_back({generator, generator.clone()});
  }
  return state;
}

void RandomState::restore() const {
  for (const Saved& saved : saved_) {
    at::Generator generator = saved.generator;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    if (!generator.device().is_cpu()) {
      generator.set_state(saved.copy.get_state());
      continue;
    }
    // A state tensor would count as memory of the step.
    auto* to = at::check_generator<at::CPUGeneratorImpl>(generator);
    auto* from = at::check_generator<at::CPUGeneratorImpl>(saved.copy);
    to->set_engine(from->engine());
    to->set_next_float_normal_sample(from->next_float_normal_sample());
    to->set_next_double_normal_sample(from->next_double_normal_sample());
  }
}

bool RandomState::operator==(const RandomState& other) const {
  return std::ranges::equal(saved_, other.saved_, [](const Saved& one, const Saved& two) {
    return one.generator == two.generator && have_same_state(one.copy, two.copy);
  });
}

std::unique_lock<std::recursive_mutex> lock_random() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

int64_t version_of(const torch::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

void set_version(const torch::Tensor& tensor, int64_t version) {
  if (tensor.is_inference()) return;
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  counter.set_version(version);
}

torch::Tensor copy_memory(const torch::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return bytes_of(tensor).clone();
}

void copy_memory_to(const torch::Tensor& to, const torch::Tensor& from) {
  const at::NoGradGuard no_grad;
  bytes_of(to).copy_(bytes_of(from));
}

EarlierState::EarlierState(torch::Device device, const std::optional<RandomState>& random, Tensors buffers,
                           const Tensors& then, const std::vector<int64_t>& versions,
                           const std::vector<at::Generator>& generators)
    : buffers_(std::move(buffers)), then_(then) {
  if (random) {
    random_now_ = RandomState::now(device, generators);
    random->restore();
  }
  swap_memory(buffers_, then_);
  for (size_t i = 0; i < versions.size(); ++i) {
    versions_now_.push_back(version_of(buffers_[i]));
    set_version(buffers_[i], versions[i]);
  }
}

EarlierState::~EarlierState() {
  for (size_t i = 0; i < versions_now_.size(); ++i) set_version(buffers_[i], versions_now_[i]);
  swap_memory(buffers_, then_);
  if (random_now_) random_now_->restore();
}

std::vector<bool> training_modes(const NetworkNode& node) {
  std::vector<bool> modes;
  for (const auto& module : all_modules(node)) modes.push_back(module->is_training());
  return modes;
}

EarlierModes::EarlierModes(const NetworkNode& node, const std::vector<bool>& modes)
    : node_(node), now_(training_modes(node)) {
  set_training_modes(node, modes);
}

EarlierModes::~EarlierModes() { set_training_modes(node_, now_); }

KeptState::KeptState(Tensors buffers, torch::Device device, const std::vector<at::Generator>& generators)
    : device_(device),
      generators_(generators),
      random_(RandomState::now(device, generators)),
      buffers_(std::move(buffers)),
      saved_(copy_buffers(buffers_)) {
  for (const torch::Tensor& buffer : buffers_) versions_.push_back(version_of(buffer));
}

void KeptState::restore() const {
  random_.restore();
  restore_buffers(buffers_, saved_);
  for (size_t i = 0; i < buffers_.size(); ++i) set_version(buffers_[i], versions_[i]);
}

bool KeptState::random_has_changed() const { return !(RandomState::now(device_, generators_) == random_); }

bool KeptState::buffers_have_changed() const {
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (version_of(buffers_[i]) != versions_[i] || !buffers_[i].equal(saved_[i])) return true;
  return false;
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
