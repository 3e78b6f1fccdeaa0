#include "headroom/runtime/executor.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/runtime/kernels.h"
#include "headroom/runtime/meter.h"

namespace headroom {

/// What all steps of a network have in common.
struct TrainingStep::Program {
  Program(Network of, StepGraph graph, Schedule by)
      : network(std::move(of)), step(std::move(graph)), schedule(std::move(by)) {}

  struct NodeRules {
    int runs = 0;
    bool replays_random = false;  ///< runs again and draws
    bool keeps_state = false;     ///< runs again and changes buffers
    bool records_to_run = false;
    std::vector<size_t> parameters;  ///< its parameters' places among all
  };

  Network network;
  StepGraph step;
  Schedule schedule;
  size_t forward_end = 0;        ///< steps of the forward half
  std::vector<bool> takes_over;  ///< by step, see find_taking_over()
  int64_t input_bytes = 0;       ///< of the first input, at most
  Tensors parameters;            ///< every one once
  std::vector<NodeRules> rules;
  std::function<void(size_t step)> observer;
};

namespace {

using Program = TrainingStep::Program;

/// One step in flight: the values that are alive, and how far the schedule has come.
class Frame {
 public:
  Frame(std::shared_ptr<const Program> program, const Tensors& inputs)
      : program_(std::move(program)),
        inputs_(inputs),
        slots_(program_->step.graph.values().size()),
        nodes_(program_->network.nodes().size()),
        parameter_gradients_(program_->parameters.size()) {
    // Made here, so that they are there for the whole step; filled when the node runs.
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (program_->rules[n].keeps_state) nodes_[n].buffers = copy_buffers(program_->network.nodes()[n].buffers);
  }

  const Program& program() const { return *program_; }

  void run_to(size_t end) {
    for (; next_step_ < end; ++next_step_) {
      const Step& step = program_->schedule.steps[next_step_];
      if (step.is_run()) {
        run(program_->step.ops[index(step.op())], program_->takes_over[next_step_]);
      } else {
        slots_[index(step.value())] = Slot{};
      }
      if (program_->observer) program_->observer(next_step_);
    }
  }

  torch::Tensor loss() const { return slots_[index(program_->step.node_outputs.back())].tensor; }
  torch::Tensor input_gradient() const { return slots_[index(program_->step.input_gradient)].tensor; }
  void set_loss_gradient(torch::Tensor gradient) {
    slots_[index(program_->step.loss_gradient)].tensor = std::move(gradient);
  }

  /// By parameter of the network.
  Tensors take_parameter_gradients() { return std::move(parameter_gradients_); }

 private:
  /// Of a value: its tensor, or its tape. Parameter gradients are elsewhere, since nodes may share them.
  struct Slot {
    torch::Tensor tensor;
    Tape tape;
  };

  struct NodeState {
    int runs = 0;
    // As it ran first:
    std::vector<int64_t> shape;  ///< of its output
    std::optional<RandomState> random;
    Tensors buffers;  ///< before it
  };

  Tensors arguments(size_t n) const {
    Tensors result;
    for (const Wire wire : program_->network.nodes()[n].inputs) {
      const size_t inputs = inputs_.size();
      result.push_back(index(wire) < inputs ? inputs_[index(wire)]
                                            : slots_[index(program_->step.node_outputs[index(wire) - inputs])].tensor);
    }
    return result;
  }

  void run(const StepOp& how, bool takes_over) {
    if (how.kind == StepOpKind::kBackward) {
      run_backward(how, takes_over);
    } else {
      run_forward(how);
    }
  }

  void run_forward(const StepOp& how) {
    NodeState& state = nodes_[how.node];
    const NetworkNode& node = program_->network.nodes()[how.node];
    const Program::NodeRules& rules = program_->rules[how.node];
    torch::Tensor& value = slots_[index(program_->step.node_outputs[how.node])].tensor;
    if (state.runs++ == 0) {
      if (rules.replays_random) state.random = RandomState::now(inputs_[0].device());
      for (size_t i = 0; i < state.buffers.size(); ++i) state.buffers[i].copy_(node.buffers[i]);
      compute(how, value);
      state.shape = value.sizes().vec();
      return;
    }
    {
      // Running changes the buffers that it is given.
      const bool is_last = state.runs == rules.runs;
      const EarlierState earlier(inputs_[0].device(), state.random, node.buffers,
                                 is_last ? state.buffers : copy_buffers(state.buffers));
      compute(how, value);
    }
    if (!value.sizes().equals(state.shape)) {
      std::ostringstream text;
      text << "node " << quote(node.name) << " gave " << at::IntArrayRef(state.shape) << " first and " << value.sizes()
           << " when it ran again";
      throw std::runtime_error(text.str());
    }
  }

  void compute(const StepOp& how, torch::Tensor& value) {
    const NetworkNode& node = program_->network.nodes()[how.node];
    if (how.kind == StepOpKind::kRecord) {
      NodeOutput made = record_node(node, arguments(how.node), program_->network.trained_inputs(node, inputs_));
      value = std::move(made.output);
      slots_[index(program_->step.node_tapes[how.node])].tape = std::move(made.tape);
    } else {
      value = forward_node(node, arguments(how.node), program_->rules[how.node].records_to_run);
    }
    if (!value.defined()) throw std::runtime_error("node " + quote(node.name) + " returned no tensor");
  }

  void run_backward(const StepOp& how, bool takes_over) {
    const NetworkNode& node = program_->network.nodes()[how.node];
    const std::vector<size_t>& places = program_->rules[how.node].parameters;
    torch::Tensor gradient = slots_[index(how.output_gradient)].tensor;
    if (takes_over) {
      slots_[index(how.output_gradient)].tensor.reset();
      slots_[index(program_->step.node_outputs[how.node])].tensor.reset();
    }
    NodeGradients sums;
    for (const ValueId id : how.sums) sums.inputs.push_back(id == ValueId{-1} ? torch::Tensor() : take(id));
    for (const size_t place : places) sums.parameters.push_back(std::exchange(parameter_gradients_[place], {}));
    NodeGradients made = backward_node(node, std::exchange(slots_[index(program_->step.node_tapes[how.node])].tape, {}),
                                       std::move(gradient), std::move(sums));
    for (size_t k = 0; k < how.gradients.size(); ++k)
      if (how.gradients[k] != ValueId{-1}) slots_[index(how.gradients[k])].tensor = std::move(made.inputs[k]);
    for (size_t k = 0; k < places.size(); ++k) parameter_gradients_[places[k]] = std::move(made.parameters[k]);
  }

  torch::Tensor take(ValueId id) { return std::exchange(slots_[index(id)].tensor, {}); }

  std::shared_ptr<const Program> program_;
  Tensors inputs_;
  std::vector<Slot> slots_;  ///< by ValueId
  std::vector<NodeState> nodes_;
  Tensors parameter_gradients_;  ///< sums so far
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
    for (torch::Tensor& gradient : frame->take_parameter_gradients()) result.push_back(std::move(gradient));
    return result;
  }

 private:
  static constexpr const char* kFrame = "frame";
};

}  // namespace

TrainingStep::TrainingStep(const MeasuredNetwork& measured, StepGraph step, Schedule schedule) {
  if (const std::optional<ScheduleError> error = verify(step.graph, schedule))
    throw InvalidInput("the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message);
  auto program = std::make_shared<Program>(measured.network, std::move(step), std::move(schedule));
  const std::vector<Step>& steps = program->schedule.steps;
  const std::vector<NodeCosts>& costs = measured.costs.nodes;
  program->input_bytes = measured.costs.input_bytes;
  program->parameters = program->network.parameters();
  program->takes_over = find_taking_over(program->step, program->schedule);
  std::vector<int> runs(costs.size(), 0);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].is_run()) continue;
    if (steps[i].is_over()) throw InvalidInput("nodes of a network do not run in place: step " + std::to_string(i));
    const StepOp& how = program->step.ops[index(steps[i].op())];
    if (how.kind == StepOpKind::kBackward) continue;
    ++runs[how.node];
    if (program->forward_end == 0 && how.node + 1 == costs.size()) program->forward_end = i + 1;
  }
  std::unordered_map<const c10::TensorImpl*, size_t> places;
  for (const torch::Tensor& parameter : program->parameters)
    places.emplace(parameter.unsafeGetTensorImpl(), places.size());
  for (size_t n = 0; n < costs.size(); ++n) {
    const bool runs_again = runs[n] > 1;
    Program::NodeRules rules{
        runs[n], runs_again && costs[n].draws, runs_again && costs[n].changes_buffers, costs[n].records_to_run, {}};
    for (const torch::Tensor& parameter : program->network.nodes()[n].parameters)
      rules.parameters.push_back(places.at(parameter.unsafeGetTensorImpl()));
    program->rules.push_back(std::move(rules));
  }
  program_ = std::move(program);
}

void TrainingStep::observe(std::function<void(size_t step)> observer) { program_->observer = std::move(observer); }

const Network& TrainingStep::network() const { return program_->network; }

const Schedule& TrainingStep::schedule() const { return program_->schedule; }

int64_t TrainingStep::beside_bytes() const {
  const Graph& graph = program_->step.graph;
  int64_t bytes =
      graph.value(program_->step.loss_gradient).bytes + graph.value(program_->step.node_outputs.back()).bytes;
  int64_t most_again_bytes = 0;  // of copies for a run that is not the last: one node's at a time
  for (size_t n = 0; n < program_->rules.size(); ++n) {
    if (!program_->rules[n].keeps_state) continue;
    int64_t copies_bytes = 0;
    for (const torch::Tensor& buffer : program_->network.nodes()[n].buffers)
      copies_bytes += allocated_bytes(static_cast<int64_t>(buffer.nbytes()), buffer.device());
    bytes += copies_bytes;
    if (program_->rules[n].runs > 2) most_again_bytes = std::max(most_again_bytes, copies_bytes);
  }
  return bytes + most_again_bytes;
}

torch::Tensor TrainingStep::operator()(const Tensors& inputs) const {
  program_->network.check_inputs(inputs);
  if (allocated_bytes(static_cast<int64_t>(inputs[0].nbytes()), inputs[0].device()) > program_->input_bytes) {
    std::ostringstream text;
    text << "network " << quote(program_->network.name()) << ": an input of " << inputs[0].sizes()
         << " is larger than the one that was planned for; measure and plan again";
    throw InvalidInput(text.str());
  }
  auto frame = std::make_unique<Frame>(program_, inputs);
  Tensors variables = {inputs[0]};
  variables.insert(variables.end(), program_->parameters.begin(), program_->parameters.end());
  return StepFunction::apply(frame, at::TensorList(variables));
}

}  // namespace headroom
