// Places buffers, and prints how close arenas come to their lower bounds:
//
//     build/benchmarks/place_bench --problems FOLDER [--arena BYTES] [--effort low|normal|high]
//     build/benchmarks/place_bench [--effort low|normal|high] [FOLDER_OR_FILE...]        (default: examples)
//     build/benchmarks/place_bench --placed [--effort low|normal|high] [FOLDER_OR_FILE...]
//
// --problems: every CSV file of the folder, with a line `id,lower,upper,size` for each buffer, which is live in
// [lower, upper). The solver stops at an arena of BYTES (1,048,576), and works for up to a minute. Exits with 1 if an
// arena is larger.
//
// Without it: every plan of `auto` at seven budgets, evenly spaced from its smallest to the peak of store-all. Prints the
// arena over the peak without resident values, the time to place the plan, also for 1,000 copies and workspaces, and at
// the end the median and the largest of all. Exits with 1 if a placement is not valid.
//
// --placed: `plan --placed` at the same budgets and at 1.1 times the smallest: the extra time over the plan without
// addresses, and its planning time. Exits with 1 if a budget is exceeded, or a larger one is slower.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/input_files.h"
#include "headroom/core/error.h"
#include "headroom/core/lifetimes.h"
#include "headroom/core/simulate.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/plan/place/place.h"
#include "headroom/plan/place/solver.h"
#include "headroom/plan/placed_plan.h"
#include "headroom/plan/planners.h"

namespace {

using namespace headroom;
using namespace headroom::internal;
using Clock = std::chrono::steady_clock;

constexpr int kBudgets = 7;
/// Work of a solver on one CSV file: about a minute.
constexpr int64_t kProblemWork = 12'000'000'000;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

PlaceProblem read_problem(const std::filesystem::path& file) {
  PlaceProblem problem;
  std::istringstream lines(read_file(file.string()));
  std::string line;
  std::getline(lines, line);  // The names of the columns.
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    int64_t id = 0;
    int64_t end = 0;
    Block block;
    char comma = 0;
    cells >> id >> comma >> block.first >> comma >> end >> comma >> block.bytes;
    if (cells.fail()) throw InvalidInput(file.string() + ": expected id,lower,upper,size, found " + line);
    block.last = end - 1;
    problem.blocks.push_back(block);
  }
  return problem;
}

int bench_problems(const std::string& folder, int64_t arena_bytes) {
  int failed = 0;
  std::printf("| problem | buffers | bound | arena | s |\n| --- | --- | --- | --- | --- |\n");
  for (const std::filesystem::path& file : files_in({folder}, ".csv")) {
    const PlaceProblem problem = read_problem(file);
    PlaceParams params;
    params.least_work = kProblemWork;
    params.enough_bytes = arena_bytes;
    const auto start = Clock::now();
    const PlaceSolution solution = solve_placement(problem, params);
    std::printf("| %s | %zu | %lld | %lld%s | %.2f |\n", file.stem().c_str(), problem.blocks.size(),
                static_cast<long long>(solution.lower_bound_bytes), static_cast<long long>(solution.arena_bytes),
                solution.arena_bytes > arena_bytes ? " (too large)" : "", ms_since(start) / 1000);
    std::fflush(stdout);
    failed += solution.arena_bytes > arena_bytes ? 1 : 0;
  }
  return failed == 0 ? 0 : 1;
}

Problem read_network_file(const std::filesystem::path& file) {
  const auto network = read_network(read_file(file.string()), file.string());
  return std::visit([](const auto& graph_or_chain) { return make_problem(graph_or_chain); }, network);
}

/// Returns the budgets of a network: evenly spaced from the smallest of `auto` to the peak of store-all.
std::vector<int64_t> budgets_of(const Problem& problem, const PlanLimits& limits) {
  const int64_t most_bytes = problem.base_peak_bytes;
  const Plan plan = make_plan(default_planner(), problem, {most_bytes, limits});
  const int64_t least_bytes = std::min(plan.result.smallest_budget_bytes, most_bytes);
  std::vector<int64_t> budgets;
  for (int i = 0; i < kBudgets; ++i) budgets.push_back(least_bytes + (most_bytes - least_bytes) / (kBudgets - 1) * i);
  return budgets;
}

void print_spread(const char* name, std::vector<double> numbers) {
  if (numbers.empty()) return;
  std::ranges::sort(numbers);
  double sum = 0;
  for (const double number : numbers) sum += number;
  std::printf("%s: median %.4f, mean %.4f, 90 %% at most %.4f, largest %.4f\n", name, numbers[numbers.size() / 2],
              sum / static_cast<double>(numbers.size()), numbers[numbers.size() * 9 / 10], numbers.back());
}

int bench_plans(const std::vector<std::string>& inputs, Effort effort) {
  const PlanLimits limits{.threads = 1};
  std::vector<double> ratios;
  std::vector<double> times;
  int faulty = 0;
  std::printf("| network | budget | copies | arena / peak | bound / peak | ms | ms for 1,000 |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::filesystem::path& file : files_in(inputs, ".json")) {
    const Problem problem = read_network_file(file);
    for (const int64_t budget_bytes : budgets_of(problem, limits)) {
      const Plan plan = make_plan(default_planner(), problem, {budget_bytes, limits});
      if (!plan.result.schedule) continue;
      const auto start = Clock::now();
      const PlaceResult result = place(problem.graph, *plan.result.schedule, {.effort = effort});
      const double ms = ms_since(start);
      const auto peak_bytes = static_cast<double>(*plan.peak_bytes - problem.graph.resident_bytes());
      const auto copies = static_cast<double>(result.placement.offsets.size());
      const double ratio = static_cast<double>(result.placement.arena_bytes) / peak_bytes;
      faulty += verify_placement(problem.graph, *plan.result.schedule, result.placement) ? 1 : 0;
      ratios.push_back(ratio);
      times.push_back(ms / copies * 1000);
      std::printf("| %s | %.3fx | %.0f | %.5f | %.5f | %.2f | %.2f |\n", file.stem().c_str(),
                  static_cast<double>(budget_bytes) / static_cast<double>(problem.base_peak_bytes), copies, ratio,
                  static_cast<double>(result.lower_bound_bytes) / peak_bytes, ms, ms / copies * 1000);
      std::fflush(stdout);
    }
  }
  std::printf("\n%zu plans, %d placements not valid\n", ratios.size(), faulty);
  print_spread("arena / peak", ratios);
  print_spread("ms for 1,000 copies", times);
  return faulty == 0 ? 0 : 1;
}

int bench_placed(const std::vector<std::string>& inputs, Effort effort) {
  const PlanLimits limits{.effort = effort, .threads = 1};
  std::vector<double> extra;
  std::vector<double> times;
  int missing = 0;
  int faulty = 0;
  std::printf("| network | budget | time | placed | extra %% | ms | placed ms |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::filesystem::path& file : files_in(inputs, ".json")) {
    const Problem problem = read_network_file(file);
    std::vector<int64_t> budgets = budgets_of(problem, limits);
    budgets.push_back(budgets.front() + budgets.front() / 10);
    std::ranges::sort(budgets);
    std::optional<int64_t> last_ns;
    for (const int64_t budget_bytes : budgets) {
      const Plan plan = make_plan(default_planner(), problem, {budget_bytes, limits});
      const PlacedPlan placed = make_placed_plan(default_planner(), problem, {budget_bytes, limits}, {}, 1);
      const double share = static_cast<double>(budget_bytes) / static_cast<double>(problem.base_peak_bytes);
      if (!plan.time_ns) continue;
      if (!placed.plan.time_ns) {
        ++missing;
        faulty += last_ns ? 1 : 0;
        std::printf("| %s | %.3fx | %lld | none | | %.1f | %.1f |\n", file.stem().c_str(), share,
                    static_cast<long long>(*plan.time_ns), plan.solve_ms, placed.plan.solve_ms);
        continue;
      }
      const int64_t needed_bytes = problem.graph.resident_bytes() + placed.placement->arena_bytes;
      faulty += needed_bytes > budget_bytes || (last_ns && *placed.plan.time_ns > *last_ns) ? 1 : 0;
      last_ns = placed.plan.time_ns;
      extra.push_back(100 * (static_cast<double>(*placed.plan.time_ns) / static_cast<double>(*plan.time_ns) - 1));
      times.push_back(placed.plan.solve_ms);
      std::printf("| %s | %.3fx | %lld | %lld | %.3f | %.1f | %.1f |\n", file.stem().c_str(), share,
                  static_cast<long long>(*plan.time_ns), static_cast<long long>(*placed.plan.time_ns), extra.back(),
                  plan.solve_ms, placed.plan.solve_ms);
      std::fflush(stdout);
    }
  }
  std::printf("\n%zu placed plans, %d budgets without one; %d above the budget or slower than at a smaller one\n",
              extra.size(), missing, faulty);
  print_spread("extra time, %", extra);
  print_spread("planning time with addresses, ms", times);
  return faulty == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  std::string problems;
  Effort effort = Effort::kNormal;
  int64_t arena_bytes = 1'048'576;
  bool is_placed = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--effort" && i + 1 < argc) {
      const std::string name = argv[++i];
      effort = name == "low" ? Effort::kLow : name == "high" ? Effort::kHigh : Effort::kNormal;
    } else if (word == "--problems" && i + 1 < argc) {
      problems = argv[++i];
    } else if (word == "--arena" && i + 1 < argc) {
      arena_bytes = std::atoll(argv[++i]);
    } else if (word == "--placed") {
      is_placed = true;
    } else {
      inputs.push_back(word);
    }
  }
  if (inputs.empty()) inputs.emplace_back("examples");
  try {
    if (!problems.empty()) return bench_problems(problems, arena_bytes);
    return is_placed ? bench_placed(inputs, effort) : bench_plans(inputs, effort);
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "place_bench: %s\n", error.what());
    return 2;
  }
}
