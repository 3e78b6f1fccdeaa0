#include "headroom/runtime/ops/op_program.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "headroom/core/quote.h"

namespace headroom::internal {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Returns the storages of tensors with more than one element: loss.backward() holds the gradient of the loss, which
/// has one.
std::vector<WeakStorage> large_storages(const Tensors& tensors) {
  std::vector<WeakStorage> storages;
  for (const torch::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 1)
      storages.push_back(tensor.storage().getWeakStorageImpl());
  return storages;
}

bool is_storage_of(const Tensors& tensors, const WeakStorage& storage) {
  return std::ranges::any_of(tensors, [&](const torch::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() &&
           tensor.storage().unsafeGetStorageImpl() == storage._unsafe_get_target();
  });
}

}  // namespace

/// A step in flight with its tensors. Runs below autograd: there, views of the frame's tensors hold no reference to their
/// base, so that use counts are those of the frame.
class OpFrame final : public Frame {
 public:
  OpFrame(const std::shared_ptr<const OpStep>& step, std::shared_ptr<ArenaRun> arena_run)
      : Frame({step, &step->plan_}, step->program_->device, std::move(arena_run)),
        step_(*step),
        tensors_(step_.program_->value_of_tensor.size()),
        outputs_(step_.program_->forward_outputs.size()) {}

  void set_inputs(const std::vector<int>& places, Tensors& inputs) {
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0) tensor(places[i]) = std::move(inputs[i]);
    inputs.clear();
  }

  /// Returns the forward outputs: those that ops have returned, and inputs that are outputs unchanged.
  Tensors take_forward_outputs() {
    const std::vector<int>& places = step_.program_->forward_outputs;
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] < 0) continue;
      if (!outputs_[i].defined()) outputs_[i] = needed(places[i]);
      if (!is_resident(places[i]) && tensor(places[i]).defined()) outputs_[i] = alias(outputs_[i]);
    }
    remember_versions();
    drop_inputs_not_read_late();
    if (arena_run())
      for (const torch::Tensor& output : outputs_)
        if (output.defined() && output.has_storage()) arena_run()->leave_native(output.storage().data());
    return std::move(outputs_);
  }

  /// Remembers the versions of results that share memory with a tensor that the backward half reads. AOTAutograd hands
  /// out new tensors in the place of some views, with version counters of their own.
  void watch(const Tensors& results) {
    for (size_t number = 0; number < tensors_.size(); ++number) {
      const torch::Tensor& kept = tensors_[number];
      if (!kept.defined() || !kept.has_storage() ||
          !step_.is_read_late_[static_cast<size_t>(value_of(static_cast<int>(number)))])
        continue;
      for (const torch::Tensor& result : results)
        if (result.has_storage() && result.is_alias_of(kept)) remember(static_cast<int>(number), result);
    }
  }

  /// Throws where an input or an output that the backward half reads has been changed since forward.
  void check_versions() const {
    for (const auto& [number, version, counter] : versions_) {
      if (counter.current_version() == version) continue;
      const torch::Tensor& changed = tensors_[static_cast<size_t>(number)];
      const Value& value = step_.program_->graph.value(static_cast<ValueId>(value_of(number)));
      throw_changed_in_place(changed.defined() ? type_and_shape(changed) : "a tensor", counter.current_version(),
                             version, "headroom's plan reads it in backward, as " + quote(value.name) + ".");
    }
  }

  Tensors get_backward_outputs() {
    Tensors outputs;
    for (const int place : step_.program_->backward_outputs)
      outputs.push_back(place < 0 ? torch::Tensor() : needed(place));
    return outputs;
  }

  bool has_run_out_of_place = false;  ///< Whether an op ran out of place that the schedule runs in place.

 private:
  void run(const Step& step) override {
    const OpProgram& program = *step_.program_;
    const int call_number = program.call_of_op[index(step.op())];
    if (call_number == OpProgram::kAccumulates) return;
    if (call_number == OpProgram::kHandsOn) {
      for (const ValueId id : program.graph.op(step.op()).inputs) hand_on(id);
      return;
    }
    const OpCall& what = program.calls[static_cast<size_t>(call_number)];
    for (const ValueId id : program.graph.op(step.op()).outputs) drop(id);
    const bool in_place = step.is_over() && is_held_by_frame_alone(step.value());
    has_run_out_of_place = has_run_out_of_place || in_place != step.is_over();
    try {
      call(what, in_place, is_again());
    } catch (const std::exception&) {
      rethrow_with(describe(what), program.annotate);
    }
    if (step.is_over()) drop(step.value());
  }

  void drop(ValueId value) override {
    for (const int number : step_.tensors_of_[index(value)]) tensor(number).reset();
  }

  /// The version counter of an input or output, which the user's in-place operations advance.
  struct Version {
    int number;  ///< Number of the tensor.
    uint32_t expected;
    c10::VariableVersion counter;
  };

  torch::Tensor& tensor(int number) { return tensors_[static_cast<size_t>(number)]; }
  int value_of(int number) const { return step_.program_->value_of_tensor[static_cast<size_t>(number)]; }
  bool is_resident(int number) const {
    return step_.program_->graph.value(static_cast<ValueId>(value_of(number))).resident;
  }

  /// Returns the same tensor for the user. Autograd gives it a history, which holds this frame.
  static torch::Tensor alias(const torch::Tensor& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return torch::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
  }

  void remember(int number, const torch::Tensor& seen_by_user) {
    if (number < 0 || !seen_by_user.defined() || seen_by_user.is_inference()) return;
    if (!step_.is_read_late_[static_cast<size_t>(value_of(number))]) return;
    const c10::VariableVersion& counter = seen_by_user.unsafeGetTensorImpl()->version_counter();
    versions_.push_back({number, counter.current_version(), counter});
  }

  void remember_versions() {
    for (const int number : step_.program_->forward_inputs)
      if (number >= 0) remember(number, tensor(number));
    const std::vector<int>& outputs = step_.program_->forward_outputs;
    for (size_t i = 0; i < outputs.size(); ++i) remember(outputs[i], outputs_[i]);
  }

  /// Drops inputs that backward does not read. The user may free them, and an input that the step changes gets a
  /// history, which holds this frame.
  void drop_inputs_not_read_late() {
    for (const int number : step_.program_->forward_inputs)
      if (number >= 0 && !step_.is_read_late_[static_cast<size_t>(value_of(number))])
        drop(static_cast<ValueId>(value_of(number)));
  }

  /// Returns whether only this frame holds a value's memory. The plan keeps what the user has as an output anyway.
  bool is_held_by_frame_alone(ValueId value) {
    size_t count = 0;
    const torch::Tensor* first = nullptr;
    for (const int number : step_.tensors_of_[index(value)]) {
      torch::Tensor& held = tensor(number);
      if (!held.defined()) continue;
      if (!held.has_storage()) return false;
      // A tensor that was in Python has a wrapper, which counts as a holder. The alias has none, and the tensor is
      // freed here unless it has another holder.
      if (held.use_count() > 1) held = alias(held);
      first = &held;
      ++count;
    }
    return first != nullptr && first->storage().use_count() == count;
  }

  /// Returns a live tensor, or a view of one.
  const torch::Tensor& needed(int number) {
    torch::Tensor& found = tensor(number);
    if (!found.defined()) {
      const int view = step_.program_->call_of_view[static_cast<size_t>(number)];
      if (view < 0) throw InternalError("tensor " + std::to_string(number) + " is read and not there");
      call(step_.program_->calls[static_cast<size_t>(view)], false, false);
    }
    return found;
  }

  void hand_on(ValueId value) {
    const std::vector<int>& places = step_.program_->forward_outputs;
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0 && value_of(places[i]) == static_cast<int>(value)) outputs_[i] = needed(places[i]);
  }

  void call(const OpCall& what, bool in_place, bool again) {
    stack_.clear();
    torch::jit::Stack stack = std::move(stack_);
    for (const CallArgument& argument : what.arguments) {
      switch (argument.kind) {
        case CallArgument::Kind::kConstant:
          stack.push_back(argument.constant);
          break;
        case CallArgument::Kind::kTensor:
          if (again && argument.is_updated)
            stack.emplace_back();
          else
            stack.emplace_back(needed(argument.tensors[0]));
          break;
        case CallArgument::Kind::kTensors: {
          c10::List<at::Tensor> list;
          for (const int number : argument.tensors) list.push_back(needed(number));
          stack.emplace_back(std::move(list));
          break;
        }
        case CallArgument::Kind::kOptionalTensors: {
          c10::List<std::optional<at::Tensor>> list;
          for (const int number : argument.tensors)
            list.push_back(number < 0 ? std::nullopt : std::optional(needed(number)));
          stack.emplace_back(std::move(list));
          break;
        }
      }
    }
    in_place ? what.run_in_place(stack) : what.run(stack);
    size_t next = 0;
    const auto keep = [&](torch::Tensor made) {
      const int number = next < what.results.size() ? what.results[next] : -1;
      ++next;
      if (number >= 0) tensor(number) = std::move(made);
    };
    for (c10::IValue& result : stack) {
      if (result.isTensor()) {
        keep(std::move(result).toTensor());
      } else if (result.isTensorList()) {
        for (const at::Tensor& one : result.toTensorVector()) keep(one);
      } else {
        ++next;
      }
    }
    stack.clear();
    stack_ = std::move(stack);
  }

  std::string describe(const OpCall& what) {
    std::ostringstream text;
    text << "in " << what.name << " on";
    for (const CallArgument& argument : what.arguments)
      for (const int number : argument.tensors)
        if (number >= 0 && tensor(number).defined()) text << " " << tensor(number).sizes();
    if (!what.source.empty()) text << ", " << what.source;
    return text.str();
  }

  const OpStep& step_;  // The frame keeps it alive.
  Tensors tensors_;
  Tensors outputs_;  ///< Forward outputs that have been returned so far.
  std::vector<Version> versions_;
  torch::jit::Stack stack_;
};

namespace {

/// Where operators run: below autograd, see OpFrame.
struct BelowAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

}  // namespace

OpStep::OpStep(std::shared_ptr<const OpProgram> program, Schedule schedule)
    : program_(std::move(program)),
      plan_(program_->graph, std::move(schedule), program_->call_of_op, program_->calls.size()),
      tensors_of_(program_->graph.values().size()) {
  for (size_t i = 0; i < program_->value_of_tensor.size(); ++i)
    tensors_of_[static_cast<size_t>(program_->value_of_tensor[i])].push_back(static_cast<int>(i));
  for (size_t i = 0; i < program_->calls.size(); ++i)
    plan_.replays[i].draws = plan_.replays[i].may_draw = program_->calls[i].draws;
  for (size_t i = 0; i < plan_.schedule.steps.size(); ++i) {
    const int call = plan_.kernel_of_step[i];
    if (plan_.schedule.steps[i].is_run() && call == OpProgram::kHandsOn) plan_.forward_end = i + 1;
    if (call >= 0 && plan_.schedule.steps[i].is_over() && !program_->calls[static_cast<size_t>(call)].run_in_place)
      throw InvalidInput(quote(program_->calls[static_cast<size_t>(call)].name) + " cannot run in place");
  }
  is_read_late_ = find_late_reads();
  has_late_outputs_ = std::ranges::any_of(program_->forward_outputs, [&](int tensor) {
    return tensor >= 0 && is_read_late_[static_cast<size_t>(program_->value_of_tensor[static_cast<size_t>(tensor)])];
  });
}

std::vector<bool> OpStep::find_late_reads() const {
  const Graph& graph = program_->graph;
  std::vector<bool> is_read(graph.values().size());
  std::vector<bool> is_made(graph.values().size());  // By value: whether the backward half has written it so far.
  const auto read = [&](size_t value) { is_read[value] = is_read[value] || !is_made[value]; };
  for (size_t i = plan_.forward_end; i < plan_.schedule.steps.size(); ++i) {
    const Step& step = plan_.schedule.steps[i];
    if (!step.is_run()) continue;
    for (const ValueId id : graph.op(step.op()).inputs)
      if (!(plan_.runs_before[i] > 0 && is_updated_by(program_->call_of_op[index(step.op())], id))) read(index(id));
    for (const ValueId id : graph.op(step.op()).outputs) is_made[index(id)] = true;
  }
  for (const int tensor : program_->backward_outputs)
    if (tensor >= 0) read(static_cast<size_t>(program_->value_of_tensor[static_cast<size_t>(tensor)]));
  return is_read;
}

bool OpStep::is_updated_by(int call, ValueId value) const {
  return std::ranges::any_of(program_->calls[static_cast<size_t>(call)].arguments, [&](const CallArgument& argument) {
    return argument.is_updated &&
           program_->value_of_tensor[static_cast<size_t>(argument.tensors[0])] == static_cast<int>(value);
  });
}

OpStep::Forward OpStep::forward(Tensors inputs, const std::shared_ptr<Arena>& arena) const {
  auto frame = std::make_shared<OpFrame>(shared_from_this(), arena ? arena->begin() : nullptr);
  const ArenaScope scope(frame->arena_run().get(), Half::kForward);
  frame->set_inputs(program_->forward_inputs, inputs);
  {
    const BelowAutograd below_autograd;
    frame->run_forward();
  }
  return {frame->take_forward_outputs(), std::move(frame)};
}

void OpStep::watch(OpFrame& frame, const Tensors& results) const {
  if (has_late_outputs_) frame.watch(results);
}

OpStep::Backward OpStep::backward(std::shared_ptr<OpFrame>& waiting, Tensors gradients) const {
  std::shared_ptr<OpFrame> frame = take_frame(waiting, /*is_recorded=*/false);
  frame->check_versions();
  const std::vector<WeakStorage> given = large_storages(gradients);
  const std::shared_ptr<ArenaRun> run = frame->arena_run();
  Backward result;
  {
    const ArenaScope scope(run.get(), Half::kBackward);
    frame->set_inputs(program_->backward_inputs, gradients);
    const BelowAutograd below_autograd;
    frame->run_backward();
    result = {frame->get_backward_outputs(), frame->has_run_out_of_place};
    frame.reset();
  }
  if (run) run->finish();
  for (const WeakStorage& storage : given)
    result.is_held = result.is_held || (!storage.expired() && !is_storage_of(result.gradients, storage));
  return result;
}

}  // namespace headroom::internal
