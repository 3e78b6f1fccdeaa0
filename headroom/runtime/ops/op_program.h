#pragma once

#include <ATen/core/stack.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/core/schedule.h"
#include "headroom/runtime/frame.h"

namespace headroom::internal {

/// An argument of a call: a constant, a tensor of the program, or a list of tensors.
struct CallArgument {
  enum class Kind : uint8_t { kConstant, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<int> tensors;  ///< Tensors of the program; -1 for none in kOptionalTensors.
  /// Whether the tensor is changed by the call's first run in a step; later runs get no tensor instead.
  bool is_updated = false;
};

/// A call of an operator on a stack, as the dispatcher makes it: arguments are popped, and results are pushed.
struct OpCall {
  std::string name;
  std::string source;  ///< Module and line of the model that it comes from, for errors; empty if not known.
  std::function<void(torch::jit::Stack&)> run;
  /// Runs the operator in place: writes its first result over its first argument. May be empty.
  std::function<void(torch::jit::Stack&)> run_in_place;
  std::vector<CallArgument> arguments;
  std::vector<int> results;  ///< Tensors that it writes, lists flattened; -1 for a result that is not used.
  bool draws = false;        ///< Whether it draws random numbers.
};

/// A training step as calls of operators: the calls and tensors of PyTorch for a graph's ops and values.
///
/// A value of the graph is a storage. The tensors on it are its base, which a call writes, and views, which other calls
/// make whenever they are needed. Resident values are the program's inputs.
struct OpProgram {
  static constexpr int kHandsOn = -1;
  static constexpr int kAccumulates = -2;

  Graph graph;
  std::vector<OpCall> calls;
  /// By OpId: its call, or one of two constants. kHandsOn marks an op without a call that returns the forward outputs
  /// that lie in what it reads. A value that is a forward output has such an op; the op's output holds the value from
  /// then on, since the user has it. The last of these ops, which depends on all others, stands for what the user does
  /// between forward and backward, and writes what backward is given. kAccumulates marks an op that stands for what
  /// autograd does with the gradients after backward.
  std::vector<int> call_of_op;
  std::vector<int> call_of_view;  ///< By tensor: the call that makes it from its base; -1 if it is no view.
  std::vector<int> value_of_tensor;
  std::vector<int> forward_inputs;   ///< Tensors; -1 if not used.
  std::vector<int> backward_inputs;  ///< Tensors of the outputs' gradients; -1 if not used.
  std::vector<int> forward_outputs;  ///< Tensors; -1 for none.
  std::vector<int> backward_outputs;
  torch::Device device = torch::kCPU;
  /// Adds a note to the exception that is being handled, if it is Python's. May be empty.
  std::function<void(const std::string& note)> annotate;
};

class OpFrame;

/// A program that runs by a schedule. The forward half, up to where every forward output has been returned, runs in
/// forward(); the rest runs in backward(). Each step in flight has a frame of its own, which owns the step's memory;
/// backward() frees it.
///
/// The step keeps autograd's promises, besides those of Frame:
/// - An op runs in place only where the frame alone holds the tensor and its storage when it runs. Where other code
///   holds it (autograd, a hook, the caller of backward), the op runs out of place, and the peak may exceed the
///   simulated one.
/// - Backward throws PyTorch's error where an input or an output that it reads was changed in place after forward.
/// - A frame does not keep itself alive through the outputs that forward returned.
///
/// An operator's error names the op, the shapes of its inputs and the source.
class OpStep : public std::enable_shared_from_this<OpStep> {
 public:
  /// Makes a step. It must be owned by a shared_ptr, since frames keep their step. Throws InvalidInput if the schedule
  /// is invalid, or runs in place where a call cannot.
  OpStep(std::shared_ptr<const OpProgram> program, Schedule schedule);

  struct Forward {
    Tensors outputs;
    std::shared_ptr<OpFrame> frame;
  };
  /// The step runs in `arena`, if it is given and no other step is in it.
  Forward forward(Tensors inputs, const std::shared_ptr<Arena>& arena = nullptr) const;

  /// Has backward notice changes in place of results that share memory with a tensor that it reads, besides those of
  /// the outputs that forward returned. The frame keeps none of the results.
  void watch(OpFrame& frame, const Tensors& results) const;

  struct Backward {
    Tensors gradients;
    /// Whether other code holds a gradient that backward was given, or a tensor to be overwritten.
    bool is_held = false;
  };
  /// Runs the backward half and frees the frame, see take_frame(). To run in place over a gradient, its only reference
  /// must be the one in `gradients`.
  Backward backward(std::shared_ptr<OpFrame>& waiting, Tensors gradients) const;

  const OpProgram& program() const { return *program_; }
  const Schedule& schedule() const { return plan_.schedule; }

 private:
  friend class OpFrame;
  std::vector<bool> find_late_reads() const;
  bool is_updated_by(int call, ValueId value) const;

  std::shared_ptr<const OpProgram> program_;
  FramePlan plan_;                            ///< Its kernels are the calls.
  std::vector<std::vector<int>> tensors_of_;  ///< By value: its tensors.
  std::vector<bool> is_read_late_;  ///< By value: whether the backward half reads it as the forward half left it.
  bool has_late_outputs_ = false;   ///< Whether the backward half reads the memory of a forward output.
};

}  // namespace headroom::internal
