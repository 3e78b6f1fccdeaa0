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

/// The data that all steps of a network share.
struct TrainingStep::Program {
  Program(Network of, StepGraph graph, Schedule by)
      : network(std::move(of)), step(std::move(graph)), schedule(std::move(by)) {}

  struct NodeRules {
    int runs = 0;
    bool draws = false;
    bool records_to_run = false;
    std::vector<size_t> parameters;  ///< Positions of its parameters among those of the network.
    std::vector<bool> modes;         ///< The training_modes() when the step was made.
    // The following are filled only for nodes that run again.
    Tensors replayed;                    ///< Buffers that forwards change, see replayed_buffers().
    Tensors constants;                   ///< Parameters and buffers that must not change before its last run.
    std::vector<OutsideTensor> outside;  ///< Captured tensors that must not change before its last run.
  };

  Network network;
  StepGraph step;
  Schedule schedule;
  size_t forward_end = 0;        ///< Number of steps of the forward half.
  std::vector<bool> takes_over;  ///< By step, see find_taking_over().
  int64_t input_bytes = 0;       ///< Maximum bytes of the first input.
  Tensors parameters;            ///< Each parameter of the network once.
  std::vector<NodeRules> rules;
  std::function<void(size_t step)> observer;
};

namespace {

using Program = TrainingStep::Program;

std::string type_and_shape(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.toString() << " " << tensor.sizes();
  return text.str();
}

/// Throws PyTorch's own error for a tensor that was changed in place since it was first read.
void check_version(const std::string& tensor, int64_t version, int64_t expected, const NetworkNode& node) {
  TORCH_CHECK(
      version == expected,
      "one of the variables needed for gradient computation has been modified by an inplace operation: [", tensor,
      "] is at version ", version, "; expected version ", expected, " instead. Node ", quote(node.name),
      " runs again in backward and reads it. Hint: enable anomaly detection to find the operation that failed to "
      "compute its gradient, with torch.autograd.set_detect_anomaly(True).");
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
      if (version != *expected) check_version(type_and_shape(tensor), version, *expected, node);
      ++expected;
    }
    for (const OutsideTensor& tensor : rules.outside) {
      // A captured tensor that was freed was replaced by the node itself.
      if (!tensor.storage.expired())
        check_version(tensor.type_and_shape, tensor.version.current_version(), *expected, node);
      ++expected;
    }
  }

 private:
  std::vector<int64_t> versions_;
};

/// The state of one step in flight: its live values and its position in the schedule.
class Frame {
 public:
  Frame(std::shared_ptr<const Program> program, const Tensors& inputs)
      : program_(std::move(program)),
        inputs_(inputs),
        slots_(program_->step.graph.values().size()),
        nodes_(program_->network.nodes().size()),
        parameter_gradients_(program_->parameters.size()) {
    for (const torch::Tensor& input : inputs_) input_versions_.push_back(version_of(input));
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const Program::NodeRules& rules = program_->rules[n];
      if (rules.runs < 2) continue;
      nodes_[n].constants.emplace(rules);
      nodes_[n].modes = training_modes(program_->network.nodes()[n]);
      // The copies are allocated here, so that they are live for the whole step, and filled when the node runs.
      for (const torch::Tensor& buffer : rules.replayed) nodes_[n].copies.push_back(copy_memory(buffer));
    }
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

  /// Returns the loss without history. Where its memory is an input's, it is a view of the input, which autograd then
  /// protects from changes in place.
  torch::Tensor loss() const {
    const torch::Tensor& loss = slots_[index(program_->step.node_outputs.back())].tensor;
    for (const torch::Tensor& input : inputs_)
      if (input.is_alias_of(loss)) return input.as_strided(loss.sizes(), loss.strides(), loss.storage_offset());
    return loss.detach();
  }
  torch::Tensor input_gradient() const { return slots_[index(program_->step.input_gradient)].tensor; }
  void set_loss_gradient(torch::Tensor gradient) {
    slots_[index(program_->step.loss_gradient)].tensor = std::move(gradient);
  }

  /// Returns the gradients by parameter of the network, and keeps none.
  Tensors take_parameter_gradients() { return std::move(parameter_gradients_); }

 private:
  /// A value's tensor or tape. Parameter gradients are stored elsewhere, since nodes may share them.
  struct Slot {
    torch::Tensor tensor;
    Tape tape;
    int64_t version = 0;  ///< The tensor's version after the run that made it.
  };

  struct NodeState {
    int runs = 0;
    // The following are the state before the first run of a node that runs again.
    std::optional<ConstantsCheck> constants;
    std::vector<bool> modes;
    std::vector<int64_t> shape;  ///< Shape of its output.
    std::optional<RandomState> random;
    Tensors copies;  ///< Memory of the replayed buffers before the run.
    std::vector<int64_t> versions;
  };

  Tensors arguments(size_t n) const {
    const NetworkNode& node = program_->network.nodes()[n];
    Tensors result;
    for (const Wire wire : node.inputs) {
      const size_t inputs = inputs_.size();
      int64_t version = 0;
      if (index(wire) < inputs) {
        result.push_back(inputs_[index(wire)]);
        version = input_versions_[index(wire)];
      } else {
        const Slot& slot = slots_[index(program_->step.node_outputs[index(wire) - inputs])];
        result.push_back(slot.tensor);
        version = slot.version;
      }
      if (version_of(result.back()) != version)
        check_version(type_and_shape(result.back()), version_of(result.back()), version, node);
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
    std::unique_lock<std::recursive_mutex> random_lock;
    if (rules.draws || state.random) random_lock = lock_random();
    if (state.runs++ == 0) {
      const auto random = [&] { return RandomState::now(inputs_[0].device(), node.generators); };
      std::optional<RandomState> before;
      if (rules.runs > 1) before = random();
      for (size_t i = 0; i < rules.replayed.size(); ++i) {
        copy_memory_to(state.copies[i], rules.replayed[i]);
        state.versions.push_back(version_of(rules.replayed[i]));
      }
      state.shape = compute(how).sizes().vec();
      // A node may draw random numbers in this step even if it did not when it was measured.
      if (before && (rules.draws || !(*before == random()))) state.random = std::move(before);
      return;
    }
    rerun(how, state);
  }

  void rerun(const StepOp& how, const NodeState& state) {
    const NetworkNode& node = program_->network.nodes()[how.node];
    const Program::NodeRules& rules = program_->rules[how.node];
    state.constants->run(node, rules);
    // A run changes the copies.
    Tensors then = state.copies;
    if (state.runs < rules.runs)
      for (torch::Tensor& copy : then) copy = copy.clone();
    const EarlierModes modes(node, state.modes);
    const EarlierState earlier(inputs_[0].device(), state.random, rules.replayed, then, state.versions,
                               node.generators);
    const torch::Tensor& value = compute(how);
    if (!value.sizes().equals(state.shape)) {
      std::ostringstream text;
      text << "node " << quote(node.name) << " gave " << at::IntArrayRef(state.shape) << " first and " << value.sizes()
           << " when it ran again";
      throw std::runtime_error(text.str());
    }
    for (const torch::Tensor& buffer : rules.replayed)
      if (buffer.is_alias_of(value))
        throw std::runtime_error("node " + quote(node.name) +
                                 " returns a buffer that the network's forward changes, and cannot run again");
  }

  /// Runs a node and returns its output, in its slot.
  const torch::Tensor& compute(const StepOp& how) {
    const NetworkNode& node = program_->network.nodes()[how.node];
    Slot& slot = slots_[index(program_->step.node_outputs[how.node])];
    torch::Tensor& value = slot.tensor;
    if (how.kind == StepOpKind::kRecord) {
      NodeOutput made = record_node(node, arguments(how.node), program_->network.trained_inputs(node, inputs_));
      value = std::move(made.output);
      slots_[index(program_->step.node_tapes[how.node])].tape = std::move(made.tape);
    } else {
      value = forward_node(node, arguments(how.node), program_->rules[how.node].records_to_run);
    }
    if (!value.defined()) throw std::runtime_error("node " + quote(node.name) + " returned no tensor");
    slot.version = version_of(value);
    return value;
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
  std::vector<int64_t> input_versions_;
  std::vector<Slot> slots_;  ///< By ValueId.
  std::vector<NodeState> nodes_;
  Tensors parameter_gradients_;  ///< The sums so far.
  size_t next_step_ = 0;
};

/// Holds a frame for autograd between forward and backward.
struct WaitingFrame : torch::CustomClassHolder {
  std::unique_ptr<Frame> frame;
};

/// The step as an autograd function. Its variables are the first input and then the parameters.
struct StepFunction : torch::autograd::Function<StepFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, std::unique_ptr<Frame>& frame,
                               at::TensorList /*variables*/) {
    frame->run_to(frame->program().forward_end);
    torch::Tensor loss = frame->loss();
    auto waiting = c10::make_intrusive<WaitingFrame>();
    waiting->frame = std::move(frame);
    context->saved_data[kFrame] = c10::IValue::make_capsule(waiting);
    return loss;
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
    // The frame is no variable, so it has no gradient.
    torch::autograd::variable_list result = {torch::Tensor(), frame->input_gradient()};
    for (torch::Tensor& gradient : frame->take_parameter_gradients()) result.push_back(std::move(gradient));
    return result;
  }

 private:
  static constexpr const char* kFrame = "frame";
};

bool is_alias_in(const Tensors& tensors, const torch::Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const torch::Tensor& other) { return other.is_alias_of(tensor); });
}

/// Sets what a node that runs again replays, and what it reads that must not change.
void set_constants(Program::NodeRules& rules, const NetworkNode& node, const Tensors& replayed) {
  rules.replayed = replayed;
  for (const Tensors& tensors : {node.parameters, node.buffers})
    for (const torch::Tensor& tensor : tensors)
      if (!is_alias_in(replayed, tensor)) rules.constants.push_back(tensor);
  rules.outside = node.reads;
}

/// Refuses modules that are in training mode now and were not when the step was measured: a rerun would draw random
/// numbers or change buffers again without being known to do so.
void check_modes(const Program& program) {
  for (size_t n = 0; n < program.rules.size(); ++n) {
    if (program.rules[n].runs < 2) continue;
    const NetworkNode& node = program.network.nodes()[n];
    const std::vector<bool> modes = training_modes(node);
    for (size_t i = 0; i < modes.size(); ++i)
      if (modes[i] && !program.rules[n].modes[i])
        throw InvalidInput("node " + quote(node.name) +
                           " is in training mode and was not when it was measured; measure and plan again");
  }
}

}  // namespace

std::vector<Tensors> replayed_buffers(const MeasuredNetwork& measured) {
  const std::vector<NetworkNode>& nodes = measured.network.nodes();
  Tensors changed;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (measured.costs.nodes[n].changes_buffers)
      changed.insert(changed.end(), nodes[n].buffers.begin(), nodes[n].buffers.end());
  std::vector<Tensors> replayed(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const torch::Tensor& buffer : nodes[n].buffers)
      if (is_alias_in(changed, buffer) && !is_alias_in(replayed[n], buffer)) replayed[n].push_back(buffer);
  return replayed;
}

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
  const std::vector<Tensors> replayed = replayed_buffers(measured);
  for (size_t n = 0; n < costs.size(); ++n) {
    const NetworkNode& node = program->network.nodes()[n];
    Program::NodeRules rules;
    rules.runs = runs[n];
    rules.draws = costs[n].draws;
    rules.records_to_run = costs[n].records_to_run;
    rules.modes = training_modes(node);
    for (const torch::Tensor& parameter : node.parameters)
      rules.parameters.push_back(places.at(parameter.unsafeGetTensorImpl()));
    if (runs[n] > 1) set_constants(rules, node, replayed[n]);
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
  int64_t max_rerun_bytes = 0;  // A run that is not the last needs copies, for one node at a time.
  for (const Program::NodeRules& rules : program_->rules) {
    int64_t copies_bytes = 0;
    for (const torch::Tensor& buffer : rules.replayed)
      copies_bytes += allocated_bytes(static_cast<int64_t>(buffer.storage().nbytes()), buffer.device());
    bytes += copies_bytes;
    if (rules.runs > 2) max_rerun_bytes = std::max(max_rerun_bytes, copies_bytes);
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
  auto frame = std::make_unique<Frame>(program_, inputs);
  Tensors variables = {inputs[0]};
  variables.insert(variables.end(), program_->parameters.begin(), program_->parameters.end());
  return StepFunction::apply(frame, at::TensorList(variables));
}

}  // namespace headroom
