#pragma once

#include <ATen/core/stack.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/core/simulate.h"
#include "headroom/runtime/network.h"

namespace headroom {

/// One argument of a call: a constant, a tensor of the program, or a list of them.
struct CallArgument {
  enum class Kind : uint8_t { kConstant, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<int> tensors;  ///< of the program; in kOptionalTensors -1 is none
  bool is_updated = false;   ///< a tensor that the call's first run in a step changes, and that later ones do without
};

/// A call of an operator on a stack, as the dispatcher makes it: arguments are popped, results pushed.
struct OpCall {
  std::string name;
  std::string source;  ///< module and line of the model that it comes from, for errors; empty: not known
  std::function<void(torch::jit::Stack&)> run;
  /// Runs the operator in place: writes its first result over its first argument. May be empty.
  std::function<void(torch::jit::Stack&)> run_in_place;
  std::vector<CallArgument> arguments;
  std::vector<int> results;  ///< tensors that it makes, lists flattened; -1: nobody wants it
  bool draws = false;        ///< takes random numbers
};

/// A training step as calls of operators: what a graph's ops and values are in PyTorch.
///
/// A value of the graph is a storage; the tensors on it are the one that a call made, its base, and views, which calls of
/// their own make whenever they are needed. Resident values are the program's inputs.
struct OpProgram {
  static constexpr int kHandsOn = -1;
  static constexpr int kAccumulates = -2;

  Graph graph;
  std::vector<OpCall> calls;
  /// By OpId. kHandsOn: no call, but an op that hands on the forward outputs that lie in what it reads. A value that is a forward
  /// output has one, right after it is made, whose output holds it from then on, since the user has it. The last of them
  /// stands for what the user does between forward and backward, and makes what backward is given. kAccumulates: an op that
  /// stands for what autograd does with the gradients after backward.
  std::vector<int> call_of_op;
  std::vector<int> call_of_view;  ///< by tensor: the call that makes it from its base; -1: it is no view
  std::vector<int> value_of_tensor;
  std::vector<int> forward_inputs;   ///< tensors; -1: not used
  std::vector<int> backward_inputs;  ///< what the gradients of the outputs are; -1: not used
  std::vector<int> forward_outputs;  ///< -1: none
  std::vector<int> backward_outputs;
  torch::Device device = torch::kCPU;
  /// Called while an exception that is no c10::Error is handled: adds a note to it and returns true if it can, so that
  /// errors of operators written in Python keep their types. May be empty.
  std::function<bool(const std::string& note)> annotate;
};

/// A program run by a schedule. The forward half, up to where every forward output has been handed on, runs in forward();
/// the rest in backward(). Each step in flight has a frame of its own, which owns the step's memory; backward() empties it.
///
/// The step keeps autograd's promises:
/// - An op that runs again sees the random numbers that it saw first.
/// - An op runs in place only where the frame alone holds the tensor and its storage when it runs. Where somebody else
///   does (autograd, a hook, the caller of backward), it runs out of place, and the peak may exceed the simulated one.
/// - Backward throws PyTorch's error where an input or an output that it reads was changed in place after forward.
/// - A frame does not keep itself alive through the outputs that forward returned.
///
/// An operator's error keeps its type, and names the op, the shapes of what it read and the source; lack of memory is a
/// c10::OutOfMemoryError and also says what the plan expected to be live.
class OpStep : public std::enable_shared_from_this<OpStep> {
 public:
  /// To be owned by a shared_ptr, since frames keep their step. Throws InvalidInput if the schedule is invalid, or runs in place where a call cannot.
  OpStep(std::shared_ptr<const OpProgram> program, Schedule schedule);

  class Frame;

  struct Forward {
    Tensors outputs;
    std::shared_ptr<Frame> frame;
  };
  Forward forward(Tensors inputs) const;

  struct Backward {
    Tensors gradients;
    bool is_held = false;  ///< somebody else holds a gradient that backward was given, or a tensor to be overwritten
  };
  /// Runs once for a frame, and empties it, also where it throws. To run in place over a gradient, its only reference must
  /// be the one in `gradients`.
  Backward backward(Frame& frame, Tensors gradients) const;

  const OpProgram& program() const { return *program_; }
  const Schedule& schedule() const { return schedule_; }

 private:
  friend class Frame;
  std::vector<bool> find_late_reads() const;
  bool is_updated_by(int call, ValueId value) const;

  std::shared_ptr<const OpProgram> program_;
  Schedule schedule_;
  size_t forward_end_ = 0;
  std::vector<bool> is_again_;                ///< by step of the schedule: its op ran before
  std::vector<bool> replays_random_;          ///< by call: draws, and runs again
  std::vector<std::vector<int>> tensors_of_;  ///< by value
  std::vector<bool> is_read_late_;            ///< by value: the backward half reads it as the forward half left it
};

}  // namespace headroom
