#include "headroom/cli/print.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "headroom/core/quote.h"

namespace headroom::internal::cli {
namespace {

/// Returns the columns that UTF-8 text takes on a terminal: its characters, not its bytes.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

Json or_null(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(nullptr); }

}  // namespace

Json to_json(const Plan& plan) {
  Json json;
  json["status"] = name_of(plan.result.status);
  json["planner"] = plan.planner->name;
  json["budget_bytes"] = or_null(plan.budget_bytes);
  json["peak_bytes"] = or_null(plan.peak_bytes);
  json["time_ns"] = or_null(plan.time_ns);
  json["base_time_ns"] = plan.base_time_ns;
  json["lower_bound_ns"] = plan.result.lower_bound_ns;
  json["smallest_budget_bytes"] = plan.result.smallest_budget_bytes;
  json["solve_ms"] = plan.solve_ms;
  if (plan.planner->chooses_checkpoints && plan.on_chain && plan.result.schedule)
    json["checkpoints"] = plan.result.checkpoints;
  return json;
}

std::string change(int64_t amount, int64_t base) {
  if (base == 0) return "";
  std::array<char, 48> text{};
  const double percent = 100.0 * (static_cast<double>(amount) / static_cast<double>(base) - 1.0);
  std::snprintf(text.data(), text.size(), "(%+.1f %%)", percent);
  return text.data();
}

std::string share(int64_t part, int64_t whole) {
  if (whole == 0) return "";
  const long long percent = std::llround(100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return std::to_string(percent) + " %";
}

std::string table(const std::vector<std::vector<std::string>>& rows, size_t left_columns) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (c < left_columns ? row[c] + padding : padding + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string describe(const Graph& graph, const Step& step) {
  if (!step.is_run()) return "drop " + quote(graph.value(step.value()).name);
  std::string text = "run " + quote(graph.op(step.op()).name);
  if (step.is_over()) text += " over " + quote(graph.value(step.value()).name);
  return text;
}

double trace_us(int64_t ns) {
  const double us = static_cast<double>(ns) / 1000.0;
  return us * 1000.0 < static_cast<double>(ns) ? std::nextafter(us, std::numeric_limits<double>::infinity()) : us;
}

Json trace_counter(const std::string& name, int64_t ns, int64_t bytes) {
  return Json{{"ph", "C"}, {"pid", 1}, {"tid", 1}, {"name", name}, {"ts", trace_us(ns)}, {"args", {{"bytes", bytes}}}};
}

Json chrome_trace(const Graph& graph, const Schedule& schedule, const Simulation& simulation) {
  Json events = Json::array();
  events.push_back(
      Json{{"ph", "M"}, {"pid", 1}, {"tid", 1}, {"name", "process_name"}, {"args", {{"name", graph.name()}}}});
  events.push_back(Json{{"ph", "M"}, {"pid", 1}, {"tid", 1}, {"name", "thread_name"}, {"args", {{"name", "ops"}}}});
  int64_t now_ns = 0;
  const auto count_memory = [&](int64_t bytes) { events.push_back(trace_counter("predicted memory", now_ns, bytes)); };
  count_memory(graph.resident_bytes());
  for (size_t i = 0; i < simulation.after_bytes.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.is_run()) {
      const Op& op = graph.op(step.op());
      count_memory(simulation.moment_bytes[i]);
      events.push_back(Json{{"ph", "X"},
                            {"pid", 1},
                            {"tid", 1},
                            {"name", op.name},
                            {"cat", op.phase == Phase::kForward ? "forward" : "backward"},
                            {"ts", trace_us(now_ns)},
                            {"dur", trace_us(op.time_ns)},
                            {"args", {{"step", i}, {"moment_bytes", simulation.moment_bytes[i]}}}});
      now_ns += op.time_ns;
    }
    count_memory(simulation.after_bytes[i]);
  }
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
}

}  // namespace headroom::internal::cli
