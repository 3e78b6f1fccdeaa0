#include "headroom/runtime/state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>

namespace headroom::internal {
namespace {

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

/// Gives a generator the state of another one, which is its copy.
void set_state(at::Generator generator, const at::Generator& copy) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  if (!generator.device().is_cpu()) {
    generator.set_state(copy.get_state());
    return;
  }
  // A state tensor would count as memory of the step.
  auto* to = at::check_generator<at::CPUGeneratorImpl>(generator);
  auto* from = at::check_generator<at::CPUGeneratorImpl>(copy);
  to->set_engine(from->engine());
  to->set_next_float_normal_sample(from->next_float_normal_sample());
  to->set_next_double_normal_sample(from->next_double_normal_sample());
}

/// Returns the bytes of a tensor's storage as a tensor.
torch::Tensor bytes_of(const torch::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(tensor.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

/// Exchanges the memory of two storages of the same size, or throws and changes neither. Memory that is shared until it
/// is written gets copied first.
void exchange_memory(const c10::Storage& storage, const c10::Storage& other) {
  if (storage.nbytes() != other.nbytes())
    throw std::runtime_error("a buffer of " + std::to_string(other.nbytes()) + " bytes was resized to " +
                             std::to_string(storage.nbytes()) + ", and its earlier state cannot be restored");
  std::swap(storage.mutable_data_ptr(), other.mutable_data_ptr());
}

}  // namespace

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
  EachInTurn generators;
  for (const Saved& saved : saved_) generators.run([&] { set_state(saved.generator, saved.copy); });
  generators.rethrow();
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

std::string type_and_shape(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.toString() << " " << tensor.sizes();
  return text.str();
}

void throw_changed_in_place(const std::string& tensor, int64_t version, int64_t expected, const std::string& reader) {
  TORCH_CHECK(false,
              "one of the variables needed for gradient computation has been modified by an inplace operation: [",
              tensor, "] is at version ", version, "; expected version ", expected, " instead. ", reader,
              " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
              "torch.autograd.set_detect_anomaly(True).");
}

bool is_alias_in(const Tensors& tensors, const torch::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const torch::Tensor& other) { return other.is_alias_of(tensor); });
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
    : EarlierState(std::move(buffers),
                   then) {  // From here on the destructor restores what was changed before an error.
  if (random) {
    random_now_ = RandomState::now(device, generators);
    random->restore();
  }
  for (; exchanged_ < then_.size(); ++exchanged_)
    exchange_memory(buffers_[exchanged_].storage(), then_[exchanged_].storage());
  for (size_t i = 0; i < versions.size(); ++i) {
    versions_now_.push_back(version_of(buffers_[i]));
    set_version(buffers_[i], versions[i]);
  }
}

void EarlierState::end() {
  EachInTurn parts;
  const std::vector<int64_t> versions = std::exchange(versions_now_, {});
  for (size_t i = 0; i < versions.size(); ++i) parts.run([&] { set_version(buffers_[i], versions[i]); });
  const size_t exchanged = std::exchange(exchanged_, 0);
  for (size_t i = 0; i < exchanged; ++i) parts.run([&] { exchange_memory(buffers_[i].storage(), then_[i].storage()); });
  if (const std::optional<RandomState> random = std::exchange(random_now_, std::nullopt))
    parts.run([&] { random->restore(); });
  parts.rethrow();
}

KeptState::KeptState(Tensors buffers, torch::Device device, const std::vector<at::Generator>& generators)
    : device_(device),
      generators_(generators),
      random_(RandomState::now(device, generators)),
      buffers_(std::move(buffers)),
      saved_(copy_buffers(buffers_)) {
  for (const torch::Tensor& buffer : buffers_) versions_.push_back(version_of(buffer));
}

void KeptState::restore() const {
  EachInTurn parts;
  parts.run([this] { random_.restore(); });
  for (size_t i = 0; i < buffers_.size(); ++i) {
    parts.run([&] {
      restore_buffers({buffers_[i]}, {saved_[i]});
      set_version(buffers_[i], versions_[i]);
    });
  }
  parts.rethrow();
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

}  // namespace headroom::internal
