#include <algorithm>
#include <iostream>
#include <set>

#include "headroom/cli/commands.h"
#include "headroom/cli/print.h"
#include "headroom/cli/progress.h"
#include "headroom/core/lifetimes.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"

namespace headroom::cli {
namespace {

struct Named {
  int64_t amount;
  std::string name;
};

/// "'a' (1.00 GiB), 'b' (3 B) and 5 more", largest first. Sorts the items.
template <typename Format>
std::string largest(std::vector<Named>& items, Format format) {
  constexpr size_t kShown = 6;
  std::ranges::stable_sort(items, std::greater<>(), &Named::amount);
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + quote(items[i].name) + " (" + format(items[i].amount) + ")";
  if (items.size() > kShown) text += " and " + std::to_string(items.size() - kShown) + " more";
  return items.empty() ? "nothing" : text;
}

std::string count(size_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

/// A schedule of a problem, and what the simulator says of it.
struct Subject {
  const Problem& problem;
  const Schedule& schedule;
  const Simulation& simulation;
};

std::string explain_whole(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  return "This schedule of " + quote(problem.graph.name()) + " has " + count(schedule.steps.size(), "step", "steps") +
         ". Its peak is " + format_bytes(simulation.peak_bytes) + ", " +
         share(simulation.peak_bytes, problem.base_peak_bytes) + " of the " + format_bytes(problem.base_peak_bytes) +
         " of plain training, and it takes " + format_ns(simulation.time_ns) + " " +
         change(simulation.time_ns, problem.base_time_ns) + ".\n";
}

std::string explain_kept(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  const Graph& graph = problem.graph;
  const auto first_backward = std::ranges::find_if(
      schedule.steps, [&](const Step& step) { return step.is_run() && graph.op(step.op()).phase == Phase::kBackward; });
  if (first_backward == schedule.steps.end()) return "";
  std::vector<Named> kept;
  int64_t kept_bytes = 0;
  const std::vector<ValueId>& made = graph.op(first_backward->op()).outputs;
  for (const ValueId id : alive_during(graph, schedule, static_cast<size_t>(first_backward - schedule.steps.begin()))) {
    const Value& value = graph.value(id);
    if (value.resident || std::ranges::find(made, id) != made.end()) continue;
    kept.push_back({value.bytes, value.name});
    kept_bytes += value.bytes;
  }
  return "When backward begins it has kept " + count(kept.size(), "value", "values") + " of forward, " +
         format_bytes(kept_bytes) + " in all: " + largest(kept, format_bytes) + ".\n";
}

/// The step that does what plain training does at its peak, or nothing.
std::optional<size_t> find_plain_peak(const Graph& graph, const Schedule& schedule) {
  const Schedule plain = store_all(graph);
  const std::optional<size_t> peak_step = simulate(graph, plain).peak_step;
  if (!peak_step) return std::nullopt;
  const ValueId made = graph.op(plain.steps[*peak_step].op()).outputs.front();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (!schedule.steps[i].is_run()) continue;
    const std::vector<ValueId>& outputs = graph.op(schedule.steps[i].op()).outputs;
    if (std::ranges::find(outputs, made) != outputs.end()) return i;
  }
  return std::nullopt;
}

/// What runs again, and why: what these runs make that is not in memory where plain training has its peak.
std::string explain_reruns(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  const Graph& graph = problem.graph;
  const std::vector<uint8_t> reruns = find_reruns(graph, schedule);
  std::vector<int64_t> again_ns(graph.ops().size(), -1);
  size_t runs = 0;
  int64_t all_ns = 0;
  std::set<ValueId> made_later;
  const std::optional<size_t> plain_peak = find_plain_peak(graph, schedule);
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (reruns[i] == 0) continue;
    const OpId id = schedule.steps[i].op();
    const Op& op = graph.op(id);
    again_ns[index(id)] = std::max<int64_t>(again_ns[index(id)], 0) + op.time_ns;
    all_ns += op.time_ns;
    ++runs;
    if (plain_peak && i > *plain_peak) made_later.insert(op.outputs.begin(), op.outputs.end());
  }
  if (runs == 0) return "Nothing is computed twice.\n";
  std::vector<Named> again;
  for (size_t i = 0; i < again_ns.size(); ++i)
    if (again_ns[i] >= 0) again.push_back({again_ns[i], graph.ops()[i].name});
  std::string text = count(runs, "run computes", "runs compute") + " again what was there before, for " +
                     format_ns(all_ns) + ", " + share(all_ns, simulation.time_ns) +
                     " of the time: " + largest(again, format_ns) + ".\n";
  if (!plain_peak) return text;
  for (const ValueId id : alive_during(graph, schedule, *plain_peak)) made_later.erase(id);
  int64_t saved_bytes = 0;
  for (const ValueId id : made_later) saved_bytes += graph.value(id).bytes;
  if (saved_bytes > 0)
    text += "That leaves out " + format_bytes(saved_bytes) + " where plain training has its peak, at " +
            describe(graph, schedule.steps[*plain_peak]) + ": " +
            count(made_later.size(), "value that is made", "values that are made") + " only later.\n";
  return text;
}

std::string explain_peak(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  std::vector<Named> alive;
  for (const ValueId id : alive_during(problem.graph, schedule, *simulation.peak_step))
    alive.push_back({problem.graph.value(id).bytes, problem.graph.value(id).name});
  return "The peak is at step " + std::to_string(*simulation.peak_step) + ", " +
         describe(problem.graph, schedule.steps[*simulation.peak_step]) + ", with " +
         count(alive.size(), "value", "values") + " in memory: " + largest(alive, format_bytes) + ".\n";
}

/// A step in memory that is worth a sentence: a GiB, less where plain training takes less than eight.
int64_t budget_step_bytes(int64_t base_peak_bytes) {
  int64_t step_bytes = int64_t{1} << 30U;
  while (step_bytes > 1 && step_bytes > base_peak_bytes / 8) step_bytes /= 2;
  return step_bytes;
}

/// What `auto` finds with as much memory, with more and with less.
std::string explain_alternatives(const Subject& subject, const PlanLimits& limits) {
  const Problem& problem = subject.problem;
  const Simulation& simulation = subject.simulation;
  const Planner& planner = default_planner();
  const int64_t step_bytes = budget_step_bytes(problem.base_peak_bytes);
  const int64_t now_ns = simulation.time_ns;
  const auto plan_within = [&](int64_t budget_bytes) { return make_plan(planner, problem, {budget_bytes, limits}); };
  const auto described = [&](const Plan& plan) {
    return format_ns(*plan.time_ns) + " " + change(*plan.time_ns, problem.base_time_ns);
  };
  const Progress progress("planning");
  std::string text;
  const Plan same = plan_within(simulation.peak_bytes);
  if (same.time_ns && *same.time_ns < now_ns)
    text += "In the same memory `auto` finds a plan of " + described(same) + ".\n";
  const int64_t best_ns = same.time_ns ? std::min(*same.time_ns, now_ns) : now_ns;
  if (simulation.peak_bytes < problem.base_peak_bytes) {
    const int64_t budget_bytes = std::min(simulation.peak_bytes + step_bytes, problem.base_peak_bytes);
    const Plan more = plan_within(budget_bytes);
    text +=
        "With " + format_bytes(budget_bytes - simulation.peak_bytes) + " more, " + format_bytes(budget_bytes) + ", ";
    if (more.time_ns && *more.time_ns < best_ns)
      text += "it would be " + described(more) + ": " + format_ns(best_ns - *more.time_ns) + " less a step.\n";
    else
      text += "`auto` finds nothing faster.\n";
  }
  const int64_t less_bytes = simulation.peak_bytes - step_bytes;
  if (less_bytes <= problem.graph.resident_bytes()) return text;
  const Plan less = plan_within(less_bytes);
  text += "With " + format_bytes(step_bytes) + " less, " + format_bytes(less_bytes) + ", ";
  if (less.time_ns) return text + "it would be " + described(less) + ".\n";
  text += less.result.status == PlanStatus::kInfeasible ? "there is no plan in base order" : "`auto` finds no plan";
  if (less.result.smallest_budget_bytes > 0)
    text += "; the smallest budget that it can meet is " + format_bytes(less.result.smallest_budget_bytes);
  return text + ".\n";
}

}  // namespace

ExitStatus run_explain(const Arguments& arguments) {
  const Problem problem = load_problem(arguments);
  const Schedule schedule = read_schedule(read_file(arguments.schedule_file), arguments.schedule_file, problem.graph);
  const Simulation simulation = simulate(problem.graph, schedule);
  if (simulation.error) {
    std::cout << "The schedule is invalid at step " << simulation.error->step << ": " << simulation.error->message
              << ".\n";
    return kNoPlan;
  }
  const Subject subject{problem, schedule, simulation};
  std::string text = explain_whole(subject);
  if (simulation.peak_step)
    text += explain_kept(subject) + explain_reruns(subject) + explain_peak(subject) +
            explain_alternatives(subject, limits_of(arguments));
  std::cout << text;
  return kDone;
}

}  // namespace headroom::cli
