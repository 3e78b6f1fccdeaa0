#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/runtime/network.h"
#include "headroom/runtime/step_graph.h"

namespace headroom {

/// By node, its buffers that the forward of some node changes, one per storage: what a node that runs again must see as
/// it was, and what a step keeps copies of.
std::vector<Tensors> replayed_buffers(const MeasuredNetwork& measured);

/// A network whose training step runs by a schedule: values are freed exactly where it says, nodes run again where it
/// says.
///
/// The whole step is one autograd node, whose inputs are the network's inputs and its parameters, so that
/// loss.backward(), .grad, hooks and torch::autograd::grad() work as ever. The forward half of the schedule, up to
/// where the loss is first made, runs in operator(); the rest runs in backward. Several forwards may wait for their
/// backwards, each with its own memory.
///
/// Gradients are those of plain training, bit for bit on CPU: a node that runs again sees the random numbers, buffers and
/// training modes that it saw first, and what they were afterwards is put back; gradients add up in autograd's order.
///
/// What a node that runs again reads from outside the step (parameters, inputs, buffers and captured tensors) must not be
/// changed in place between forward and backward: that is PyTorch's error "one of the variables needed for gradient
/// computation has been modified by an inplace operation", by version counters. Errors of nodes keep their types.
///
/// A batch larger than the one that the network was measured on would break the plan and is refused; a smaller one
/// runs. A second backward through the same step (retain_graph, double backward) is an error, and so is a node that
/// gives another shape when it runs again.
class TrainingStep {
 public:
  /// `schedule` must be valid for step.graph; throws InvalidInput otherwise.
  TrainingStep(const MeasuredNetwork& measured, StepGraph step, Schedule schedule);

  /// The loss of a batch.
  torch::Tensor operator()(const Tensors& inputs) const;

  /// Calls `observer` after each step of the schedule, with its position: to measure what the simulator predicts. An
  /// empty one ends that.
  void observe(std::function<void(size_t step)> observer);

  const Network& network() const;
  const Schedule& schedule() const;
  /// What a step has in memory from its beginning to its end beside the values of the graph that are not resident: the
  /// loss and its gradient, and copies of the buffers of nodes that run again. The memory that a step adds to what was
  /// there before it is at most the simulated peak, less resident values, plus this.
  int64_t beside_bytes() const;

  struct Program;

 private:
  std::shared_ptr<Program> program_;
};

}  // namespace headroom
