#include "benchmarks/auto_ablation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "headroom/plan/auto/auto.h"
#include "headroom/plan/auto/parameters.h"

namespace {

using namespace headroom;
using namespace headroom::internal;

constexpr double kShares[] = {0.9, 0.8, 0.65, 0.5, 0.35, 0.25};

/// A part of `auto`, and how to turn it off.
struct Part {
  std::string name;
  std::function<void(SearchParameters&)> turn_off;
  bool in_place = true;  ///< Whether ops may run in place.
};

const std::vector<Part>& parts() {
  using P = SearchParameters;
  static const std::vector<Part> all = {
      {"start: faster producers", [](P& p) { p.start.faster_producers = false; }},
      {"start: chain's tables", [](P& p) { p.start.chain_tables = false; }},
      {"start: lower sets (small graphs)", [](P& p) { p.start.lower_sets = false; }},
      {"start: smallest peaks of other planners", [](P& p) { p.start.smallest_peaks = false; }},
      {"start: cut of the bound", [](P& p) { p.start.cut = false; }},
      {"start: store-all", [](P& p) { p.start.store_all = false; }},
      {"start: level above", [](P& p) { p.start.level_above = false; }},
      {"start: second descent, longer moves", [](P& p) { p.start.many_insertions = 0; }},
      {"start: random choices", [](P& p) { p.start.max_random_starts = 0; }},
      {"levels: bisection to the smallest peak", [](P& p) { p.level.bisection_steps = 0; }},
      {"levels: targets between levels", [](P& p) { p.level.targets_between = 0; }},
      {"descent: several moves at a time",
       [](P& p) { p.descent.runs_per_move = p.descent.careful_runs_per_move = std::numeric_limits<int32_t>::max(); }},
      {"descent: fewer moves at a time in polish",
       [](P& p) { p.descent.careful_runs_per_move = p.descent.runs_per_move; }},
      {"descent: keep inputs longer at a cost", [](P& p) { p.descent.extends_inputs = false; }},
      {"descent: move reruns earlier", [](P& p) { p.descent.moves_reruns = false; }},
      {"any order", [](P& p) { p.order.any_order = false; }},
      {"any order: moves of several runs", [](P& p) { p.order.max_block = 1; }},
      {"any order: orders of a list scheduler", [](P& p) { p.order.list_orders = false; }},
      {"any order: start from store-all", [](P& p) { p.order.level_work_percent = 0; }},
      {"any order: large steps to smaller peaks", [](P& p) { p.order.large_step_work_percent = 0; }},
      {"any order: small steps to smaller peaks", [](P& p) { p.order.small_step_work_percent = 0; }},
      {"any order: polish", [](P& p) { p.order.rounds = 0; }},
      {"pruning: unneeded reruns", [](P& p) { p.pruning.max_work_per_op = 0; }},
      {"pruning: early first runs", [](P& p) { p.pruning.drops_early_runs = false; }},
      {"perturbation", [](P& p) { p.perturbation.max_ruined = 0; }},
      {"perturbation: related reruns", [](P& p) { p.perturbation.removes_related = false; }},
      {"perturbation: several lengths of moves", [](P& p) { p.perturbation.max_insertions.fill(6); }},
      {"perturbation: noise", [](P& p) { p.perturbation.noise_percent = 0; }},
      {"perturbation: early rematerialization", [](P& p) { p.perturbation.early_one_in = 0; }},
      {"perturbation: rematerialization anywhere", [](P& p) { p.perturbation.anywhere = false; }},
      {"perturbation: any runs in tiny graphs", [](P& p) { p.perturbation.max_inserted = 0; }},
      {"polish: all rounds", [](P& p) { p.polish.rounds = p.polish.medium_rounds = p.polish.rounds_above_medium = 0; }},
      {"polish: plans of neighbours", [](P& p) { p.polish.neighbours = false; }},
      {"polish: second plan", [](P& p) { p.polish.second_plan = false; }},
      {"polish: lowest level", [](P& p) { p.polish.lowest_level = false; }},
      {"refinement of tiny graphs", [](P& p) { p.refinement.max_passes = 0; }},
      {"refinement: smaller peaks", [](P& p) { p.refinement.lowers_peak = false; }},
      {"between two plans", [](P& p) { p.between.max_bisection_steps = 0; }},
      {"exact search", [](P& p) { p.exact = {.max_first_states = 0, .after_search = false}; }},
      {"exact search before the others", [](P& p) { p.exact.max_first_states = 0; }},
      {"exact search after the others", [](P& p) { p.exact.after_search = false; }},
      {"folding of equal blocks", [](P& p) { p.folding.min_equal_blocks = 0; }},
      {"folding: mixtures of plans", [](P& p) { p.folding.mixture_percent = 100; }},
      {"bound: moments of most memory", [](P& p) { p.bound.largest_moments = 0; }},
      {"bound: three moments for short graphs", [](P& p) { p.bound.max_cuts = 1; }},
      {"ops in place", [](P&) {}, false},
  };
  return all;
}

/// The results for one problem: the time of each plan, -1 where there is none.
struct Outcome {
  double planning_s = 0;
  std::vector<int64_t> times_ns;
  int64_t smallest_bytes = 0;
};

Problem without_in_place(const Problem& problem) {
  GraphSpec spec = problem.graph.spec();
  for (Op& op : spec.ops) op.overwrites.clear();
  return Problem(Graph(spec), problem.chain);
}

/// Plans at the shares of `base_peak_bytes` and at `smallest_bytes`, or at the front's own smallest budget.
Outcome plan_all(const Problem& problem, int64_t base_peak_bytes, std::optional<int64_t> smallest_bytes,
                 const PlanLimits& limits, const SearchParameters& parameters) {
  Outcome outcome;
  const std::clock_t begin = std::clock();
  const FlatGraph flat(problem.graph);
  const AutoFront front = make_auto_front(problem, flat, limits, parameters);
  outcome.smallest_bytes = front.smallest_bytes();
  std::vector<int64_t> budgets;
  for (const double share : kShares)
    budgets.push_back(static_cast<int64_t>(share * static_cast<double>(base_peak_bytes)));
  budgets.push_back(smallest_bytes.value_or(outcome.smallest_bytes));
  for (const int64_t budget_bytes : budgets) {
    const std::optional<JudgedRuns> plan = pick_within(flat, front, budget_bytes, parameters);
    outcome.times_ns.push_back(plan ? plan->time_ns : -1);
  }
  outcome.planning_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return outcome;
}

/// Differences from `auto` in full, over all problems and budgets.
struct Difference {
  double full_s = 0;
  double planning_s = 0;
  double sum_of_logs = 0;  ///< Logarithms of the ratios of planning time, summed over the problems.
  int cases = 0;
  int worse = 0;
  int better = 0;
  int lost = 0;
  double change = 0;  ///< Sum of the changes of the plans' time, as shares of store-all's.
  double worst = 0;
  int smallest_worse = 0;
  int smallest_better = 0;

  void add(const Outcome& full, const Outcome& without, int64_t base_time_ns) {
    full_s += full.planning_s;
    planning_s += without.planning_s;
    sum_of_logs += std::log(std::max(without.planning_s, 1e-6) / std::max(full.planning_s, 1e-6));
    for (size_t i = 0; i < full.times_ns.size(); ++i) {
      if (full.times_ns[i] < 0) {
        better += without.times_ns[i] >= 0 ? 1 : 0;
        continue;
      }
      ++cases;
      if (without.times_ns[i] < 0) {
        ++lost;
        continue;
      }
      const double more = static_cast<double>(without.times_ns[i] - full.times_ns[i]) /
                          static_cast<double>(std::max<int64_t>(base_time_ns, 1));
      change += more;
      worst = std::max(worst, more);
      worse += more > 0 ? 1 : 0;
      better += more < 0 ? 1 : 0;
    }
    smallest_worse += without.smallest_bytes > full.smallest_bytes ? 1 : 0;
    smallest_better += without.smallest_bytes < full.smallest_bytes ? 1 : 0;
  }

  void print(const std::string& name, size_t problems) const {
    std::printf("| %s | %.2f | %.2f | %+.3f %% | %d | %d | %d | +%.2f %% | %d | %d |\n", name.c_str(),
                planning_s / full_s, std::exp(sum_of_logs / static_cast<double>(problems)),
                100 * change / std::max(cases - lost, 1), worse, better, lost, 100 * worst, smallest_worse,
                smallest_better);
    std::fflush(stdout);
  }
};

}  // namespace

void ablate(const std::vector<Problem>& problems, Effort effort, const std::vector<std::string>& only) {
  const PlanLimits limits{.effort = effort, .threads = 1};
  std::vector<Part> chosen;
  std::ranges::copy_if(parts(), std::back_inserter(chosen), [&](const Part& part) {
    return only.empty() || std::ranges::find(only, part.name) != only.end();
  });
  std::vector<Difference> differences(chosen.size());
  Difference itself;
  for (const Problem& problem : problems) {
    const auto plan = [&](std::optional<int64_t> smallest_bytes, const Part* part) {
      SearchParameters parameters;
      if (part != nullptr) part->turn_off(parameters);
      const bool in_place = part == nullptr || part->in_place;
      return plan_all(in_place ? problem : without_in_place(problem), problem.base_peak_bytes, smallest_bytes, limits,
                      parameters);
    };
    // All variants take turns, so that a change of the machine's load does not favour one of them.
    const int64_t smallest_bytes = plan(std::nullopt, nullptr).smallest_bytes;  // With cold caches.
    const Outcome full = plan(smallest_bytes, nullptr);
    itself.add(full, full, problem.base_time_ns);
    for (size_t k = 0; k < chosen.size(); ++k)
      differences[k].add(full, plan(smallest_bytes, &chosen[k]), problem.base_time_ns);
    std::fprintf(stderr, "%s\n", problem.graph.name().c_str());
  }
  std::printf("%zu problems, %d cases with a plan, %.2f s of planning in full\n\n", problems.size(), itself.cases,
              itself.full_s);
  std::printf(
      "| part turned off | time, sum | time, mean ratio | mean change of the step's time | worse | better | no plan | "
      "worst | larger smallest budget | smaller smallest budget |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (size_t k = 0; k < chosen.size(); ++k) differences[k].print(chosen[k].name, problems.size());
}
