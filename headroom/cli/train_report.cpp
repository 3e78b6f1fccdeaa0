#include "headroom/cli/train_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "headroom/io/size.h"

namespace headroom::internal::cli {
namespace {

std::string percent(double share, const char* format) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, 100 * share);
  return text.data();
}

std::string number(double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string grouped(int64_t count) {
  std::string text = std::to_string(count);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, " ");
  return text;
}

double share_of(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// At most `most` of the losses, the first and the last among them.
std::string some_losses(const std::vector<double>& losses, size_t most) {
  const size_t shown = std::min(losses.size(), most);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    std::array<char, 48> loss{};
    std::snprintf(loss.data(), loss.size(), "%.4f", losses[shown == 1 ? 0 : i * (losses.size() - 1) / (shown - 1)]);
    text += (i == 0 ? "" : "  ") + std::string(loss.data());
  }
  return text;
}

Json to_json(const TrainedSteps& steps) {
  return Json{{"peak_bytes", std::ranges::max(steps.peaks_bytes)},
              {"step_ns", median(steps.times_ns)},
              {"times_ns", steps.times_ns},
              {"losses", steps.losses}};
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string size_of(const TrainReport& report) {
  if (report.is_chain) return "chain of " + std::to_string(report.nodes) + " stages";
  return "graph of " + std::to_string(report.nodes) + " nodes, joined a chain of " + std::to_string(report.blocks);
}

/// With its share of what the step of store-all adds.
std::string describe_peak(const TrainReport& report, int64_t peak_bytes) {
  return format_bytes(peak_bytes) + ", " +
         percent(share_of(peak_bytes - report.before_bytes, report.store_all_peak_bytes - report.before_bytes),
                 "%.1f %%") +
         " of store-all's step";
}

std::string describe_plan(const TrainReport& report) {
  if (!report.planner) return "the given checkpoints";
  return *report.planner + ", " + *report.status + ", planned in " + number(report.solve_ms) + " ms";
}

std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (const int one : numbers) text += (text.empty() ? "" : ",") + std::to_string(one);
  return text.empty() ? "none" : text;
}

}  // namespace

double TrainReport::error() const {
  const int64_t peak_bytes = measured_peak_bytes();
  return share_of(predicted_peak_bytes - peak_bytes, peak_bytes - before_bytes);
}

double TrainReport::recomputation() const { return share_of(predicted_time_ns - store_all_time_ns, predicted_time_ns); }

Json to_json(const TrainReport& report) {
  const Comparison& training = report.training;
  Json json;
  json["model"] = report.model;
  json["device"] = report.device;
  json["torch"] = report.torch_version;
  json["batch"] = report.batch;
  json["sample"] = report.sample;
  json["parameters"] = report.parameters;
  json["nodes"] = report.nodes;
  json["is_chain"] = report.is_chain;
  json["blocks"] = report.blocks;
  json["before_bytes"] = report.before_bytes;
  json["store_all_peak_bytes"] = report.store_all_peak_bytes;
  json["store_all_time_ns"] = report.store_all_time_ns;
  json["budget_bytes"] = or_null(report.budget_bytes);
  json["planner"] = or_null(report.planner);
  json["status"] = or_null(report.status);
  json["checkpoints"] = or_null(report.checkpoints);
  json["solve_ms"] = report.solve_ms;
  json["predicted_peak_bytes"] = report.predicted_peak_bytes;
  json["predicted_time_ns"] = report.predicted_time_ns;
  json["measured_peak_bytes"] = report.measured_peak_bytes();
  json["error"] = report.error();
  json["recomputation"] = report.recomputation();
  json["planned"] = to_json(training.planned);
  json["plain"] = training.plain ? to_json(*training.plain) : Json(nullptr);
  json["gradient_difference"] = training.plain ? Json(training.gradients.largest) : Json(nullptr);
  json["buffer_difference"] = training.plain ? Json(training.buffers.largest) : Json(nullptr);
  json["identical"] = training.plain ? Json(training.identical) : Json(nullptr);
  return json;
}

std::string to_text(const TrainReport& report) {
  constexpr size_t kLosses = 8;
  const Comparison& training = report.training;
  const std::optional<TrainedSteps>& plain = training.plain;
  std::vector<std::vector<std::string>> rows = {
      {"network", size_of(report) + ", " + grouped(report.parameters) + " parameters"},
      {"before a step", format_bytes(report.before_bytes) + " on the device"},
      {"store-all", format_bytes(report.store_all_peak_bytes) + " predicted"},
  };
  if (report.budget_bytes) rows.push_back({"budget", describe_peak(report, *report.budget_bytes)});
  rows.push_back({"plan", describe_plan(report)});
  if (report.checkpoints) rows.push_back({"checkpoints", list(*report.checkpoints)});
  rows.push_back({"recomputation", percent(report.recomputation(), "%.1f %%") + " of the step's time " +
                                       change(report.predicted_time_ns, report.store_all_time_ns) + ", predicted"});
  rows.push_back({"predicted peak", describe_peak(report, report.predicted_peak_bytes)});
  rows.push_back({"measured peak", describe_peak(report, report.measured_peak_bytes()) + "; prediction " +
                                       percent(report.error(), "%+.2f %%")});
  if (plain) rows.push_back({"plain peak", describe_peak(report, std::ranges::max(plain->peaks_bytes))});
  if (!plain) rows.push_back({"plain training", report.why_not_plain});
  const int64_t step_ns = median(training.planned.times_ns);
  std::string time = format_ns(step_ns);
  if (plain) time += ", plain " + format_ns(median(plain->times_ns)) + " " + change(step_ns, median(plain->times_ns));
  rows.push_back({"step time", time});
  if (plain) {
    rows.push_back({"gradients", "largest difference " + number(training.gradients.largest) +
                                     (training.identical ? " (bit-identical)" : "")});
    const double buffers = training.buffers.largest;
    if (buffers != 0) rows.push_back({"buffers", "largest difference " + number(buffers)});
    rows.push_back({"plain losses", some_losses(plain->losses, kLosses)});
  }
  rows.push_back({plain ? "planned losses" : "losses", some_losses(training.planned.losses, kLosses)});
  return report.model + ", batch " + std::to_string(report.batch) + " x " + report.sample + ", " + report.device +
         ", torch " + report.torch_version + "\n" + table(rows, 2);
}

ReportMeasurement report_measurement(const TrainReport& report, const Schedule& schedule) {
  const Comparison& training = report.training;
  ReportMeasurement result;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (schedule.steps[i].is_run()) {
      result.moment_bytes.push_back(training.memory.moment_bytes[i]);
      result.after_bytes.push_back(training.memory.after_bytes[i]);
    } else if (!result.after_bytes.empty()) {
      result.after_bytes.back() = training.memory.after_bytes[i];
    }
  }
  result.peak_bytes = report.measured_peak_bytes();
  result.step_ns = median(training.planned.times_ns);
  if (training.plain) {
    result.plain_step_ns = median(training.plain->times_ns);
    result.plain_peak_bytes = std::ranges::max(training.plain->peaks_bytes);
    result.identical_to_plain = training.identical;
  }
  return result;
}

Json train_trace(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                 const std::vector<std::string>& nodes, const MeasuredMemory& measured) {
  GraphSpec named = graph.spec();
  for (size_t i = 0; i < nodes.size(); ++i) named.ops[i].name += " " + nodes[i];
  Json trace = chrome_trace(Graph(std::move(named)), schedule, simulation);
  Json steps = Json::array();
  int64_t now_ns = 0;
  const auto count_memory = [&](int64_t bytes) {
    trace["traceEvents"].push_back(trace_counter("measured memory", now_ns, bytes));
  };
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.is_run()) {
      const Op& op = graph.op(step.op());
      count_memory(measured.moment_bytes[i]);
      now_ns += op.time_ns;
      steps.push_back(Json{{"op", op.name},
                           {"node", nodes[index(step.op())]},
                           {"predicted_moment_bytes", simulation.moment_bytes[i]},
                           {"measured_moment_bytes", measured.moment_bytes[i]}});
    }
    // A backward frees while it runs what the schedule drops after it: only after those drops the two agree.
    if (i + 1 < schedule.steps.size() && !schedule.steps[i + 1].is_run()) continue;
    count_memory(measured.after_bytes[i]);
    if (steps.empty()) continue;
    steps.back()["predicted_after_bytes"] = simulation.after_bytes[i];
    steps.back()["measured_after_bytes"] = measured.after_bytes[i];
  }
  trace["steps"] = std::move(steps);
  return trace;
}

}  // namespace headroom::internal::cli
