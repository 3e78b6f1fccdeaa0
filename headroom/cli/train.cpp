#include "headroom/cli/train.h"

#include <torch/utils.h>
#include <torch/version.h>

#include <iostream>

#include "headroom/cli/chart.h"
#include "headroom/cli/progress.h"
#include "headroom/cli/train_report.h"
#include "headroom/core/quote.h"
#include "headroom/io/file.h"
#include "headroom/io/json.h"
#include "headroom/io/size.h"
#include "headroom/plan/chain/checkpoints.h"
#include "headroom/report/page.h"
#include "headroom/runtime/network/join.h"
#include "headroom/train/batches.h"

namespace headroom::internal::cli {
namespace {

constexpr int64_t kByteWords = 256;

/// Returns the options of the network, whose vocabulary is the bytes if it learns a text.
ZooOptions zoo_options(const TrainArguments& arguments) {
  ZooOptions options = arguments.network;
  if (arguments.text_files.empty()) return options;
  options.vocabulary = options.vocabulary.value_or(kByteWords);
  if (*options.vocabulary < kByteWords)
    throw InvalidInput("--text: tokens are bytes, and a vocabulary of " + std::to_string(*options.vocabulary) +
                       " is smaller than " + std::to_string(kByteWords));
  return options;
}

/// Returns the batches of training: one random batch again and again, or pieces of a text, different ones each time.
Batches make_batches(const TrainArguments& arguments, const ZooOptions& options, const Network& network,
                     torch::Device device) {
  Tensors sample =
      zoo_sample(arguments.model, options, arguments.batch, arguments.image.value_or(0), device, arguments.seed);
  if (network.input_names()[0] == "tokens" && arguments.image)
    throw InvalidInput("network " + quote(arguments.model) + " takes no images; --tokens is the length of a sequence");
  if (arguments.text_files.empty()) return {std::move(sample), std::nullopt, arguments.seed};
  std::string text;
  for (const std::string& file : arguments.text_files) text += read_file(file);
  if (text.size() <= static_cast<size_t>(sample[0].size(1)))
    throw InvalidInput("--text: needs more than the " + std::to_string(sample[0].size(1)) +
                       " bytes of a sequence, found " + std::to_string(text.size()));
  return {std::move(sample), std::move(text), arguments.seed};
}

/// Returns the size of one item of a batch for display.
std::string describe_item(const Tensors& batch) {
  const std::string size = std::to_string(batch[0].size(-1));
  return batch[0].dim() == 2 ? size + " tokens" : size + "x" + size;
}

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
  return make_training_step(measured, schedule);
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
  const Simulation store_all_step = predict(measured, make_training_step(measured, store_all(measured.step.graph)));
  report.store_all_peak_bytes = store_all_step.peak_bytes;
  report.store_all_time_ns = store_all_step.time_ns;
}

void write_report(const TrainArguments& arguments, const TrainReport& report, const StepGraph& step,
                  const Schedule& schedule, const std::vector<std::string>& nodes) {
  const Progress progress("planning for comparison");
  ReportInput input{step.graph, schedule};
  input.budget_bytes = report.budget_bytes;
  input.planner = report.planner.value_or("given checkpoints");
  input.status = report.status;
  input.modules = nodes;
  input.measured = report_measurement(report, schedule);
  input.fronts = make_report_fronts(make_problem(step), limits_of(arguments));
  write_file_atomically(*arguments.report_file, make_report_page(write_report_data(input)));
}

/// Returns kNoPlan, and says why, if the measured peak is above the budget.
ExitStatus judge(const TrainReport& report) {
  const int64_t excess_bytes = report.measured_peak_bytes() - report.budget_bytes.value_or(INT64_MAX);
  if (excess_bytes <= 0) return kDone;
  std::cout.flush();
  complain(kTrainProgram, "the measured peak is " + std::to_string(excess_bytes) + " bytes above the budget", kNoPlan);
  return kNoPlan;
}

ExitStatus train(const TrainArguments& arguments) {
  get_planner(arguments.planner);  // What can be refused at once is.
  if (arguments.report_file) make_report_page("");
  if (arguments.budget) parse_budget(*arguments.budget, 0);
  Meter meter(torch::Device(arguments.device));  // Before the first tensor, to see them all.
  const ZooOptions network_options = zoo_options(arguments);
  torch::manual_seed(arguments.seed);
  Network network = make_zoo_network(arguments.model, network_options);
  if (arguments.join_to_chain) network = join_to_chain(network);
  network.to(meter.device());
  network.train();
  Batches batches = make_batches(arguments, network_options, network, meter.device());

  TrainReport report;
  report.model = arguments.model;
  report.device = arguments.device;
  report.torch_version = TORCH_VERSION;
  report.batch = arguments.batch;
  report.sample = describe_item(batches.sample());
  const MeasuredStep measured = [&] {
    Progress progress("measuring");
    MeasureOptions options;
    options.progress = [&](size_t done, size_t all) { progress.report(done, all); };
    return measure_step(network, batches.sample(), options);
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

  report.training = [&] {
    Progress progress("training");
    ComparisonOptions options = arguments.training;
    options.measures_memory = arguments.trace_file || arguments.report_file;
    options.progress = [&](size_t done, size_t all) { progress.report(done, all); };
    return compare_training(
        network, measured, step, [&] { return batches.next(); }, meter, options);
  }();
  if (!report.training.plain)
    report.why_not_plain = arguments.training.plain ? "runs out of memory on this device" : "not run";
  if (arguments.trace_file)
    write_file_atomically(
        *arguments.trace_file,
        train_trace(graph, step.schedule(), prediction, nodes_of_ops(measured), report.training.memory).dump() + "\n");
  if (arguments.report_file) write_report(arguments, report, device, step.schedule(), nodes_of_ops(measured));
  std::cout << (arguments.json ? to_json(report).dump() + "\n" : to_text(report));
  if (!arguments.json && arguments.chart)
    std::cout << "\n"
              << memory_chart(graph, step.schedule(), prediction, report.budget_bytes, ChartStyle::of_terminal());
  return judge(report);
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

}  // namespace headroom::internal::cli
