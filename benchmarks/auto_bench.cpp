// Compares `auto` with all other planners on every network file of some folders, or with the optimum:
//
//     build/benchmarks/auto_bench [--effort low|normal|high] [--random N] [FOLDER_OR_FILE...]   (default: examples)
//     build/benchmarks/auto_bench --optimum N [--effort low|normal|high]               (default: high)
//     build/benchmarks/auto_bench --near N
//     build/benchmarks/auto_bench --time [--effort low|normal|high] [FOLDER_OR_FILE...]
//     build/benchmarks/auto_bench --scaling MOST_OPS
//     build/benchmarks/auto_bench --ablate [--part NAME]... [--random N] [--effort low|normal|high] [FOLDER_OR_FILE...]
//
// Prints for each file and budget the extra time of `auto` over store-all in any order and with the base order kept, the
// lower bound for either, the best of the other planners, and the processor time of planning on one thread for either. The
// first row of a file has the time of making the fronts. The last rows of a file are at the smallest budget for which `auto` has a plan, and
// at budgets in between, where a larger one must not be slower. Then every other planner plans for N (20) random budgets,
// and `auto` for the peaks of their plans. Exits with 1 if `auto` is slower than another planner (by more than 0.5 % at
// random budgets), has no plan where another has one, needs more memory than another, or is not monotone; the planners with the order kept are
// among the others. If `auto` is no
// faster than another, the row says whether the bound proves that no plan is.
//
// --optimum: N seeded random graphs and N chains, with the order kept, that `exhaustive` takes, at three budgets each from the smallest to the
// peak of store-all. Prints the share in which `auto` finds the optimum, and in which the search alone does, which `auto`
// uses only above a number of values. Exits with 1 if the share of `auto` is below 99 %, or a bound above the optimum.
//
// --near: N seeded random graphs of up to two hundred ops, at 1.02 times the smallest budget of normal effort. Prints the
// mean extra time of every effort, and of the bound. Exits with 1 if a higher effort is slower than a lower one.
//
// --time: the processor time of planning within 0.6 of the peak of store-all on one thread, the minimum of five, also per
// op, to show how it grows with the number of equal blocks.
//
// --scaling: the same once for uniform chains of 100 to 800 stages, and for seeded random training steps of 1,000 ops and
// more, up to MOST_OPS.
//
// --ablate: what each part of `auto`, or each of the named ones, costs in planning time and buys in plan quality: the files,
// N (20) seeded random chains and graphs of at most forty runs each, and N larger graphs, with the part turned off.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/auto_ablation.h"
#include "benchmarks/auto_optimum.h"
#include "benchmarks/input_files.h"
#include "benchmarks/random_problems.h"
#include "headroom/core/error.h"
#include "headroom/core/quote.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/plan/auto/auto.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/planners.h"
#include "tests/support/random.h"

namespace {

using namespace headroom;
using namespace headroom::internal;

constexpr double kShares[] = {0.9, 0.8, 0.65, 0.5, 0.35, 0.25};
constexpr int kBetween = 9;  ///< number of budgets between the smallest and the peak of store-all

struct Totals {
  int cases = 0;
  int better_than_kept = 0;
  int worse_than_kept = 0;
  int files = 0;
  int smaller_than_kept = 0;  ///< number of files whose smallest budget is smaller than with the order kept
  double any_s = 0;           ///< processor time of planning in any order
  double kept_s = 0;
  int better = 0;
  int equal = 0;
  int equal_proved = 0;
  int proved = 0;  ///< number of plans of `auto` that are proved optimal
  int worse = 0;
  int missing = 0;
  int smallest_worse = 0;
  int not_monotone = 0;
  int between = 0;  ///< number of plans of other planners at random budgets
  int worse_between = 0;
  double worst_between = 0;  ///< maximum share of time by which `auto` is slower there
};

// The share by which `auto` may be slower at a random budget. It is printed and is no failure.
constexpr double kSlowerBetween = 0.005;

std::string percent(int64_t time_ns, int64_t base_ns) {
  char text[32];
  const double more = base_ns == 0 ? 0 : static_cast<double>(time_ns) / static_cast<double>(base_ns) - 1;
  std::snprintf(text, sizeof text, "+%.3f %%", 100 * more);
  return text;
}

/// The results of the other planners within a budget.
struct Others {
  std::string best_name = "-";
  std::optional<int64_t> time_ns;
  std::optional<int64_t> smallest_bytes;
};

Others ask_others(const Problem& problem, const PlanRequest& request) {
  Others others;
  for (const Planner& planner : planners()) {
    if (planner.name == "auto") continue;
    try {
      const Plan plan = make_plan(planner, problem, request);
      if (plan.result.smallest_budget_bytes > 0)
        others.smallest_bytes = std::min(others.smallest_bytes.value_or(plan.result.smallest_budget_bytes),
                                         plan.result.smallest_budget_bytes);
      if (!plan.time_ns || (others.time_ns && *plan.time_ns >= *others.time_ns)) continue;
      others.time_ns = plan.time_ns;
      others.best_name = planner.name;
    } catch (const NotApplicable&) {
      continue;
    }
  }
  return others;
}

/// Plans by `auto`, and adds the processor time of that to `total_s`.
Plan plan_and_time(const Problem& problem, PlanRequest request, bool keep_order, double& total_s, double& ms) {
  request.limits.keep_order = keep_order;
  const std::clock_t begin = std::clock();
  Plan plan = make_plan(get_planner("auto"), problem, request);
  ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  total_s += ms / 1e3;
  return plan;
}

std::string result_of(const Plan& plan) {
  if (plan.time_ns) return percent(*plan.time_ns, plan.base_time_ns);
  return plan.result.status == PlanStatus::kInfeasible ? "infeasible" : "none";
}

void compare(const Problem& problem, const std::string& label, const PlanRequest& request, Totals& totals,
             std::map<int64_t, int64_t>& times) {
  double any_ms = 0;
  double kept_ms = 0;
  const Plan kept = plan_and_time(problem, request, true, totals.kept_s, kept_ms);
  const Plan plan = plan_and_time(problem, request, false, totals.any_s, any_ms);
  const Others others = ask_others(problem, request);
  ++totals.cases;
  totals.better_than_kept += plan.time_ns && (!kept.time_ns || *plan.time_ns < *kept.time_ns) ? 1 : 0;
  totals.worse_than_kept += kept.time_ns && (!plan.time_ns || *plan.time_ns > *kept.time_ns) ? 1 : 0;
  const char* verdict = "";
  const bool is_proved = plan.time_ns && plan.result.status == PlanStatus::kOptimal;
  totals.proved += is_proved ? 1 : 0;
  if (plan.time_ns) times[*request.budget_bytes] = *plan.time_ns;
  if (others.time_ns && !plan.time_ns) {
    ++totals.missing;
    verdict = "NONE";
  } else if (others.time_ns && *others.time_ns < *plan.time_ns) {
    ++totals.worse;
    verdict = "WORSE";
  } else if (plan.time_ns && (!others.time_ns || *plan.time_ns < *others.time_ns)) {
    ++totals.better;
    verdict = "better";
  } else if (plan.time_ns) {
    ++totals.equal;
    totals.equal_proved += is_proved ? 1 : 0;
    verdict = is_proved ? "equal, proved" : "equal";
  }
  if (others.smallest_bytes && plan.result.smallest_budget_bytes > *others.smallest_bytes) {
    ++totals.smallest_worse;
    verdict = "SMALLEST";
  }
  const int64_t base_ns = problem.base_time_ns;
  std::printf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %.0f | %.0f |\n", problem.graph.name().c_str(),
              label.c_str(), result_of(plan).c_str(), result_of(kept).c_str(),
              percent(plan.result.lower_bound_ns, base_ns).c_str(),
              percent(kept.result.lower_bound_ns, base_ns).c_str(), others.best_name.c_str(),
              others.time_ns ? percent(*others.time_ns, base_ns).c_str() : "-", verdict, any_ms, kept_ms);
  std::fflush(stdout);
}

Problem read_problem(const std::filesystem::path& file) {
  const auto network = read_network(read_file(file.string()), file.string());
  return std::visit([](const auto& graph_or_chain) { return make_problem(graph_or_chain); }, network);
}

/// Compares every plan of another planner at random budgets with the front at the peak of that plan.
void compare_between(const Problem& problem, int64_t smallest_bytes, const PlanLimits& limits, int budgets,
                     Totals& totals) {
  const FlatGraph flat(problem.graph);
  const AutoFront front = make_auto_front(problem, flat, limits);
  testing::Random random(1);
  for (int i = 0; i < budgets; ++i) {
    const PlanRequest request{random.number(smallest_bytes, problem.base_peak_bytes), limits};
    for (const Planner& planner : planners()) {
      if (planner.name == "auto") continue;
      try {
        const Plan plan = make_plan(planner, problem, request);
        if (!plan.time_ns) continue;
        ++totals.between;
        const std::optional<JudgedRuns> own = pick_within(flat, front, *plan.peak_bytes);
        if (own && own->time_ns <= *plan.time_ns) continue;
        ++totals.worse_between;
        const double slower =
            own ? static_cast<double>(own->time_ns - *plan.time_ns) / static_cast<double>(*plan.time_ns)
                : std::numeric_limits<double>::infinity();
        totals.worst_between = std::max(totals.worst_between, slower);
        std::printf("%s at %lld: WORSE than %s, %s instead of %s\n", problem.graph.name().c_str(),
                    static_cast<long long>(*plan.peak_bytes), std::string(planner.name).c_str(),
                    own ? percent(own->time_ns, problem.base_time_ns).c_str() : "none",
                    percent(*plan.time_ns, problem.base_time_ns).c_str());
      } catch (const NotApplicable&) {
        continue;
      }
    }
  }
}

void bench(const std::filesystem::path& file, Effort effort, int random_budgets, Totals& totals) {
  const Problem problem = read_problem(file);
  PlanRequest request;
  request.limits.threads = 1;
  request.limits.effort = effort;
  std::map<int64_t, int64_t> times;  // The time for each budget.
  for (const double share : kShares) {
    request.budget_bytes = static_cast<int64_t>(share * static_cast<double>(problem.base_peak_bytes));
    char label[16];
    std::snprintf(label, sizeof label, "%.2fx", share);
    compare(problem, label, request, totals, times);
  }
  request.budget_bytes = problem.base_peak_bytes;
  const int64_t smallest_bytes = make_plan(get_planner("auto"), problem, request).result.smallest_budget_bytes;
  request.limits.keep_order = true;
  const int64_t smallest_kept_bytes = make_plan(get_planner("auto"), problem, request).result.smallest_budget_bytes;
  request.limits.keep_order = false;
  ++totals.files;
  totals.smaller_than_kept += smallest_bytes < smallest_kept_bytes ? 1 : 0;
  totals.smallest_worse += smallest_bytes > smallest_kept_bytes ? 1 : 0;
  request.budget_bytes = smallest_bytes;
  char label[64];
  std::snprintf(label, sizeof label, "smallest, %.3fx (in order %.3fx)",
                static_cast<double>(smallest_bytes) / static_cast<double>(problem.base_peak_bytes),
                static_cast<double>(smallest_kept_bytes) / static_cast<double>(problem.base_peak_bytes));
  compare(problem, label, request, totals, times);
  for (int i = 1; i <= kBetween; ++i) {
    request.budget_bytes = smallest_bytes + (problem.base_peak_bytes - smallest_bytes) / (kBetween + 1) * i;
    const Plan plan = make_plan(get_planner("auto"), problem, request);
    if (plan.time_ns) times[*request.budget_bytes] = *plan.time_ns;
  }
  int64_t last_ns = std::numeric_limits<int64_t>::max();
  for (const auto& [budget_bytes, time_ns] : times) {
    if (time_ns > last_ns) {
      ++totals.not_monotone;
      std::printf("NOT MONOTONE at %lld\n", static_cast<long long>(budget_bytes));
    }
    last_ns = time_ns;
  }
  compare_between(problem, smallest_bytes, request.limits, random_budgets, totals);
}

/// Prints the minimum of `repeats` processor times of planning within 0.6 of the peak of store-all on one thread.
void bench_time(const Problem& problem, Effort effort, int repeats) {
  PlanRequest request;
  request.limits = {.effort = effort, .threads = 1};
  request.budget_bytes = problem.base_peak_bytes / 10 * 6;
  double least_s = std::numeric_limits<double>::infinity();
  std::optional<Plan> plan;
  for (int i = 0; i < repeats; ++i) {
    const Problem fresh(problem.graph, problem.chain);  // Without the cached front of the last repetition.
    const std::clock_t begin = std::clock();
    plan = make_plan(get_planner("auto"), fresh, request);
    least_s = std::min(least_s, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  const size_t ops = problem.graph.ops().size();
  std::printf("| %s | %zu | %.3f | %.0f | %s | %s |\n", problem.graph.name().c_str(), ops, least_s,
              1e6 * least_s / static_cast<double>(ops),
              plan->time_ns ? percent(*plan->time_ns, problem.base_time_ns).c_str() : "none",
              percent(plan->result.lower_bound_ns, problem.base_time_ns).c_str());
  std::fflush(stdout);
}

void bench_scaling(int64_t most_ops) {
  for (const int stages : {100, 200, 400, 800}) {
    Chain chain;
    chain.name = "chain of " + std::to_string(stages);
    chain.input_bytes = chain.input_gradient_bytes = 1000;
    chain.stages.assign(static_cast<size_t>(stages),
                        {.name = "", .forward_ns = 100, .backward_ns = 200, .output_bytes = 1000, .tape_bytes = 4000});
    for (int i = 0; i < stages; ++i) chain.stages[static_cast<size_t>(i)].name = "s" + std::to_string(i);
    bench_time(make_problem(chain), Effort::kNormal, 1);
  }
  for (const int64_t ops : {1'000, 3'000, 10'000, 30'000, 100'000}) {
    if (ops > most_ops) break;
    testing::Random random(1);
    GraphSpec spec =
        testing::random_graph(random, {.forward_ops = static_cast<int>(ops / 2), .most_bytes = 100, .special = false});
    spec.name = "random";
    bench_time(make_problem(Graph(spec)), Effort::kNormal, 1);
  }
}

int bench_near(int count) {
  constexpr Effort kEfforts[] = {Effort::kLow, Effort::kNormal, Effort::kHigh};
  std::vector<double> sums(std::size(kEfforts), 0);
  double bound_sum = 0;
  int slower = 0;
  for (int seed = 1; seed <= count; ++seed) {
    const Problem problem = make_problem(medium_graph(static_cast<uint64_t>(seed)));
    const FlatGraph flat(problem.graph);
    std::vector<AutoFront> fronts;
    for (const Effort effort : kEfforts)
      fronts.push_back(make_auto_front(problem, flat, {.effort = effort, .threads = 1}));
    const int64_t smallest_bytes = fronts[1].smallest_bytes();
    const int64_t budget_bytes = smallest_bytes + smallest_bytes / 50;
    const auto base_ns = static_cast<double>(problem.base_time_ns);
    std::printf("%2d, %3zu ops:", seed, problem.graph.ops().size());
    int64_t last_ns = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < fronts.size(); ++i) {
      const std::optional<JudgedRuns> plan = pick_within(flat, fronts[i], budget_bytes);
      const int64_t time_ns = plan ? plan->time_ns : std::numeric_limits<int64_t>::max();
      // A missing plan counts as three times the time of store-all.
      sums[i] += plan ? static_cast<double>(time_ns) / base_ns - 1 : 2;
      slower += time_ns > last_ns ? 1 : 0;
      last_ns = time_ns;
      std::printf(" %s", plan ? percent(time_ns, problem.base_time_ns).c_str() : "none");
    }
    const int64_t bound_ns = memory_bound(problem.graph, budget_bytes).time_ns;
    bound_sum += static_cast<double>(bound_ns) / base_ns - 1;
    std::printf(", bound %s\n", percent(bound_ns, problem.base_time_ns).c_str());
    std::fflush(stdout);
  }
  std::printf("mean: low +%.2f %%, normal +%.2f %%, high +%.2f %%, bound +%.2f %%; slower at a higher effort in %d\n",
              100 * sums[0] / count, 100 * sums[1] / count, 100 * sums[2] / count, 100 * bound_sum / count, slower);
  return slower == 0 ? 0 : 1;
}

struct Options {
  std::vector<std::string> inputs = {};
  std::optional<Effort> effort = {};
  int optimum = 0;
  int near = 0;
  int random = 20;
  bool only_time = false;
  int64_t scaling_ops = 0;
  bool is_ablation = false;
  std::vector<std::string> parts = {};
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto next = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };
    if (word == "--effort") {
      const std::string name = next();
      options.effort = name == "low" ? Effort::kLow : name == "high" ? Effort::kHigh : Effort::kNormal;
    } else if (word == "--optimum") {
      options.optimum = std::atoi(next().c_str());
    } else if (word == "--near") {
      options.near = std::atoi(next().c_str());
    } else if (word == "--random") {
      options.random = std::atoi(next().c_str());
    } else if (word == "--scaling") {
      options.scaling_ops = std::atoll(next().c_str());
    } else if (word == "--ablate") {
      options.is_ablation = true;
    } else if (word == "--part") {
      options.parts.push_back(next());
    } else if (word == "--time") {
      options.only_time = true;
    } else {
      options.inputs.push_back(word);
    }
  }
  if (options.inputs.empty()) options.inputs.emplace_back("examples");
  return options;
}

int bench_times(const Options& options) {
  std::printf("| network | ops | s | us an op | extra time | no plan below |\n| --- | --- | --- | --- | --- | --- |\n");
  if (options.scaling_ops > 0) {
    bench_scaling(options.scaling_ops);
    return 0;
  }
  for (const std::filesystem::path& file : files_in(options.inputs, ".json"))
    bench_time(read_problem(file), options.effort.value_or(Effort::kNormal), 5);
  return 0;
}

int bench_ablation(const Options& options) {
  std::vector<Problem> problems = random_problems(options.random);
  for (const std::filesystem::path& file : files_in(options.inputs, ".json")) problems.push_back(read_problem(file));
  ablate(problems, options.effort.value_or(Effort::kNormal), options.parts);
  return 0;
}

int bench_all(const Options& options) {
  Totals totals;
  std::printf(
      "| network | budget | auto | in order | no plan below | in order | best other | | | ms | in order |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::filesystem::path& file : files_in(options.inputs, ".json"))
    bench(file, options.effort.value_or(Effort::kNormal), options.random, totals);
  std::printf(
      "\n%d cases: better than all others in %d, equal in %d (%d of them proved optimal), worse in %d, without a plan "
      "where another has one in %d; a larger smallest budget in %d; not monotone in %d; proved optimal in %d\n"
      "%d plans of others at random budgets: slower than one of them at its peak in %d, by %.4f %% at most\n",
      totals.cases, totals.better, totals.equal, totals.equal_proved, totals.worse, totals.missing,
      totals.smallest_worse, totals.not_monotone, totals.proved, totals.between, totals.worse_between,
      100 * totals.worst_between);
  std::printf(
      "against plans in order: faster in %d cases, slower in %d; a smaller smallest budget for %d of %d files; "
      "planning "
      "takes %.2f times as long\n",
      totals.better_than_kept, totals.worse_than_kept, totals.smaller_than_kept, totals.files,
      totals.any_s / totals.kept_s);
  const bool holds =
      totals.worse_than_kept + totals.worse + totals.missing + totals.smallest_worse + totals.not_monotone == 0;
  return holds && totals.worst_between <= kSlowerBetween ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse({argv + 1, argv + argc});
  try {
    if (options.optimum > 0) return bench_optimum(options.optimum, options.effort.value_or(Effort::kHigh));
    if (options.near > 0) return bench_near(options.near);
    if (options.is_ablation) return bench_ablation(options);
    if (options.only_time || options.scaling_ops > 0) return bench_times(options);
    return bench_all(options);
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "auto_bench: %s\n", error.what());
    return 2;
  }
}
