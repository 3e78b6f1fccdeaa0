#include "headroom/runtime/network/executor.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "headroom/core/quote.h"
#include "headroom/runtime/frame.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/kernels.h"

namespace headroom {
using namespace internal;

/// The data that all steps of a network share. The kernels of its frames are the forwards of the nodes.
struct TrainingStep::Program {
  Program(Network of, StepGraph graph, Schedule by);

  struct NodeRules {
    bool records_to_run = false;
    std::vector<size_t> parameters;  ///< Positions of its parameters among those of the network.
    std::vector<bool> modes;         ///< The training_modes() when the step was made.
    // The following are filled only for nodes that run again.
    Tensors constants;                   ///< Parameters and buffers that must not change before its last run.
    std::vector<OutsideTensor> outside;  ///< Captured tensors that must not change before its last run.
  };

  Network network;
  StepGraph step;
  FramePlan plan;
  std::vector<bool> takes_over;  ///< By step, see find_taking_over().
  int64_t input_bytes = 0;       ///< Maximum bytes of the first input.
  Tensors parameters;            ///< Each parameter of the network once.
  std::vector<NodeRules> rules;
  std::shared_ptr<Arena> arena;  ///< In which steps run; null for none.
};

namespace {

using Program = TrainingStep::Program;

std::string reruns(const NetworkNode& node) {
  return "Node " + quote(node.name) + " runs again in backward and reads it.";
}

/// The versions, at the beginning of a step, of all tensors outside it that a rerun of a node reads.
class ConstantsCheck {
 public:
  explicit ConstantsCheck(const Program::NodeRules& rules) {
    for (const torch::Tensor& tensor : rules.constants) versions_.push_back(version_of(tensor));
    for (const OutsideTensor& tensor : rules.outside) versions_.push_back(tensor.version.current_version());
  }

  void run(const NetworkNode& node, const Program::NodeRules& rules) const {
    auto expected = versions_.begin();
    for (const torch::Tensor& tensor : rules.constants) {
      const int64_t version = version_of(tensor);
      if (version != *expected) throw_changed_in_place(type_and_shape(tensor), version, *expected, reruns(node));
      ++expected;
    }
    for (const OutsideTensor& tensor : rules.outside) {
      const int64_t version = tensor.version.current_version();
      // A captured tensor that was freed was replaced by the node itself.
      if (version != *expected && !tensor.storage.expired())
        throw_changed_in_place(tensor.type_and_shape, version, *expected, reruns(node));
      ++expected;
    }
  }

 private:
  std::vector<int64_t> versions_;
};

/// A step in flight with its tensors and tapes.
class ModuleFrame final : public Frame {
 public:
  ModuleFrame(const std::shared_ptr<const Program>& program, const Tensors& inputs)
      : Frame({program, &program->plan}, inputs[0].device(), program->arena ? program->arena->begin() : nullptr),
        program_(*program),
        inputs_(inputs),
        slots_(program_.step.graph.values().size()),
        nodes_(program_.network.nodes().size()),
        parameter_gradients_(program_.parameters.size()) {
    for (const torch::Tensor& input : inputs_) input_versions_.push_back(version_of(input));
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (program_.plan.runs[n] < 2) continue;
      nodes_[n].constants.emplace(program_.rules[n]);
      nodes_[n].modes = training_modes(program_.network.nodes()[n]);
    }
  }

  /// Returns the loss without history. Where its memory is an input's, it is a view of the input, which autograd then
  /// protects from changes in place.
  torch::Tensor loss() const {
    const torch::Tensor& loss = slots_[index(program_.step.node_outputs.back())].tensor;
    for (const torch::Tensor& input : inputs_)
      if (input.is_alias_of(loss)) return input.as_strided(loss.sizes(), loss.strides(), loss.storage_offset());
    return loss.detach();
  }
  torch::Tensor input_gradient() const { return slots_[index(program_.step.input_gradient)].tensor; }
  void set_loss_gradient(torch::Tensor gradient) {
    slots_[index(program_.step.loss_gradient)].tensor = std::move(gradient);
  }

  /// Returns the gradients by parameter of the network, and keeps none.
  Tensors take_parameter_gradients() { return std::move(parameter_gradients_); }

 private:
  void run(const Step& step) override {
    const StepOp& how = program_.step.ops[index(step.op())];
    if (how.kind == StepOpKind::kBackward) {
      run_backward_of(how, program_.takes_over[position()]);
    } else if (is_again()) {
      rerun(how);
    } else {
      const torch::Tensor& value = compute(how);
      if (nodes_[how.node].constants) nodes_[how.node].shape = value.sizes().vec();
    }
  }

  void drop(ValueId value) override { slots_[index(value)] = Slot{}; }

  /// A value's tensor or tape. Parameter gradients are stored elsewhere, since nodes may share them.
  struct Slot {
    torch::Tensor tensor;
    Tape tape;
    int64_t version = 0;  ///< The tensor's version after the run that made it.
  };

  /// The state before the first run of a node that runs again, and the shape of its output.
  struct NodeState {
    std::optional<ConstantsCheck> constants;
    std::vector<bool> modes;
    std::vector<int64_t> shape;
  };

  Tensors arguments(size_t n) const {
    const NetworkNode& node = program_.network.nodes()[n];
    Tensors result;
    for (const Wire wire : node.inputs) {
      const size_t inputs = inputs_.size();
      int64_t version = 0;
      if (index(wire) < inputs) {
        result.push_back(inputs_[index(wire)]);
        version = input_versions_[index(wire)];
      } else {
        const Slot& slot = slots_[index(program_.step.node_outputs[index(wire) - inputs])];
        result.push_back(slot.tensor);
        version = slot.version;
      }
      if (version_of(result.back()) != version)
        throw_changed_in_place(type_and_shape(result.back()), version_of(result.back()), version, reruns(node));
    }
    return result;
  }

  void rerun(const StepOp& how) {
    const NetworkNode& node = program_.network.nodes()[how.node];
    const NodeState& state = nodes_[how.node];
    state.constants->run(node, program_.rules[how.node]);
    const EarlierModes modes(node, state.modes);
    const torch::Tensor& value = compute(how);
    if (!value.sizes().equals(state.shape)) {
      std::ostringstream text;
      text << "node " << quote(node.name) << " gave " << at::IntArrayRef(state.shape) << " first and " << value.sizes()
           << " when it ran again";
      throw std::runtime_error(text.str());
    }
    for (const torch::Tensor& buffer : program_.plan.replays[how.node].buffers)
      if (buffer.is_alias_of(value))
        throw std::runtime_error("node " + quote(node.name) +
                                 " returns a buffer that the network's forward changes, and cannot run again");
  }

  /// Runs a node and returns its output, in its slot.
  const torch::Tensor& compute(const StepOp& how) {
    const NetworkNode& node = program_.network.nodes()[how.node];
    Slot& slot = slots_[index(program_.step.node_outputs[how.node])];
    torch::Tensor& value = slot.tensor;
    if (how.kind == StepOpKind::kRecord) {
      NodeOutput made = record_node(node, arguments(how.node), program_.network.trained_inputs(node, inputs_));
      value = std::move(made.output);
      slots_[index(program_.step.node_tapes[how.node])].tape = std::move(made.tape);
    } else {
      value = forward_node(node, arguments(how.node), program_.rules[how.node].records_to_run);
    }
    if (!value.defined()) throw std::runtime_error("node " + quote(node.name) + " returned no tensor");
    slot.version = version_of(value);
    return value;
  }

  void run_backward_of(const StepOp& how, bool takes_over) {
    const NetworkNode& node = program_.network.nodes()[how.node];
    const std::vector<size_t>& places = program_.rules[how.node].parameters;
    torch::Tensor gradient = slots_[index(how.output_gradient)].tensor;
    if (takes_over) {
      slots_[index(how.output_gradient)].tensor.reset();
      slots_[index(program_.step.node_outputs[how.node])].tensor.reset();
    }
    NodeGradients sums;
    for (const ValueId id : how.sums) sums.inputs.push_back(id == ValueId{-1} ? torch::Tensor() : take(id));
    for (const size_t place : places) sums.parameters.push_back(std::exchange(parameter_gradients_[place], {}));
    NodeGradients made = backward_node(node, std::exchange(slots_[index(program_.step.node_tapes[how.node])].tape, {}),
                                       std::move(gradient), std::move(sums));
    for (size_t k = 0; k < how.gradients.size(); ++k)
      if (how.gradients[k] != ValueId{-1}) slots_[index(how.gradients[k])].tensor = std::move(made.inputs[k]);
    for (size_t k = 0; k < places.size(); ++k) parameter_gradients_[places[k]] = std::move(made.parameters[k]);
  }

  torch::Tensor take(ValueId id) { return std::exchange(slots_[index(id)].tensor, {}); }

  const Program& program_;  // The frame keeps it alive.
  Tensors inputs_;
  std::vector<int64_t> input_versions_;
  std::vector<Slot> slots_;  ///< By ValueId.
  std::vector<NodeState> nodes_;
  Tensors parameter_gradients_;  ///< The sums so far.
};

/// Holds a frame for autograd between forward and backward.
struct WaitingFrame : torch::CustomClassHolder {
  std::shared_ptr<ModuleFrame> frame;
};

/// The step as an autograd function. Its variables are the first input and then the parameters.
struct StepFunction : torch::autograd::Function<StepFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, std::shared_ptr<ModuleFrame>& frame,
                               at::TensorList /*variables*/) {
    torch::Tensor loss;
    {
      const ArenaScope scope(frame->arena_run().get(), Half::kForward);
      frame->run_forward();
      loss = frame->loss();
      if (frame->arena_run()) frame->arena_run()->leave_native(loss.storage().data());
    }
    auto waiting = c10::make_intrusive<WaitingFrame>();
    waiting->frame = std::move(frame);
    context->saved_data[kFrame] = c10::IValue::make_capsule(waiting);
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto waiting = context->saved_data[kFrame].toCapsule();
    std::shared_ptr<ModuleFrame> frame =
        take_frame(static_cast<WaitingFrame*>(waiting.get())->frame, /*is_recorded=*/at::GradMode::is_enabled());
    const std::shared_ptr<ArenaRun> run = frame->arena_run();
    torch::autograd::variable_list result;
    {
      const ArenaScope scope(run.get(), Half::kBackward);
      frame->set_loss_gradient(std::move(gradients[0]));
      gradients.clear();
      frame->run_backward();
      // The frame is no variable, so it has no gradient.
      result = {torch::Tensor(), frame->input_gradient()};
      for (torch::Tensor& gradient : frame->take_parameter_gradients()) result.push_back(std::move(gradient));
      frame.reset();
    }
    if (run) run->finish();
    return result;
  }

 private:
  static constexpr const char* kFrame = "frame";
};

/// Sets what a node that runs again reads and must not change, besides the buffers that it replays.
void set_constants(Program::NodeRules& rules, const NetworkNode& node, const Tensors& replayed) {
  for (const Tensors& tensors : {node.parameters, node.buffers})
    for (const torch::Tensor& tensor : tensors)
      if (!is_alias_in(replayed, tensor)) rules.constants.push_back(tensor);
  rules.outside = node.reads;
}

/// Returns by op the node whose forward it runs; -1 for backwards.
std::vector<int> forwards_of(const StepGraph& step) {
  std::vector<int> nodes;
  for (const StepOp& how : step.ops)
    nodes.push_back(how.kind == StepOpKind::kBackward ? -1 : static_cast<int>(how.node));
  return nodes;
}

/// Refuses modules that are in training mode now and were not when the step was measured: a rerun would draw random
/// numbers or change buffers again without being known to do so.
void check_modes(const Program& program) {
  for (size_t n = 0; n < program.rules.size(); ++n) {
    if (program.plan.runs[n] < 2) continue;
    const NetworkNode& node = program.network.nodes()[n];
    const std::vector<bool> modes = training_modes(node);
    for (size_t i = 0; i < modes.size(); ++i)
      if (modes[i] && !program.rules[n].modes[i])
        throw InvalidInput("node " + quote(node.name) +
                           " is in training mode and was not when it was measured; measure and plan again");
  }
}

}  // namespace

TrainingStep::Program::Program(Network of, StepGraph graph, Schedule by)
    : network(std::move(of)),
      step(std::move(graph)),
      plan(step.graph, std::move(by), forwards_of(step), network.nodes().size()),
      takes_over(find_taking_over(step, plan.schedule)),
      parameters(network.parameters()) {
  const std::vector<Step>& steps = plan.schedule.steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].is_over()) throw InvalidInput("nodes of a network do not run in place: step " + std::to_string(i));
    if (plan.forward_end == 0 && plan.kernel_of_step[i] + 1 == static_cast<int>(network.nodes().size()))
      plan.forward_end = i + 1;
  }
}

TrainingStep::TrainingStep(const MeasuredNetwork& measured, StepGraph step, Schedule schedule) {
  auto program = std::make_shared<Program>(measured.network, std::move(step), std::move(schedule));
  const std::vector<NodeCosts>& costs = measured.costs.nodes;
  program->input_bytes = measured.costs.input_bytes;
  std::unordered_map<const c10::TensorImpl*, size_t> places;
  for (const torch::Tensor& parameter : program->parameters)
    places.emplace(parameter.unsafeGetTensorImpl(), places.size());
  const std::vector<Tensors> replayed = replayed_buffers(measured);
  for (size_t n = 0; n < costs.size(); ++n) {
    const NetworkNode& node = program->network.nodes()[n];
    Replay& replay = program->plan.replays[n];
    replay = {.draws = costs[n].draws, .may_draw = true, .generators = node.generators};
    Program::NodeRules rules;
    rules.records_to_run = costs[n].records_to_run;
    rules.modes = training_modes(node);
    for (const torch::Tensor& parameter : node.parameters)
      rules.parameters.push_back(places.at(parameter.unsafeGetTensorImpl()));
    if (program->plan.runs[n] > 1) {
      replay.buffers = replayed[n];
      set_constants(rules, node, replayed[n]);
    }
    program->rules.push_back(std::move(rules));
  }
  program_ = std::move(program);
}

void TrainingStep::observe(std::function<void(size_t step)> observer) { program_->plan.observer = std::move(observer); }

void TrainingStep::use_arena(torch::Device device) { program_->arena = std::make_shared<Arena>(device); }

int64_t TrainingStep::arena_bytes() const { return arena() ? arena()->statistics().block_bytes : 0; }

const std::shared_ptr<Arena>& TrainingStep::arena() const { return program_->arena; }

const Network& TrainingStep::network() const { return program_->network; }

const Schedule& TrainingStep::schedule() const { return program_->plan.schedule; }

int64_t TrainingStep::beside_bytes() const {
  const Graph& graph = program_->step.graph;
  int64_t bytes =
      graph.value(program_->step.loss_gradient).bytes + graph.value(program_->step.node_outputs.back()).bytes;
  int64_t max_rerun_bytes = 0;  // A run that is not the last needs copies, for one node at a time.
  for (size_t n = 0; n < program_->rules.size(); ++n) {
    int64_t copies_bytes = 0;
    for (const torch::Tensor& buffer : program_->plan.replays[n].buffers)
      copies_bytes += allocated_bytes(static_cast<int64_t>(buffer.storage().nbytes()), buffer.device());
    bytes += copies_bytes;
    if (program_->plan.runs[n] > 2) max_rerun_bytes = std::max(max_rerun_bytes, copies_bytes);
  }
  return bytes + max_rerun_bytes;
}

torch::Tensor TrainingStep::operator()(const Tensors& inputs) const {
  program_->network.check_inputs(inputs);
  check_modes(*program_);
  if (allocated_bytes(static_cast<int64_t>(inputs[0].nbytes()), inputs[0].device()) > program_->input_bytes) {
    std::ostringstream text;
    text << "network " << quote(program_->network.name()) << ": an input of " << inputs[0].sizes()
         << " is larger than the one that was planned for; measure and plan again";
    throw InvalidInput(text.str());
  }
  auto frame = std::make_shared<ModuleFrame>(program_, inputs);
  Tensors variables = {inputs[0]};
  variables.insert(variables.end(), program_->parameters.begin(), program_->parameters.end());
  return StepFunction::apply(frame, at::TensorList(variables));
}

}  // namespace headroom
