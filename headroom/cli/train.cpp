#include "headroom/cli/train.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <random>

#include "headroom/cli/chart.h"
#include "headroom/cli/progress.h"
#include "headroom/cli/train_report.h"
#include "headroom/core/quote.h"
#include "headroom/io/file.h"
#include "headroom/io/json.h"
#include "headroom/io/size.h"
#include "headroom/plan/chain/checkpoints.h"
#include "headroom/report/page.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/join.h"
#include "headroom/runtime/state.h"
#include "headroom/runtime/train.h"
#include "headroom/zoo/zoo.h"

namespace headroom::cli {
namespace {

constexpr int64_t kByteWords = 256;

ZooOptions zoo_options(const TrainArguments& arguments) {
  ZooOptions options;
  options.classes = arguments.classes;
  options.dropout = arguments.dropout;
  options.layers = arguments.layers;
  options.width = arguments.width;
  options.heads = arguments.heads;
  options.tokens = arguments.tokens;
  options.vocabulary = arguments.vocabulary;
  if (!arguments.text_files.empty()) {
    if (options.vocabulary.value_or(kByteWords) < kByteWords)
      throw InvalidInput("--text: tokens are bytes, and a vocabulary of " + std::to_string(*options.vocabulary) +
                         " is smaller than " + std::to_string(kByteWords));
    options.vocabulary = options.vocabulary.value_or(kByteWords);
  }
  return options;
}

/// The batches of training: one random batch again and again, or pieces of a text, each time others.
class Batches {
 public:
  Batches(const TrainArguments& arguments, const ZooOptions& options, const Network& network, torch::Device device)
      : random_(arguments.seed),
        sample_(zoo_sample(arguments.model, options, arguments.batch, arguments.image.value_or(0), device,
                           arguments.seed)) {
    const bool reads_tokens = network.input_names()[0] == "tokens";
    if (reads_tokens && arguments.image)
      throw InvalidInput("network " + quote(arguments.model) +
                         " takes no images; --tokens is the length of a sequence");
    if (arguments.text_files.empty()) return;
    for (const std::string& file : arguments.text_files) text_ += read_file(file);
    if (text_.size() <= static_cast<size_t>(sample_[0].size(1)))
      throw InvalidInput("--text: needs more than the " + std::to_string(sample_[0].size(1)) +
                         " bytes of a sequence, found " + std::to_string(text_.size()));
    sample_ = next();
  }

  const Tensors& sample() const { return sample_; }

  Tensors next() {
    if (text_.empty()) return sample_;
    const int64_t tokens = sample_[0].size(1);
    const torch::Tensor words = torch::empty({sample_[0].size(0), tokens + 1}, torch::kLong);
    auto* word = words.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < words.size(0); ++i) {
      // Not a distribution of the standard library, whose numbers differ from one library to the next.
      const size_t begin = random_() % (text_.size() - static_cast<size_t>(tokens));
      for (int64_t k = 0; k <= tokens; ++k) *word++ = static_cast<unsigned char>(text_[begin + static_cast<size_t>(k)]);
    }
    const torch::Device device = sample_[0].device();
    return {words.slice(1, 0, tokens).contiguous().to(device), words.slice(1, 1).contiguous().to(device)};
  }

  /// One item of a batch, for people.
  std::string describe() const {
    const std::string size = std::to_string(sample_[0].size(-1));
    return sample_[0].dim() == 2 ? size + " tokens" : size + "x" + size;
  }

 private:
  std::mt19937_64 random_;
  Tensors sample_;
  std::string text_;
};

Tensors on_host(const Tensors& tensors) {
  Tensors result;
  for (const torch::Tensor& tensor : tensors)
    result.push_back(tensor.defined() ? tensor.detach().to(torch::kCPU, tensor.scalar_type(), false, true) : tensor);
  return result;
}

/// Where training stands: parameters, buffers and the random numbers to come. Kept on the host.
struct TrainingState {
  explicit TrainingState(const Network& network, torch::Device device)
      : parameters(on_host(network.parameters())),
        buffers(on_host(network.buffers())),
        random(RandomState::now(device)) {}

  void restore(const Network& network) const {
    const torch::NoGradGuard no_grad;
    restore_buffers(network.parameters(), parameters);
    restore_buffers(network.buffers(), buffers);
    random.restore();
  }

  Tensors parameters;
  Tensors buffers;
  RandomState random;
};

/// What one step did.
struct StepResult {
  Tensors gradients;
  Tensors buffers;
};

/// Largest absolute difference; sets `identical` to false where a bit differs.
double difference(const Tensors& left, const Tensors& right, bool& identical) {
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!left[i].defined() && !right[i].defined()) continue;
    if (left[i].defined() != right[i].defined() || !left[i].sizes().equals(right[i].sizes())) {
      identical = false;
      return std::numeric_limits<double>::infinity();
    }
    const torch::Tensor a = left[i].contiguous();
    const torch::Tensor b = right[i].contiguous();
    if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) continue;
    identical = false;
    largest = std::max(largest, (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>());
  }
  return largest;
}

using StepFunction = std::function<torch::Tensor(const Tensors& batch)>;

/// Runs and measures optimizer steps.
class Trainer {
 public:
  Trainer(const Network& network, Meter& meter, int64_t before_bytes, double learning_rate)
      : network_(network),
        meter_(meter),
        before_bytes_(before_bytes),
        optimizer_(network.parameters(), torch::optim::SGDOptions(learning_rate)) {}

  /// No gradients are left behind. The bytes beyond `before_bytes` that are there before the step (other batches, and
  /// on the CPU what is kept for comparing) do not count.
  void step(const StepFunction& run, const Tensors& batch, TrainedSteps& trained) {
    wait();
    more_bytes_ = meter_.current_bytes() - before_bytes_;
    meter_.reset_peak();
    const auto start = std::chrono::steady_clock::now();
    const torch::Tensor loss = run(batch);
    loss.backward();
    optimizer_.step();
    wait();
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    trained.peak_bytes = std::max(trained.peak_bytes, meter_.peak_bytes() - more_bytes_);
    trained.times_ns.push_back(time.count());
    trained.losses.push_back(loss.item<double>());
  }

  StepResult result() const {
    Tensors gradients;
    for (const torch::Tensor& parameter : network_.parameters()) gradients.push_back(parameter.grad());
    return {on_host(gradients), on_host(network_.buffers())};
  }

  void forget_gradients() { optimizer_.zero_grad(); }

  /// What the last step's peak does not count.
  int64_t more_bytes() const { return more_bytes_; }

 private:
  void wait() const {
    if (!meter_.device().is_cpu())
      c10::impl::VirtualGuardImpl(meter_.device().type()).synchronizeDevice(meter_.device().index());
  }

  const Network& network_;
  Meter& meter_;
  int64_t before_bytes_;
  torch::optim::SGD optimizer_;
  int64_t more_bytes_ = 0;
};

/// Trains plainly and by the plan, a step of each in turn, from the same state. Measures the memory of each step of the
/// schedule in the first step where `memory` is there.
class Comparison {
 public:
  Comparison(const TrainArguments& arguments, const Network& network, Meter& meter, TrainReport& report)
      : arguments_(arguments),
        network_(network),
        meter_(meter),
        report_(report),
        trainer_(network, meter, report.before_bytes, arguments.learning_rate) {
    if (!arguments.plain) report.why_not_plain = "not run";
  }

  void run(TrainingStep step, Batches& batches, MeasuredMemory* memory) {
    if (arguments_.plain) report_.plain.emplace();
    TrainingState plain_state(network_, meter_.device());
    TrainingState planned_state = plain_state;
    Progress progress("training");
    for (int i = 0; i < arguments_.steps; ++i) {
      const Tensors batch = batches.next();
      const bool is_last = i + 1 == arguments_.steps;
      StepResult expected;
      if (report_.plain) {
        if (i > 0) plain_state.restore(network_);
        if (run_plainly(batch)) {
          expected = trainer_.result();
          if (!is_last) plain_state = TrainingState(network_, meter_.device());
        }
        trainer_.forget_gradients();
        planned_state.restore(network_);
      }
      run_planned(step, batch, i == 0 ? memory : nullptr);
      if (report_.plain) {
        compare(expected);
        if (!is_last) planned_state = TrainingState(network_, meter_.device());
      }
      trainer_.forget_gradients();
      progress.report(static_cast<size_t>(i) + 1, static_cast<size_t>(arguments_.steps));
    }
  }

 private:
  /// False, and no plain training any more, where the device's memory does not suffice.
  bool run_plainly(const Tensors& batch) {
    try {
      trainer_.step([this](const Tensors& inputs) { return network_.forward(inputs)[0]; }, batch, *report_.plain);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      report_.plain.reset();
      report_.why_not_plain = "runs out of memory on this device";
      return false;
    }
  }

  void run_planned(TrainingStep& step, const Tensors& batch, MeasuredMemory* memory) {
    if (memory == nullptr) return trainer_.step(step, batch, report_.planned);
    Meter meter(meter_.device());
    step.observe([&meter](size_t /*step*/) { meter.mark({}); });
    trainer_.step(step, batch, report_.planned);
    step.observe({});
    for (const MemoryMark& mark : meter.timeline()) {
      memory->moment_bytes.push_back(mark.peak_bytes - trainer_.more_bytes());
      memory->after_bytes.push_back(mark.current_bytes - trainer_.more_bytes());
    }
  }

  void compare(const StepResult& expected) {
    Differences& differences = report_.differences;
    const StepResult found = trainer_.result();
    differences.gradients =
        std::max(differences.gradients, difference(expected.gradients, found.gradients, differences.identical));
    differences.buffers =
        std::max(differences.buffers, difference(expected.buffers, found.buffers, differences.identical));
    const auto bits = [](const TrainedSteps& steps) { return std::bit_cast<uint64_t>(steps.losses.back()); };
    if (bits(*report_.plain) != bits(report_.planned)) differences.identical = false;
  }

  const TrainArguments& arguments_;
  const Network& network_;
  Meter& meter_;
  TrainReport& report_;
  Trainer trainer_;
};

/// Bytes of the device; a share is of what store-all's step adds to what was there before it.
int64_t budget_of(const std::string& text, const TrainReport& report) {
  const bool is_share = !text.empty() && (text.back() == 'x' || text.back() == 'X');
  const int64_t bytes = parse_budget(text, report.store_all_peak_bytes - report.before_bytes);
  return is_share ? report.before_bytes + bytes : bytes;
}

TrainingStep checkpointed(const MeasuredStep& measured, const TrainArguments& arguments, TrainReport& report) {
  if (!measured.problem.chain)
    throw InvalidInput("--checkpoints: network " + quote(report.model) + " is no chain; --chain makes it one");
  const Schedule schedule = checkpoint_schedule(measured.problem.chain->length(), arguments.checkpoints,
                                                CheckpointOptions{arguments.options.reentrant});
  report.checkpoints = arguments.checkpoints;
  return TrainingStep(measured.measured, measured.step, schedule);
}

TrainingStep planned(const MeasuredStep& measured, const TrainArguments& arguments, TrainReport& report) {
  if (arguments.budget) report.budget_bytes = budget_of(*arguments.budget, report);
  TrainOptions options;
  options.planner = arguments.planner;
  options.planner_options = arguments.options;
  options.limits = limits_of(arguments);
  const PlannedStep found = plan_step(measured, report.budget_bytes, options);
  report.planner = found.plan.planner->name;
  report.status = name_of(found.plan.result.status);
  report.solve_ms = found.plan.solve_ms;
  if (found.plan.planner->chooses_checkpoints && found.plan.on_chain)
    report.checkpoints = found.plan.result.checkpoints;
  return found.step;
}

/// The step by which predict() judges it, resident values being all that is on the device all along: the simulator gives
/// the device's bytes.
StepGraph device_step(const MeasuredStep& measured, const TrainingStep& step) {
  StepGraph device = step_for(measured.step, measured.measured.costs, step.schedule());
  const int64_t more_bytes = measured.before_bytes + step.beside_bytes() - device.graph.resident_bytes();
  GraphSpec spec = device.graph.spec();
  spec.values[0].bytes += more_bytes;
  HEADROOM_ASSERT(spec.values[0].resident && spec.values[0].bytes >= 0);
  device.graph = Graph(std::move(spec));
  if (device.chain) device.chain->resident_bytes += more_bytes;
  return device;
}

/// As a chain where it is one and a chain's file can say it.
std::string graph_file_of(const StepGraph& step) {
  const auto says_more = [](const Stage& stage) { return stage.record_workspace_bytes.has_value(); };
  if (!step.chain || std::ranges::any_of(step.chain->stages, says_more)) return write_json(step.graph);
  return write_json(*step.chain);
}

std::vector<std::string> nodes_of_ops(const MeasuredStep& measured) {
  std::vector<std::string> names;
  for (const StepOp& op : measured.step.ops) names.push_back(measured.measured.network.nodes()[op.node].name);
  return names;
}

void describe(TrainReport& report, const MeasuredStep& measured) {
  const Network& network = measured.measured.network;
  for (const torch::Tensor& parameter : network.parameters()) report.parameters += parameter.numel();
  report.nodes = network.nodes().size();
  report.blocks = join_to_chain(network).nodes().size();
  report.is_chain = measured.problem.chain.has_value();
  report.before_bytes = measured.before_bytes;
  const Simulation store_all_step =
      predict(measured, TrainingStep(measured.measured, measured.step, store_all(measured.step.graph)));
  report.store_all_peak_bytes = store_all_step.peak_bytes;
  report.store_all_time_ns = store_all_step.time_ns;
}

void write_report(const TrainArguments& arguments, const TrainReport& report, const StepGraph& step,
                  const Schedule& schedule, const std::vector<std::string>& nodes, const MeasuredMemory& memory) {
  const Progress progress("planning for comparison");
  ReportInput input{step.graph, schedule};
  input.budget_bytes = report.budget_bytes;
  input.planner = report.planner.value_or("given checkpoints");
  input.status = report.status;
  input.modules = nodes;
  input.measured = report_measurement(report, schedule, memory);
  input.fronts = make_report_fronts(make_problem(step), limits_of(arguments));
  write_file_atomically(*arguments.report_file, make_report_page(write_report_data(input)));
}

ExitStatus train(const TrainArguments& arguments) {
  get_planner(arguments.planner);  // What can be refused at once is.
  if (arguments.report_file) make_report_page("");
  if (arguments.budget) parse_budget(*arguments.budget, 0);
  Meter meter(torch::Device(arguments.device));  // Before the first tensor, to see them all.
  const ZooOptions options = zoo_options(arguments);
  torch::manual_seed(arguments.seed);
  Network network = make_zoo_network(arguments.model, options);
  if (arguments.join_to_chain) network = join_to_chain(network);
  network.to(meter.device());
  network.train();
  Batches batches(arguments, options, network, meter.device());

  TrainReport report;
  report.model = arguments.model;
  report.device = arguments.device;
  report.torch_version = TORCH_VERSION;
  report.batch = arguments.batch;
  report.sample = batches.describe();
  const MeasuredStep measured = [&] {
    Progress progress("measuring");
    MeasureOptions measure_options;
    measure_options.progress = [&](size_t done, size_t all) { progress.report(done, all); };
    return measure_step(network, batches.sample(), measure_options);
  }();
  describe(report, measured);
  const TrainingStep step =
      arguments.checkpoints.empty() ? planned(measured, arguments, report) : checkpointed(measured, arguments, report);
  const Simulation prediction = predict(measured, step);
  report.predicted_peak_bytes = prediction.peak_bytes;
  report.predicted_time_ns = prediction.time_ns;
  const StepGraph device = device_step(measured, step);
  const Graph& graph = device.graph;
  if (arguments.graph_file) write_file_atomically(*arguments.graph_file, graph_file_of(device));
  if (arguments.schedule_file) write_file_atomically(*arguments.schedule_file, write_json(graph, step.schedule()));

  MeasuredMemory memory;
  const bool measures_memory = arguments.trace_file || arguments.report_file;
  Comparison(arguments, network, meter, report).run(step, batches, measures_memory ? &memory : nullptr);
  if (arguments.trace_file)
    write_file_atomically(
        *arguments.trace_file,
        train_trace(graph, step.schedule(), prediction, nodes_of_ops(measured), memory).dump() + "\n");
  if (arguments.report_file) write_report(arguments, report, device, step.schedule(), nodes_of_ops(measured), memory);
  std::cout << (arguments.json ? to_json(report).dump() + "\n" : to_text(report));
  if (!arguments.json && arguments.chart)
    std::cout << "\n"
              << memory_chart(graph, step.schedule(), prediction, report.budget_bytes, ChartStyle::of_terminal());
  if (!report.budget_bytes || report.planned.peak_bytes <= *report.budget_bytes) return kDone;
  std::cout.flush();
  complain(kTrainProgram,
           "the measured peak is " + std::to_string(report.planned.peak_bytes - *report.budget_bytes) +
               " bytes above the budget",
           kNoPlan);
  return kNoPlan;
}

}  // namespace

ExitStatus run_train(const TrainArguments& arguments) {
  try {
    return train(arguments);
  } catch (const BudgetTooSmall& error) {
    const int64_t smallest_bytes = error.smallest_budget_bytes();
    complain(kTrainProgram, error.what() + (smallest_bytes > 0 ? " = " + format_bytes(smallest_bytes) : ""), kNoPlan);
    return kNoPlan;
  } catch (const c10::OutOfMemoryError& error) {
    complain(kTrainProgram, error.what_without_backtrace(), kNoPlan);
    return kNoPlan;
  } catch (const c10::Error& error) {  // Without the stack that what() has.
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace headroom::cli
