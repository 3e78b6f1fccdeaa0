#include "headroom/runtime/op_program.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "headroom/core/quote.h"
#include "headroom/runtime/kernels.h"

namespace headroom {

/// One step in flight.
class OpStep::Frame {
 public:
  explicit Frame(std::shared_ptr<const OpStep> step)
      : owner_(std::move(step)),
        step_(*owner_),
        tensors_(step_.program_->value_of_tensor.size()),
        outputs_(step_.program_->forward_outputs.size()),
        random_(step_.program_->calls.size()) {}

  void set_inputs(const std::vector<int>& places, Tensors& inputs) {
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0) tensor(places[i]) = std::move(inputs[i]);
    inputs.clear();
  }

  /// What has been handed on, and inputs that are outputs as they are.
  Tensors take_forward_outputs() {
    const std::vector<int>& places = step_.program_->forward_outputs;
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0 && !outputs_[i].defined()) outputs_[i] = needed(places[i]);
    return std::move(outputs_);
  }

  Tensors get_backward_outputs() {
    Tensors outputs;
    for (const int place : step_.program_->backward_outputs)
      outputs.push_back(place < 0 ? torch::Tensor() : needed(place));
    return outputs;
  }

  void run_to(size_t end) {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowAutograd below_autograd;
    const OpProgram& program = *step_.program_;
    for (; next_ < end; ++next_) {
      const Step& step = step_.schedule_.steps[next_];
      if (!step.is_run()) {
        drop(step.value());
        continue;
      }
      if (program.call_of_op[index(step.op())] < 0) {
        for (const ValueId id : program.graph.op(step.op()).inputs) hand_on(id);
        continue;
      }
      const auto call = static_cast<size_t>(program.call_of_op[index(step.op())]);
      std::optional<EarlierState> earlier;
      if (step_.replays_random_[call]) {
        if (step_.is_again_[next_])
          earlier.emplace(program.device, random_[call], Tensors(), Tensors());
        else
          random_[call] = RandomState::now(program.device);
      }
      run(call, step);
      if (step.is_over()) drop(step.value());
    }
  }

  bool is_used = false;

 private:
  torch::Tensor& tensor(int number) { return tensors_[static_cast<size_t>(number)]; }

  /// A tensor that is there, or a view of one that is.
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
      if (places[i] >= 0 && step_.program_->value_of_tensor[static_cast<size_t>(places[i])] == static_cast<int>(value))
        outputs_[i] = needed(places[i]);
  }

  void drop(ValueId value) {
    for (const int number : step_.tensors_of_[index(value)]) tensor(number).reset();
  }

  void run(size_t call_number, const Step& step) {
    const OpCall& what = step_.program_->calls[call_number];
    for (const ValueId id : step_.program_->graph.op(step.op()).outputs) drop(id);
    try {
      call(what, step.is_over(), step_.is_again_[next_]);
    } catch (const c10::Error& error) {
      fail(what, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(what, error.what());
    }
  }

  [[noreturn]] void fail(const OpCall& what, const std::string& error) {
    const std::string text = describe(what) + ": " + error;
    if (!is_out_of_memory(error)) throw std::runtime_error(text);
    TORCH_CHECK_WITH(OutOfMemoryError, false, text, "; the plan expected ", expected_to_be_there());
  }

  /// By its text, since the CPU's allocator and operators written in Python have no exception of their own for it.
  static bool is_out_of_memory(const std::string& error) {
    constexpr std::array kTexts = {"out of memory", "OutOfMemoryError", "can't allocate memory"};
    return std::ranges::any_of(kTexts, [&](const char* text) { return error.find(text) != std::string::npos; });
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
    text << what.name << " on";
    for (const CallArgument& argument : what.arguments)
      for (const int number : argument.tensors)
        if (number >= 0 && tensor(number).defined()) text << " " << tensor(number).sizes();
    return text.str();
  }

  std::string expected_to_be_there() const {
    const Graph& graph = step_.program_->graph;
    std::vector<ValueId> alive = alive_during(graph, step_.schedule_, next_);
    std::ranges::stable_sort(alive, std::ranges::greater(), [&](ValueId id) { return graph.value(id).bytes; });
    int64_t bytes = graph.op(step_.schedule_.steps[next_].op()).workspace_bytes;
    for (const ValueId id : alive) bytes += graph.value(id).bytes;
    std::string text = std::to_string(bytes) + " bytes, the largest of them";
    for (size_t i = 0; i < std::min<size_t>(alive.size(), 5); ++i)
      text += (i == 0 ? " " : ", ") + quote(graph.value(alive[i]).name) + " (" +
              std::to_string(graph.value(alive[i]).bytes) + ")";
    return text;
  }

  std::shared_ptr<const OpStep> owner_;
  const OpStep& step_;
  Tensors tensors_;
  Tensors outputs_;                                 ///< of forward, handed on so far
  std::vector<std::optional<RandomState>> random_;  ///< by call: as it ran first
  torch::jit::Stack stack_;
  size_t next_ = 0;
};

OpStep::OpStep(std::shared_ptr<const OpProgram> program, Schedule schedule)
    : program_(std::move(program)), schedule_(std::move(schedule)) {
  const Graph& graph = program_->graph;
  if (const std::optional<ScheduleError> error = verify(graph, schedule_))
    throw InvalidInput("the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message);
  tensors_of_.resize(graph.values().size());
  for (size_t i = 0; i < program_->value_of_tensor.size(); ++i)
    tensors_of_[static_cast<size_t>(program_->value_of_tensor[i])].push_back(static_cast<int>(i));
  std::vector<int> runs(program_->calls.size(), 0);
  is_again_.resize(schedule_.steps.size());
  for (size_t i = 0; i < schedule_.steps.size(); ++i) {
    const Step& step = schedule_.steps[i];
    if (!step.is_run()) continue;
    if (program_->call_of_op[index(step.op())] < 0) {
      forward_end_ = i + 1;
      continue;
    }
    const auto call = static_cast<size_t>(program_->call_of_op[index(step.op())]);
    is_again_[i] = runs[call]++ > 0;
    if (step.is_over() && !program_->calls[call].run_in_place)
      throw InvalidInput(quote(program_->calls[call].name) + " cannot run in place");
  }
  for (size_t call = 0; call < runs.size(); ++call)
    replays_random_.push_back(runs[call] > 1 && program_->calls[call].draws);
}

OpStep::Forward OpStep::forward(Tensors inputs) const {
  auto frame = std::make_shared<Frame>(shared_from_this());
  frame->set_inputs(program_->forward_inputs, inputs);
  frame->run_to(forward_end_);
  return {frame->take_forward_outputs(), std::move(frame)};
}

Tensors OpStep::backward(Frame& frame, Tensors gradients) const {
  if (frame.is_used)
    throw std::runtime_error(
        "headroom: a step's backward runs once (retain_graph and double backward are not supported)");
  frame.is_used = true;
  frame.set_inputs(program_->backward_inputs, gradients);
  frame.run_to(schedule_.steps.size());
  return frame.get_backward_outputs();
}

}  // namespace headroom
