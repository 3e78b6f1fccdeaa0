#include <algorithm>
#include <iostream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "headroom/cli/commands.h"
#include "headroom/cli/print.h"
#include "headroom/cli/progress.h"
#include "headroom/core/lifetimes.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/io/size.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal::cli {
namespace {

/// A value with its bytes or an op with its time.
struct Item {
  int64_t amount;
  std::string name;
};

/// Returns the largest items, such as "'a' (1.00 GiB), 'b' (3 B) and 5 more". Sorts the items.
template <typename Format>
std::string largest(std::vector<Item>& items, Format format) {
  constexpr size_t kShown = 6;
  std::ranges::stable_sort(items, std::greater<>(), &Item::amount);
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + quote(items[i].name) + " (" + format(items[i].amount) + ")";
  if (items.size() > kShown) text += " and " + std::to_string(items.size() - kShown) + " more";
  return items.empty() ? "nothing" : text;
}

std::string count(size_t number, const char* singular, const char* plural) {
  return std::to_string(number) + " " + (number == 1 ? singular : plural);
}

/// A schedule of a problem and its simulation.
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
         " of store-all, and it takes " + format_ns(simulation.time_ns) + " " +
         change(simulation.time_ns, problem.base_time_ns) + ".\n";
}

std::string explain_kept(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  const Graph& graph = problem.graph;
  const auto first_backward = std::ranges::find_if(
      schedule.steps, [&](const Step& step) { return step.is_run() && graph.op(step.op()).phase == Phase::kBackward; });
  if (first_backward == schedule.steps.end()) return "";
  std::vector<Item> kept;
  int64_t kept_bytes = 0;
  const std::vector<ValueId>& outputs = graph.op(first_backward->op()).outputs;
  for (const ValueId id : alive_during(graph, schedule, static_cast<size_t>(first_backward - schedule.steps.begin()))) {
    const Value& value = graph.value(id);
    if (value.resident || std::ranges::find(outputs, id) != outputs.end()) continue;
    kept.push_back({value.bytes, value.name});
    kept_bytes += value.bytes;
  }
  return "Backward begins with " + count(kept.size(), "value", "values") + " saved from forward, " +
         format_bytes(kept_bytes) + " in all: " + largest(kept, format_bytes) + ".\n";
}

/// Returns the first step that computes what store-all computes at its peak, if there is one.
std::optional<size_t> find_store_all_peak(const Graph& graph, const Schedule& schedule) {
  const Schedule baseline = store_all(graph);
  const std::optional<size_t> peak_step = simulate(graph, baseline).peak_step;
  if (!peak_step) return std::nullopt;
  const ValueId peak_output = graph.op(baseline.steps[*peak_step].op()).outputs.front();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (!schedule.steps[i].is_run()) continue;
    const std::vector<ValueId>& outputs = graph.op(schedule.steps[i].op()).outputs;
    if (std::ranges::find(outputs, peak_output) != outputs.end()) return i;
  }
  return std::nullopt;
}

/// Describes the reruns, and the memory that they save at the peak of store-all: values that are not live there because
/// they are recomputed later.
std::string explain_reruns(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  const Graph& graph = problem.graph;
  const std::vector<uint8_t> reruns = find_reruns(graph, schedule);
  std::vector<int64_t> rerun_ns(graph.ops().size(), -1);
  size_t runs = 0;
  int64_t total_ns = 0;
  std::set<ValueId> recomputed_later;
  const std::optional<size_t> peak = find_store_all_peak(graph, schedule);
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (reruns[i] == 0) continue;
    const OpId id = schedule.steps[i].op();
    const Op& op = graph.op(id);
    rerun_ns[index(id)] = std::max<int64_t>(rerun_ns[index(id)], 0) + op.time_ns;
    total_ns += op.time_ns;
    ++runs;
    if (peak && i > *peak) recomputed_later.insert(op.outputs.begin(), op.outputs.end());
  }
  if (runs == 0) return "Nothing is recomputed.\n";
  std::vector<Item> rerun_ops;
  for (size_t i = 0; i < rerun_ns.size(); ++i)
    if (rerun_ns[i] >= 0) rerun_ops.push_back({rerun_ns[i], graph.ops()[i].name});
  std::string text = count(runs, "run recomputes a value that was", "runs recompute values that were") +
                     " computed before, in " + format_ns(total_ns) + ", " + share(total_ns, simulation.time_ns) +
                     " of the time: " + largest(rerun_ops, format_ns) + ".\n";
  if (!peak) return text;
  for (const ValueId id : alive_during(graph, schedule, *peak)) recomputed_later.erase(id);
  int64_t saved_bytes = 0;
  for (const ValueId id : recomputed_later) saved_bytes += graph.value(id).bytes;
  if (saved_bytes > 0)
    text += "That saves " + format_bytes(saved_bytes) + " at the peak of store-all, " +
            describe(graph, schedule.steps[*peak]) + ": " +
            count(recomputed_later.size(), "value that is", "values that are") + " recomputed later.\n";
  return text;
}

std::string explain_peak(const Subject& subject) {
  const auto& [problem, schedule, simulation] = subject;
  std::vector<Item> live;
  for (const ValueId id : alive_during(problem.graph, schedule, *simulation.peak_step))
    live.push_back({problem.graph.value(id).bytes, problem.graph.value(id).name});
  return "The peak is at step " + std::to_string(*simulation.peak_step) + ", " +
         describe(problem.graph, schedule.steps[*simulation.peak_step]) + ", with " +
         count(live.size(), "live value", "live values") + ": " + largest(live, format_bytes) + ".\n";
}

/// Returns the fewest ops without which the first runs of a schedule are in base order: all but those of a longest
/// ascending subsequence. Of alternatives, only the one that runs first counts, at the place of the first one listed.
std::vector<OpId> moved_ops(const Graph& graph, const Schedule& schedule) {
  const NeededGroups groups = find_needed_groups(graph);
  std::vector<OpId> ran;
  std::vector<OpId> first_runs;
  std::vector<uint8_t> has_run(groups.ops.size(), 0);
  for (const Step& step : schedule.steps) {
    if (!step.is_run()) continue;
    const auto group = static_cast<size_t>(groups.group_of_op[index(step.op())]);
    if (std::exchange(has_run[group], 1) != 0) continue;
    ran.push_back(step.op());
    first_runs.push_back(groups.ops[group].front());
  }
  std::vector<size_t> ends;  // By length: where the ascending subsequence with the smallest last op ends.
  std::vector<size_t> before(first_runs.size(), first_runs.size());
  for (size_t i = 0; i < first_runs.size(); ++i) {
    const auto end = std::ranges::lower_bound(ends, first_runs[i], {}, [&](size_t k) { return first_runs[k]; });
    if (end != ends.begin()) before[i] = *std::prev(end);
    if (end == ends.end())
      ends.push_back(i);
    else
      *end = i;
  }
  std::vector<uint8_t> is_kept(first_runs.size(), 0);
  for (size_t i = ends.empty() ? first_runs.size() : ends.back(); i < first_runs.size(); i = before[i]) is_kept[i] = 1;
  std::vector<OpId> moved;
  for (size_t i = 0; i < first_runs.size(); ++i)
    if (is_kept[i] == 0) moved.push_back(ran[i]);
  return moved;
}

/// Describes which first runs the schedule moves, and what `auto` reaches within the same peak without that.
std::string explain_order(const Subject& subject, PlanLimits limits) {
  const auto& [problem, schedule, simulation] = subject;
  const std::vector<OpId> moved = moved_ops(problem.graph, schedule);
  if (moved.empty()) return "";
  constexpr size_t kShown = 6;
  std::string text = count(moved.size(), "op first runs", "ops first run") + " at another place than listed: ";
  for (size_t i = 0; i < std::min(moved.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + quote(problem.graph.op(moved[i]).name);
  if (moved.size() > kShown) text += " and " + std::to_string(moved.size() - kShown) + " more";
  limits.keep_order = true;
  const Plan kept = make_plan(default_planner(), problem, {simulation.peak_bytes, limits});
  text += ". With the order kept, `auto` ";
  if (!kept.time_ns)
    return text + "has no plan within the same peak; its smallest budget is " +
           format_bytes(kept.result.smallest_budget_bytes) + ".\n";
  return text + "takes " + format_ns(*kept.time_ns) + " " + change(*kept.time_ns, problem.base_time_ns) +
         " within the same peak.\n";
}

/// Returns the change of budget to describe: a GiB, or less if the peak of store-all is less than eight.
int64_t budget_step_bytes(int64_t base_peak_bytes) {
  int64_t step_bytes = int64_t{1} << 30U;
  while (step_bytes > 1 && step_bytes > base_peak_bytes / 8) step_bytes /= 2;
  return step_bytes;
}

/// Describes the plans of `auto` with the same peak, with more memory and with less.
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
    text += "With the same peak, `auto` finds a plan of " + described(same) + ".\n";
  const int64_t best_ns = same.time_ns ? std::min(*same.time_ns, now_ns) : now_ns;
  if (simulation.peak_bytes < problem.base_peak_bytes) {
    const int64_t budget_bytes = std::min(simulation.peak_bytes + step_bytes, problem.base_peak_bytes);
    const Plan more = plan_within(budget_bytes);
    text +=
        "With " + format_bytes(budget_bytes - simulation.peak_bytes) + " more, " + format_bytes(budget_bytes) + ", ";
    if (more.time_ns && *more.time_ns < best_ns)
      text += "it would be " + described(more) + ": " + format_ns(best_ns - *more.time_ns) + " less per step.\n";
    else
      text += "`auto` finds nothing faster.\n";
  }
  const int64_t less_bytes = simulation.peak_bytes - step_bytes;
  if (less_bytes <= problem.graph.resident_bytes()) return text;
  const Plan less = plan_within(less_bytes);
  text += "With " + format_bytes(step_bytes) + " less, " + format_bytes(less_bytes) + ", ";
  if (less.time_ns) return text + "it would be " + described(less) + ".\n";
  text += less.result.status == PlanStatus::kInfeasible ? "there is no plan" : "`auto` finds no plan";
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
    text += explain_kept(subject) + explain_reruns(subject) + explain_order(subject, limits_of(arguments)) +
            explain_peak(subject) + explain_alternatives(subject, limits_of(arguments));
  std::cout << text;
  return kDone;
}

}  // namespace headroom::internal::cli
