#include "headroom/runtime/executor.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>

#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/runtime/kernels.h"

namespace headroom {

/// What all steps of a network have in common.
struct TrainingStep::Program {
  Network network;
  StepGraph step;
  Schedule schedule;
  size_t forward_end = 0;            ///< steps of the forward half
  Tensors parameters;                ///< every one once
  std::vector<uint8_t> runs_again;   ///< by node
  std::vector<uint8_t> draws;        ///< by node
  std::vector<uint8_t> keeps_state;  ///< by node: runs again and changes buffers
  std::vector<uint8_t> records_to_run;
  std::function<void(size_t step)> observer;
};

namespace {

using Program = TrainingStep::Program;

size_t index(Wire wire) { return static_cast<size_t>(wire); }

/// One step in flight: the values that are alive, and how far the schedule has come.
class Frame {
 public:
  Frame(std::shared_ptr<const Program> program, const Tensors& inputs)
      : program_(std::move(program)),
        inputs_(inputs),
        values_(program_->step.graph.values().size()),
        nodes_(program_->network.nodes().size()) {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (program_->keeps_state[n] == 0) continue;
      nodes_[n].buffers_before = copy_buffers(program_->network.nodes()[n].buffers);
      nodes_[n].buffers_after = copy_buffers(program_->network.nodes()[n].buffers);
    }
  }

  const Program& program() const { return *program_; }

  void run_to(size_t end) {
    for (; next_step_ < end; ++next_step_) {
      const Step& step = program_->schedule.steps[next_step_];
      if (step.is_run()) {
        run(program_->step.ops[headroom::index(step.op())]);
      } else {
        drop(step.value());
      }
      if (program_->observer) program_->observer(next_step_);
    }
  }

  torch::Tensor loss() const { return values_[headroom::index(program_->step.node_outputs.back())]; }
  torch::Tensor input_gradient() const { return values_[headroom::index(program_->step.input_gradient)]; }
  void set_loss_gradient(torch::Tensor gradient) {
    values_[headroom::index(program_->step.loss_gradient)] = std::move(gradient);
  }

  /// By parameter of the network: what the nodes that use it gave, last node first, as autograd adds them up.
  Tensors parameter_gradients() {
    Tensors sums(program_->parameters.size());
    for (size_t n = nodes_.size(); n-- > 0;) {
      const Tensors& parameters = program_->network.nodes()[n].parameters;
      for (size_t k = 0; k < parameters.size(); ++k) {
        torch::Tensor& gradient = nodes_[n].parameter_gradients[k];
        if (!gradient.defined()) continue;
        for (size_t p = 0; p < sums.size(); ++p) {
          if (!program_->parameters[p].is_same(parameters[k])) continue;
          sums[p] = sums[p].defined() ? sums[p].add_(gradient) : gradient;
        }
        gradient.reset();
      }
    }
    return sums;
  }

 private:
  struct NodeState {
    Tape tape;
    Tensors parameter_gradients;
    bool has_run = false;
    std::optional<RandomState> random_before;
    Tensors buffers_before;
    Tensors buffers_after;
  };

  Tensors arguments(size_t n) const {
    Tensors result;
    for (const Wire wire : program_->network.nodes()[n].inputs) {
      const size_t inputs = inputs_.size();
      result.push_back(index(wire) < inputs
                           ? inputs_[index(wire)]
                           : values_[headroom::index(program_->step.node_outputs[index(wire) - inputs])]);
    }
    return result;
  }

  std::vector<bool> trains(size_t n) const {
    std::vector<bool> result;
    for (const Wire wire : program_->network.nodes()[n].inputs)
      result.push_back(index(wire) >= inputs_.size() || (index(wire) == 0 && inputs_[0].requires_grad()));
    return result;
  }

  void run(const StepOp& how) {
    switch (how.kind) {
      case StepOpKind::kForward:
      case StepOpKind::kRecord:
        return run_forward(how);
      case StepOpKind::kBackward:
        return run_backward(how);
      case StepOpKind::kSum:
        return run_sum(how);
    }
  }

  void run_forward(const StepOp& how) {
    const size_t n = how.node;
    NodeState& state = nodes_[n];
    const Tensors& buffers = program_->network.nodes()[n].buffers;
    const torch::Device device = inputs_[0].device();
    std::optional<RandomState> random_after;
    const bool replays_random = program_->runs_again[n] != 0 && program_->draws[n] != 0;
    if (replays_random && !state.has_run) state.random_before = RandomState::now(device);
    if (state.has_run) {
      if (replays_random) {
        random_after = RandomState::now(device);
        state.random_before->restore();
      }
      copy_into(state.buffers_after, buffers);
      restore_buffers(buffers, state.buffers_before);
    } else {
      copy_into(state.buffers_before, buffers);
    }
    torch::Tensor& value = values_[headroom::index(program_->step.node_outputs[n])];
    if (how.kind == StepOpKind::kRecord) {
      NodeOutput made = record_node(program_->network.nodes()[n], arguments(n), trains(n));
      value = std::move(made.output);
      state.tape = std::move(made.tape);
    } else {
      value = forward_node(program_->network.nodes()[n], arguments(n), program_->records_to_run[n] != 0);
    }
    if (state.has_run) {
      if (random_after) random_after->restore();
      restore_buffers(buffers, state.buffers_after);
    }
    state.has_run = true;
  }

  /// Only where there are copies: `to` is empty for nodes that keep none.
  static void copy_into(const Tensors& to, const Tensors& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  static void restore_buffers(const Tensors& buffers, const Tensors& saved) {
    if (!saved.empty()) headroom::restore_buffers(buffers, saved);
  }

  void run_backward(const StepOp& how) {
    NodeState& state = nodes_[how.node];
    const torch::Tensor& gradient = values_[headroom::index(how.output_gradient)];
    NodeGradients made = backward_node(program_->network.nodes()[how.node], state.tape, gradient);
    for (size_t k = 0; k < how.gradients.size(); ++k)
      if (how.gradients[k] != ValueId{-1}) values_[headroom::index(how.gradients[k])] = std::move(made.inputs[k]);
    state.parameter_gradients = std::move(made.parameters);
  }

  void run_sum(const StepOp& how) {
    torch::Tensor sum;
    for (const ValueId id : how.gradients) {
      const torch::Tensor& part = values_[headroom::index(id)];
      if (!part.defined()) continue;
      sum = sum.defined() ? sum + part : part;
    }
    values_[headroom::index(how.output_gradient)] = sum;
  }

  void drop(ValueId id) {
    values_[headroom::index(id)].reset();
    const std::vector<ValueId>& tapes = program_->step.node_tapes;
    const auto tape = std::ranges::find(tapes, id);
    if (tape != tapes.end()) nodes_[static_cast<size_t>(tape - tapes.begin())].tape = Tape{};
  }

  std::shared_ptr<const Program> program_;
  Tensors inputs_;
  Tensors values_;  ///< by ValueId; tapes and parameter gradients are with their nodes
  std::vector<NodeState> nodes_;
  size_t next_step_ = 0;
};

/// A frame as autograd keeps it between forward and backward.
struct WaitingFrame : torch::CustomClassHolder {
  std::unique_ptr<Frame> frame;
};

/// The step in autograd's eyes. Its variables: the first input, then the parameters.
struct StepFunction : torch::autograd::Function<StepFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, std::unique_ptr<Frame>& frame,
                               at::TensorList /*variables*/) {
    frame->run_to(frame->program().forward_end);
    torch::Tensor loss = frame->loss();
    auto waiting = c10::make_intrusive<WaitingFrame>();
    waiting->frame = std::move(frame);
    context->saved_data[kFrame] = c10::IValue::make_capsule(waiting);
    return loss.detach();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto waiting = context->saved_data[kFrame].toCapsule();
    const std::unique_ptr<Frame> frame = std::move(static_cast<WaitingFrame*>(waiting.get())->frame);
    if (!frame || at::GradMode::is_enabled())
      throw std::runtime_error(
          "headroom: a step's backward runs once and cannot itself be differentiated (retain_graph, create_graph and "
          "double backward are not supported)");
    frame->set_loss_gradient(std::move(gradients[0]));
    gradients.clear();
    frame->run_to(frame->program().schedule.steps.size());
    // The frame is no variable and has no gradient.
    torch::autograd::variable_list result = {torch::Tensor(), frame->input_gradient()};
    for (torch::Tensor& gradient : frame->parameter_gradients()) result.push_back(std::move(gradient));
    return result;
  }

 private:
  static constexpr const char* kFrame = "frame";
};

}  // namespace

TrainingStep::TrainingStep(Network network, const NetworkCosts& costs, StepGraph step, Schedule schedule) {
  if (const std::optional<ScheduleError> error = verify(step.graph, schedule))
    throw InvalidInput("the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message);
  const size_t nodes = network.nodes().size();
  auto program = std::make_shared<Program>(
      Program{std::move(network), std::move(step), std::move(schedule), 0, {}, {}, {}, {}, {}, {}});
  program->parameters = program->network.parameters();
  std::vector<int> runs(nodes, 0);
  const ValueId loss = program->step.node_outputs.back();
  for (size_t i = 0; i < program->schedule.steps.size(); ++i) {
    const Step& one = program->schedule.steps[i];
    if (!one.is_run()) continue;
    if (one.is_over()) throw InvalidInput("nodes of a network do not run in place: step " + std::to_string(i));
    const StepOp& how = program->step.ops[headroom::index(one.op())];
    if (how.kind == StepOpKind::kForward || how.kind == StepOpKind::kRecord) ++runs[how.node];
    const std::vector<ValueId>& written = program->step.graph.op(one.op()).outputs;
    if (program->forward_end == 0 && std::ranges::find(written, loss) != written.end()) program->forward_end = i + 1;
  }
  for (size_t n = 0; n < nodes; ++n) {
    program->runs_again.push_back(runs[n] > 1 ? 1 : 0);
    program->draws.push_back(costs.nodes[n].draws ? 1 : 0);
    program->keeps_state.push_back(runs[n] > 1 && costs.nodes[n].changes_buffers ? 1 : 0);
    program->records_to_run.push_back(costs.nodes[n].records_to_run ? 1 : 0);
  }
  program_ = std::move(program);
}

void TrainingStep::observe(std::function<void(size_t step)> observer) { program_->observer = std::move(observer); }

const Network& TrainingStep::network() const { return program_->network; }

int64_t TrainingStep::beside_bytes() const {
  const Graph& graph = program_->step.graph;
  int64_t bytes =
      graph.value(program_->step.loss_gradient).bytes + graph.value(program_->step.node_outputs.back()).bytes;
  for (size_t n = 0; n < program_->keeps_state.size(); ++n)
    if (program_->keeps_state[n] != 0)
      for (const torch::Tensor& buffer : program_->network.nodes()[n].buffers)
        bytes += 2 * static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

torch::Tensor TrainingStep::operator()(const Tensors& inputs) const {
  if (inputs.size() != program_->network.input_names().size())
    throw InvalidInput("network " + quote(program_->network.name()) + " takes " +
                       std::to_string(program_->network.input_names().size()) + " inputs, found " +
                       std::to_string(inputs.size()));
  auto frame = std::make_unique<Frame>(program_, inputs);
  Tensors variables = {inputs[0]};
  variables.insert(variables.end(), program_->parameters.begin(), program_->parameters.end());
  return StepFunction::apply(frame, at::TensorList(variables));
}

}  // namespace headroom
