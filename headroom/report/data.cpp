#include "headroom/report/data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headroom/core/lifetimes.h"
#include "headroom/core/simulate.h"
#include "headroom/io/names.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

void check_length(const char* list, size_t length, size_t expected, const char* item) {
  if (length == expected) return;
  throw InvalidInput(std::string("report: ") + list + " must have " + std::to_string(expected) +
                     " entries, one for each " + item + ", found " + std::to_string(length));
}

Json names(const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    if (!is_utf8(text)) throw InvalidInput("report: a module or source that is not UTF-8");
  return texts;
}

Json ops_of(const ReportInput& input) {
  const std::span<const Op> ops = input.graph.ops();
  Json name = Json::array();
  Json backward = Json::array();
  Json time_ns = Json::array();
  Json workspace_bytes = Json::array();
  for (const Op& op : ops) {
    if (!is_utf8(op.name)) throw InvalidInput("report: the name of an op is not UTF-8");
    name.push_back(op.name);
    backward.push_back(op.phase == Phase::kBackward ? 1 : 0);
    time_ns.push_back(op.time_ns);
    workspace_bytes.push_back(op.workspace_bytes);
  }
  if (!input.modules.empty()) check_length("modules", input.modules.size(), ops.size(), "op");
  if (!input.sources.empty()) check_length("sources", input.sources.size(), ops.size(), "op");
  return Json{{"name", std::move(name)},        {"backward", std::move(backward)},
              {"time_ns", std::move(time_ns)},  {"workspace_bytes", std::move(workspace_bytes)},
              {"module", names(input.modules)}, {"source", names(input.sources)}};
}

Json values_of(const Graph& graph) {
  Json name = Json::array();
  Json bytes = Json::array();
  Json resident = Json::array();
  for (const Value& value : graph.values()) {
    if (!is_utf8(value.name)) throw InvalidInput("report: the name of a value is not UTF-8");
    name.push_back(value.name);
    bytes.push_back(value.bytes);
    resident.push_back(value.resident ? 1 : 0);
  }
  return Json{{"name", std::move(name)}, {"bytes", std::move(bytes)}, {"resident", std::move(resident)}};
}

/// Returns for each step the moment of store-all at the run that computes the same values. Reruns and drops repeat the
/// moment of the step before.
std::vector<int64_t> store_all_moments(const Graph& graph, const Schedule& schedule,
                                       const std::vector<uint8_t>& reruns) {
  const Schedule baseline = store_all(graph);
  const Simulation simulation = simulate(graph, baseline);
  constexpr int64_t kNone = -1;
  std::vector<int64_t> moment_of_value(graph.values().size(), kNone);
  for (size_t i = 0; i < baseline.steps.size(); ++i) {
    if (!baseline.steps[i].is_run()) continue;
    for (const ValueId id : graph.op(baseline.steps[i].op()).outputs)
      if (moment_of_value[index(id)] == kNone) moment_of_value[index(id)] = simulation.moment_bytes[i];
  }
  std::vector<int64_t> moments;
  int64_t now = graph.resident_bytes();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.is_run() && reruns[i] == 0) {
      int64_t largest = kNone;
      for (const ValueId id : graph.op(step.op()).outputs) largest = std::max(largest, moment_of_value[index(id)]);
      if (largest != kNone) now = largest;
    }
    moments.push_back(now);
  }
  return moments;
}

Json runs_of(const ReportInput& input, const Simulation& simulation) {
  const std::vector<Step>& steps = input.schedule.steps;
  const std::vector<uint8_t> reruns = find_reruns(input.graph, input.schedule);
  const std::vector<int64_t> baseline = store_all_moments(input.graph, input.schedule, reruns);
  Json op = Json::array();
  Json step = Json::array();
  Json over = Json::array();
  Json again = Json::array();
  Json moment_bytes = Json::array();
  Json after_bytes = Json::array();
  Json store_all_bytes = Json::array();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].is_run()) {
      if (!after_bytes.empty()) after_bytes.back() = simulation.after_bytes[i];
      continue;
    }
    op.push_back(index(steps[i].op()));
    step.push_back(i);
    over.push_back(steps[i].is_over() ? static_cast<int64_t>(steps[i].value()) : -1);
    again.push_back(reruns[i]);
    moment_bytes.push_back(simulation.moment_bytes[i]);
    after_bytes.push_back(simulation.after_bytes[i]);
    store_all_bytes.push_back(baseline[i]);
  }
  return Json{{"op", std::move(op)},
              {"step", std::move(step)},
              {"over", std::move(over)},
              {"again", std::move(again)},
              {"moment_bytes", std::move(moment_bytes)},
              {"after_bytes", std::move(after_bytes)},
              {"store_all_bytes", std::move(store_all_bytes)}};
}

Json lives_of(const ReportInput& input) {
  std::vector<int64_t> run_at_or_before;  // The last run at or before each step.
  int64_t runs = 0;
  for (const Step& step : input.schedule.steps) {
    if (step.is_run()) ++runs;
    run_at_or_before.push_back(runs - 1);
  }
  Json value = Json::array();
  Json from = Json::array();
  Json to = Json::array();
  for (const Lifetime& life : lifetimes(input.graph, input.schedule)) {
    value.push_back(index(life.value));
    from.push_back(std::max<int64_t>(run_at_or_before[life.first_step], 0));
    to.push_back(run_at_or_before[life.last_step]);
  }
  return Json{{"value", std::move(value)}, {"from", std::move(from)}, {"to", std::move(to)}};
}

Json fronts_of(const ReportFronts& fronts) {
  const auto points_of = [](const std::vector<CurvePoint>& points) {
    Json json = Json::array();
    for (const CurvePoint& point : points) json.push_back(Json::array({point.peak_bytes, point.time_ns}));
    return json;
  };
  Json planners = Json::array();
  for (const ReportFronts::Front& front : fronts.fronts)
    planners.push_back(Json{{"planner", front.planner}, {"points", points_of(front.points)}});
  Json left_out = Json::array();
  for (const ReportFronts::LeftOut& entry : fronts.left_out)
    left_out.push_back(Json{{"planner", entry.planner}, {"why", entry.reason}});
  return Json{
      {"planners", std::move(planners)}, {"bounds", points_of(fronts.bounds)}, {"left_out", std::move(left_out)}};
}

Json measured_of(const ReportMeasurement& measured, size_t run_count) {
  check_length("measured moments", measured.moment_bytes.size(), run_count, "run");
  check_length("measured bytes after runs", measured.after_bytes.size(), run_count, "run");
  std::optional<int64_t> peak_bytes = measured.peak_bytes;
  if (!peak_bytes && run_count > 0) peak_bytes = std::ranges::max(measured.moment_bytes);
  return Json{{"moment_bytes", measured.moment_bytes},
              {"after_bytes", measured.after_bytes},
              {"peak_bytes", or_null(peak_bytes)},
              {"step_ns", or_null(measured.step_ns)},
              {"plain_step_ns", or_null(measured.plain_step_ns)},
              {"plain_peak_bytes", or_null(measured.plain_peak_bytes)},
              {"identical_to_plain", or_null(measured.identical_to_plain)}};
}

/// Ops up to which a planner of each cost class takes seconds at most. Measured on chains.
constexpr size_t kMaxOpsOfSteepPlanners = 400;
constexpr size_t kMaxOpsOfSearch = 4000;
constexpr size_t kMaxOpsOfBounds = 20000;
constexpr int kPoints = 12;  ///< Plans on the front of a planner.
constexpr int kBounds = 25;  ///< Points of the curve of lower bounds.

bool takes_too_long(const Planner& planner, size_t ops) {
  switch (planner.cost) {
    case CostClass::kLow:
      return false;
    case CostClass::kSearch:
      return ops > kMaxOpsOfSearch;
    case CostClass::kSteep:
      return ops > kMaxOpsOfSteepPlanners;
  }
  throw InternalError("a cost class without a limit");
}

}  // namespace

ReportFronts make_report_fronts(const Problem& problem, const PlanLimits& limits) {
  ReportFronts result;
  const size_t ops = problem.graph.ops().size();
  for (const Planner& planner : planners()) {
    const std::string name(planner.name);
    if (takes_too_long(planner, ops)) {
      result.left_out.push_back({name, "takes too long on " + std::to_string(ops) + " ops"});
      continue;
    }
    try {
      std::vector<CurvePoint> points = plan_curve(planner, problem, kPoints, {std::nullopt, limits});
      if (!points.empty()) result.fronts.push_back({name, std::move(points)});
    } catch (const NotApplicable& refusal) {
      const std::string reason = refusal.what();
      result.left_out.push_back({name, reason.starts_with(name + ": ") ? reason.substr(name.size() + 2) : reason});
    }
  }
  if (ops > kMaxOpsOfBounds) return result;
  int64_t min_bytes = problem.base_peak_bytes;
  for (const ReportFronts::Front& front : result.fronts)
    min_bytes = std::min(min_bytes, front.points.front().peak_bytes);
  for (int i = 0; i < kBounds; ++i) {
    const int64_t peak_bytes =
        min_bytes + static_cast<int64_t>(static_cast<double>(problem.base_peak_bytes - min_bytes) * i / (kBounds - 1));
    const MemoryBound bound = memory_bound(problem.graph, peak_bytes);
    if (bound.is_feasible) result.bounds.push_back({peak_bytes, bound.time_ns});
  }
  // A bound for more memory also holds for less.
  for (size_t i = result.bounds.size(); i-- > 1;)
    result.bounds[i - 1].time_ns = std::max(result.bounds[i - 1].time_ns, result.bounds[i].time_ns);
  return result;
}

std::vector<std::string> chain_modules(const Chain& chain) {
  std::vector<std::string> modules(static_cast<size_t>(3 * chain.length()));
  const ChainIds ids(chain.length());
  for (int i = 1; i <= chain.length(); ++i)
    for (const OpId op : {ids.forward(i), ids.record(i), ids.backward(i)}) modules[index(op)] = chain.stage(i).name;
  return modules;
}

std::string write_report_data(const ReportInput& input) {
  const Simulation simulation = simulate(input.graph, input.schedule);
  if (simulation.error)
    throw InvalidInput("the schedule is invalid at step " + std::to_string(simulation.error->step) + ": " +
                       simulation.error->message);
  const Simulation baseline = simulate(input.graph, store_all(input.graph));
  const int64_t max_bytes = std::max(input.budget_bytes.value_or(0), simulation.peak_bytes);
  int64_t lower_bound_ns = memory_bound(input.graph, max_bytes).time_ns;
  for (const CurvePoint& bound : input.fronts.bounds)
    if (bound.peak_bytes >= max_bytes) lower_bound_ns = std::max(lower_bound_ns, bound.time_ns);
  Json json;
  json["format"] = "headroom.report/1";
  json["name"] = input.graph.name();
  json["steps"] = input.schedule.steps.size();
  json["budget_bytes"] = or_null(input.budget_bytes);
  json["peak_bytes"] = simulation.peak_bytes;
  json["time_ns"] = simulation.time_ns;
  json["store_all_peak_bytes"] = baseline.peak_bytes;
  json["store_all_time_ns"] = baseline.time_ns;
  json["resident_bytes"] = input.graph.resident_bytes();
  json["lower_bound_ns"] = lower_bound_ns;
  json["planner"] = or_null(input.planner);
  json["status"] = simulation.time_ns == lower_bound_ns ? Json("optimal") : or_null(input.status);
  json["ops"] = ops_of(input);
  json["values"] = values_of(input.graph);
  json["runs"] = runs_of(input, simulation);
  json["lives"] = lives_of(input);
  json["measured"] = input.measured ? measured_of(*input.measured, json["runs"]["op"].size()) : Json(nullptr);
  json["fronts"] = fronts_of(input.fronts);
  return json.dump();
}

}  // namespace headroom::internal
