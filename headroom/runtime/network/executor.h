#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/runtime/network/network.h"
#include "headroom/runtime/network/step_graph.h"

namespace headroom {
namespace internal {
class Arena;
}

/// A network whose training step runs by a schedule: values are freed exactly where it drops them, and nodes run again
/// where it runs them again.
///
/// The whole step is one autograd node, whose inputs are the network's inputs and its parameters, so that
/// loss.backward(), .grad, hooks and torch::autograd::grad() work as always. The forward half of the schedule, up to
/// the first run that computes the loss, runs in operator(); the rest runs in backward. Several forwards may be in
/// flight before their backwards, each with its own memory.
///
/// Gradients are those of plain training, bit for bit on CPU: a rerun sees the random numbers, buffers and training
/// modes of the first run, and their later state is restored after it; gradients are summed in autograd's order.
///
/// What a rerun reads from outside the step (parameters, inputs, buffers and captured tensors) must not be changed in
/// place between forward and backward. Version counters detect that, as PyTorch's error "one of the variables needed
/// for gradient computation has been modified by an inplace operation". Errors of nodes keep their types.
///
/// A batch larger than the one on which the network was measured would break the plan and is refused; a smaller one
/// runs. A second backward through the same step (retain_graph, double backward) is an error, and so is a node whose
/// rerun returns another shape.
class TrainingStep {
 public:
  /// Makes a step. `schedule` must be valid for step.graph; otherwise throws InvalidInput.
  TrainingStep(const MeasuredNetwork& measured, StepGraph step, Schedule schedule);

  /// Returns the loss of a batch.
  torch::Tensor operator()(const Tensors& inputs) const;

  /// Calls `observer` with the position of each step of the schedule, after that step, so that a caller can measure
  /// what the simulator predicts. An empty function ends that.
  void observe(std::function<void(size_t step)> observer);

  /// Runs later steps in one block of memory on `device`. The first of them record where in the block their tensors are
  /// to lie. Copies of this step share the block, in which one step at a time runs.
  void use_arena(torch::Device device);

  /// Returns the size of that block; 0 without an arena or before a step has been recorded.
  int64_t arena_bytes() const;
  const std::shared_ptr<internal::Arena>& arena() const;

  const Network& network() const;
  const Schedule& schedule() const;
  /// Returns the bytes that are live during the whole step beside the graph's values: the loss and its gradient, and
  /// copies of the buffers of nodes that run again. The memory that a step adds to what was live before it is at most
  /// the simulated peak, less resident values, plus this.
  int64_t beside_bytes() const;

  struct Program;

 private:
  std::shared_ptr<Program> program_;
};

}  // namespace headroom
