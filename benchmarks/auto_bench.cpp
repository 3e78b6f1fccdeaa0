// `auto` against all other planners, on every network file of some folders:
//
//     build/benchmarks/auto_bench [--effort low|normal|high] [FOLDER_OR_FILE...]       (default: examples)
//
// For each file and budget: the extra time of `auto` over plain training, the best of the others, what no plan is
// below, and the time to plan on one thread. The last rows of a file are at the smallest budget that `auto` has a plan
// for, and at budgets in between, where a larger one must not be slower. Exits with 1 where `auto` is slower than
// another planner, where another one has a plan and it has none, where another one does with less memory, or where it
// is not monotone.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"
#include "headroom/io/file.h"
#include "headroom/io/read.h"
#include "headroom/plan/planners.h"

namespace {

using namespace headroom;

constexpr double kShares[] = {0.9, 0.8, 0.65, 0.5, 0.35, 0.25};
constexpr int kBetween = 9;  ///< budgets between the smallest and plain training

struct Totals {
  int cases = 0;
  int better = 0;
  int equal = 0;
  int worse = 0;
  int missing = 0;
  int smallest_worse = 0;
  int not_monotone = 0;
};

std::vector<std::filesystem::path> network_files(const std::vector<std::string>& inputs) {
  std::vector<std::filesystem::path> files;
  for (const std::string& input : inputs) {
    if (!std::filesystem::is_directory(input)) {
      files.emplace_back(input);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(input))
      if (entry.path().extension() == ".json") inside.push_back(entry.path());
    std::ranges::sort(inside);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::string percent(int64_t time_ns, int64_t base_ns) {
  char text[32];
  const double more = base_ns == 0 ? 0 : static_cast<double>(time_ns) / static_cast<double>(base_ns) - 1;
  std::snprintf(text, sizeof text, "+%.3f %%", 100 * more);
  return text;
}

/// What the other planners do within a budget.
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

void compare(const Problem& problem, const std::string& label, const PlanRequest& request, Totals& totals,
             std::map<int64_t, int64_t>& times) {
  const Plan plan = make_plan(get_planner("auto"), problem, request);
  const Others others = ask_others(problem, request);
  ++totals.cases;
  const char* verdict = "";
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
    verdict = plan.result.status == PlanStatus::kOptimal ? "optimal" : "equal";
  }
  if (others.smallest_bytes && plan.result.smallest_budget_bytes > *others.smallest_bytes) {
    ++totals.smallest_worse;
    verdict = "SMALLEST";
  }
  const int64_t base_ns = problem.base_time_ns;
  std::printf("| %s | %s | %s | %s | %s | %s | %s | %.0f |\n", problem.graph.name().c_str(), label.c_str(),
              plan.time_ns ? percent(*plan.time_ns, base_ns).c_str()
                           : (plan.result.status == PlanStatus::kInfeasible ? "infeasible" : "none"),
              percent(plan.result.lower_bound_ns, base_ns).c_str(), others.best_name.c_str(),
              others.time_ns ? percent(*others.time_ns, base_ns).c_str() : "-", verdict, plan.solve_ms);
  std::fflush(stdout);
}

void bench(const std::filesystem::path& file, Effort effort, Totals& totals) {
  const auto network = read_network(read_file(file.string()), file.string());
  const Problem problem = std::visit([](const auto& one) { return make_problem(one); }, network);
  PlanRequest request;
  request.limits.threads = 1;
  request.limits.effort = effort;
  std::map<int64_t, int64_t> times;  // by budget
  for (const double share : kShares) {
    request.budget_bytes = static_cast<int64_t>(share * static_cast<double>(problem.base_peak_bytes));
    char label[16];
    std::snprintf(label, sizeof label, "%.2fx", share);
    compare(problem, label, request, totals, times);
  }
  request.budget_bytes = problem.base_peak_bytes;
  const int64_t smallest_bytes = make_plan(get_planner("auto"), problem, request).result.smallest_budget_bytes;
  request.budget_bytes = smallest_bytes;
  char label[40];
  std::snprintf(label, sizeof label, "smallest, %.3fx",
                static_cast<double>(smallest_bytes) / static_cast<double>(problem.base_peak_bytes));
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
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  Effort effort = Effort::kNormal;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--effort" && i + 1 < argc) {
      const std::string name = argv[++i];
      effort = name == "low" ? Effort::kLow : name == "high" ? Effort::kHigh : Effort::kNormal;
    } else {
      inputs.push_back(word);
    }
  }
  if (inputs.empty()) inputs.emplace_back("examples");
  Totals totals;
  std::printf("| network | budget | auto | no plan below | best other | | | ms |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  try {
    for (const std::filesystem::path& file : network_files(inputs)) bench(file, effort, totals);
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "auto_bench: %s\n", error.what());
    return 2;
  }
  std::printf(
      "\n%d cases: better than all others in %d, equal in %d, worse in %d, without a plan where another has one in "
      "%d; a larger smallest budget in %d; not monotone in %d\n",
      totals.cases, totals.better, totals.equal, totals.worse, totals.missing, totals.smallest_worse,
      totals.not_monotone);
  return totals.worse + totals.missing + totals.smallest_worse + totals.not_monotone == 0 ? 0 : 1;
}
