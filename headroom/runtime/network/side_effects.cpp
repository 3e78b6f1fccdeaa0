// RecordFunction::inputs() asserts a flag that a release build of PyTorch does not set.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "headroom/runtime/network/side_effects.h"

#include <algorithm>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

thread_local OperatorWatch* current_watch = nullptr;

bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  if (alias == nullptr) return false;
  const auto writes = [](const c10::AliasInfo& info) { return info.isWrite(); };
  return alias->isWrite() || std::ranges::any_of(alias->containedTypes(), writes);
}

/// Returns whether a batch norm or instance norm updates its running statistics, which its schema does not say.
bool updates_statistics(const std::vector<c10::Argument>& arguments, c10::ArrayRef<const c10::IValue> values) {
  for (size_t i = 0; i < arguments.size() && i < values.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "training" || name == "train" || name == "use_input_stats")
      return values[i].isBool() && values[i].toBool();
  }
  return true;
}

/// Returns a tensor with the same memory and version counter, without history. It calls no operator, because some of
/// the watched operators run below autograd, where detach() would make a new counter.
torch::Tensor without_history(const torch::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.is_inference()) return torch::Tensor(impl->shallow_copy_and_detach(0, true));
  return torch::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && value.toTensor().has_storage()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

}  // namespace

OperatorWatch::OperatorWatch(const Tensors& inputs) {
  if (current_watch != nullptr) throw InternalError("operators are already watched on this thread");
  for (const torch::Tensor& input : inputs)
    if (input.has_storage()) inputs_.insert(input.storage().unsafeGetStorageImpl());
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  current_watch = this;  // The last, because an error before has no destructor that takes it back.
}

OperatorWatch::~OperatorWatch() {
  current_watch = nullptr;
  run_without_throwing([this] { at::removeCallback(handle_); });
  // The first state seen of a generator is restored last.
  for (auto saved = saved_random_.rbegin(); saved != saved_random_.rend(); ++saved)
    run_without_throwing([&] { saved->restore(); });
  for (const SavedMemory& saved : saved_)
    run_without_throwing([&] {
      copy_memory_to(saved.tensor, saved.copy);
      set_version(saved.tensor, saved.version);
    });
}

void OperatorWatch::begin(const Tensors& arguments) {
  own_.clear();
  read_.clear();
  written_.clear();
  effects_ = {};
  failure_ = nullptr;
  for (const torch::Tensor& argument : arguments)
    if (argument.defined() && argument.has_storage()) own_.insert(argument.storage().unsafeGetStorageImpl());
}

bool OperatorWatch::has_read(const torch::Tensor& tensor) const {
  return tensor.has_storage() && read_.contains(tensor.storage().unsafeGetStorageImpl());
}

SideEffects OperatorWatch::end() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  SideEffects outside = std::exchange(effects_, {});
  // A tensor without another holder was a temporary that no operator made, such as one from a blob.
  std::erase_if(outside.read, [](const torch::Tensor& tensor) { return tensor.storage().use_count() == 1; });
  for (const torch::Tensor& tensor : outside.read)
    if (written_.contains(tensor.storage().unsafeGetStorageImpl())) outside.written.push_back(tensor);
  own_.clear();
  return outside;
}

/// Keeps an exception for end(), since PyTorch drops those of callbacks.
template <typename See>
void OperatorWatch::run_callback(const See& see) {
  if (current_watch == nullptr) return;
  try {
    see(*current_watch);
  } catch (...) {
    if (!current_watch->failure_) current_watch->failure_ = std::current_exception();
  }
}

std::unique_ptr<at::ObserverContext> OperatorWatch::on_start(const at::RecordFunction& call) {
  run_callback([&](OperatorWatch& watch) { watch.see_inputs(call); });
  return nullptr;
}

void OperatorWatch::on_end(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
  run_callback([&](OperatorWatch& watch) { watch.see_outputs(call); });
}

void OperatorWatch::see_inputs(const at::RecordFunction& call) {
  const at::DisableRecordFunctionGuard unwatched;
  const std::optional<c10::FunctionSchema> schema = call.operator_schema();
  const bool is_inside = depth_ > 0;
  if (schema) ++depth_;
  const c10::ArrayRef<const c10::IValue> values = call.inputs();
  for (size_t i = 0; i < values.size(); ++i) {
    bool writes = false;
    if (schema && i < schema->arguments().size()) {
      const c10::Argument& argument = schema->arguments()[i];
      writes = is_written(argument) ||
               (argument.name().starts_with("running_") && updates_statistics(schema->arguments(), values));
    }
    if (values[i].isGenerator()) {
      const at::Generator generator = values[i].toGenerator();
      if (generator.defined() && std::ranges::find(effects_.generators, generator) == effects_.generators.end()) {
        effects_.generators.push_back(generator);
        saved_random_.push_back(RandomState::of({generator}));
      }
    }
    for_each_tensor(values[i], [&](const torch::Tensor& tensor) {
      // Operators allocate memory without calling an operator, and pass it to the operators that they call.
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (is_inside && !read_.contains(storage)) own_.insert(storage);
      see(tensor, writes);
    });
  }
}

void OperatorWatch::see_outputs(const at::RecordFunction& call) {
  if (call.operator_schema()) --depth_;
  for (const c10::IValue& value : call.outputs())
    for_each_tensor(value, [&](const torch::Tensor& tensor) {
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (!read_.contains(storage)) own_.insert(storage);
    });
}

void OperatorWatch::see(const torch::Tensor& tensor, bool is_written) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const bool is_own = own_.contains(storage);
  if (is_written && (!is_own || inputs_.contains(storage))) save(tensor);
  if (is_own || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
  if (read_.insert(storage).second) effects_.read.push_back(without_history(tensor));
  if (is_written) written_.insert(storage);
}

void OperatorWatch::save(const torch::Tensor& tensor) {
  const auto has_memory = [&](const SavedMemory& saved) { return saved.tensor.is_alias_of(tensor); };
  if (std::ranges::any_of(saved_, has_memory)) return;
  saved_.push_back({without_history(tensor), copy_memory(tensor), version_of(tensor)});
}

}  // namespace headroom::internal
