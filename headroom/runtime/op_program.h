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
  std::function<void(torch::jit::Stack&)> run;
  std::function<void(torch::jit::Stack&)>
      run_in_place;  ///< writes its first result over its first argument; may be empty
  std::vector<CallArgument> arguments;
  std::vector<int> results;  ///< tensors that it makes, lists flattened; -1: nobody wants it
  bool draws = false;        ///< takes random numbers
};

/// A training step as calls of operators: what a graph's ops and values are in PyTorch.
///
/// A value of the graph is a storage; the tensors on it are the one that a call made, its base, and views, which calls of
/// their own make whenever they are needed. Resident values are the program's inputs.
struct OpProgram {
  Graph graph;
  std::vector<OpCall> calls;
  /// By OpId. -1: no call, but an op that hands on the forward outputs that lie in what it reads. A value that is a forward
  /// output has one, right after it is made, whose output holds it from then on, since the user has it. The last of them
  /// stands for what the user does between forward and backward, and makes what backward is given.
  std::vector<int> call_of_op;
  std::vector<int> call_of_view;  ///< by tensor: the call that makes it from its base; -1: it is no view
  std::vector<int> value_of_tensor;
  std::vector<int> forward_inputs;   ///< tensors; -1: not used
  std::vector<int> backward_inputs;  ///< what the gradients of the outputs are; -1: not used
  std::vector<int> forward_outputs;  ///< -1: none
  std::vector<int> backward_outputs;
  torch::Device device = torch::kCPU;
};

/// A program run by a schedule. The forward half, up to where every forward output has been handed on, runs in forward();
/// the rest in backward(). Each call in between has a frame of its own; letting go of a frame frees all that it has.
///
/// An op that runs again sees the random numbers that it saw first. Errors come as std::runtime_error with the op's name
/// and the shapes of what it read; lack of memory as c10::OutOfMemoryError, with what the plan expected to be there too.
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

  /// Once for a frame; its memory goes on the way.
  Tensors backward(Frame& frame, Tensors gradients) const;

  const OpProgram& program() const { return *program_; }
  const Schedule& schedule() const { return schedule_; }

 private:
  friend class Frame;
  std::shared_ptr<const OpProgram> program_;
  Schedule schedule_;
  size_t forward_end_ = 0;
  std::vector<bool> is_again_;                ///< by step of the schedule: its op ran before
  std::vector<bool> replays_random_;          ///< by call: draws, and runs again
  std::vector<std::vector<int>> tensors_of_;  ///< by value
};

}  // namespace headroom
