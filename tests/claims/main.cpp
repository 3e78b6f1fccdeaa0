#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "tests/claims/claims.h"

/// Checks the claims of all planners on the inputs of many seeds, each in its own process, so that a crash, an endless loop
/// or an endless allocation is reported like a broken claim. Each kind of break is reduced and printed once.
namespace {

using namespace headroom::internal::testing;

struct Limits {
  rlim_t seconds = 20;         ///< processor time of one planner on one input
  double shrink_seconds = 60;  ///< time limit of reducing an input
  rlim_t memory_mib = 2048;    ///< 0 for no limit, which sanitizers need because they reserve terabytes
};

void set_limit(int resource, rlim_t limit) {
  const rlimit soft{limit, RLIM_INFINITY};
  if (setrlimit(resource, &soft) != 0) throw std::runtime_error("setrlimit: " + std::string(std::strerror(errno)));
}

rlim_t used_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; (size = read(descriptor, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(size));
  return text;
}

/// Runs check_claims() in a child process. The child sends the name of each planner before it runs, ended by a newline,
/// then an empty line and its report: the number of claims, whether the search ended, and for each break a line and its
/// detail, ended by a NUL.
ClaimReport check_apart(const Input& input, ClaimOptions options, const Limits& limits, bool quiet) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
  if (child == 0) {
    const auto send = [&](const std::string& text) {
      if (write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
    };
    set_limit(RLIMIT_CORE, 0);
    if (limits.memory_mib > 0) set_limit(RLIMIT_AS, limits.memory_mib << 20U);
    if (quiet) close(STDERR_FILENO);
    options.on_planner = [&](const std::string& name) {
      send(name + "\n");
      set_limit(RLIMIT_CPU, used_seconds() + limits.seconds);
    };
    const ClaimReport report = check_claims(input, options);
    std::string text = "\n" + std::to_string(report.claims) + " " + std::to_string(report.is_searched ? 1 : 0) + "\n";
    for (const Break& broken : report.breaks) text += broken.kind + "\n" + broken.detail + '\0';
    send(text);
    _exit(0);
  }
  close(ends[1]);
  std::istringstream text(read_all(ends[0]));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ClaimReport report;
  std::string planner = "search";
  for (std::string line; std::getline(text, line) && !line.empty();) planner = line;
  if (status != 0) {
    const std::string how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit status";
    report.breaks.push_back({planner + ": " + how, "status " + std::to_string(status)});
    return report;
  }
  text >> report.claims >> report.is_searched;
  text.ignore();
  for (Break broken; std::getline(text, broken.kind) && std::getline(text, broken.detail, '\0');)
    report.breaks.push_back(broken);
  return report;
}

const Break* find_kind(const ClaimReport& report, const std::string& kind) {
  for (const Break& broken : report.breaks)
    if (broken.kind == kind) return &broken;
  return nullptr;
}

void print_shrunk(uint64_t seed, const Break& first, const ClaimOptions& options, const Limits& limits) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(limits.shrink_seconds * 1e3));
  const auto breaks = [&](const Input& input) {
    return std::chrono::steady_clock::now() < deadline &&
           find_kind(check_apart(input, options, limits, true), first.kind) != nullptr;
  };
  const Input small = shrink(random_input(seed), breaks);
  const ClaimReport report = check_apart(small, options, limits, true);
  const Break* reduced = find_kind(report, first.kind);
  std::cout << "broken: " << first.kind << " (seed " << seed << ")\n"
            << (reduced != nullptr ? *reduced : first).detail << "\n"
            << to_text(small) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Checks what planners claim against a search over all schedules");
  std::string seeds = "0:100";
  ClaimOptions options;
  Limits limits;
  bool shrinks = true;
  app.add_option("--seeds", seeds, "FIRST:LAST, the last one not included")->capture_default_str();
  app.add_option("--states", options.max_states, "of one search over all schedules")->capture_default_str();
  app.add_option("--budgets", options.max_budgets, "for each input and planner")->capture_default_str();
  app.add_option("--seconds", limits.seconds, "of processor time for one planner on one input")->capture_default_str();
  app.add_option("--memory", limits.memory_mib, "MiB for one input, 0: no limit")->capture_default_str();
  app.add_option("--shrink-seconds", limits.shrink_seconds, "for one kind of break")->capture_default_str();
  app.add_flag("--shrink,!--no-shrink", shrinks, "print the smallest input of each kind of break");
  CLI11_PARSE(app, argc, argv);
  const size_t colon = seeds.find(':');
  const uint64_t first_seed = std::stoull(seeds);
  const uint64_t last_seed = colon == std::string::npos ? first_seed + 1 : std::stoull(seeds.substr(colon + 1));

  int64_t claims = 0;
  int64_t inputs_searched = 0;
  std::map<std::string, int64_t> inputs_of_kind;  // The number of inputs for each kind of break.
  for (uint64_t seed = first_seed; seed < last_seed; ++seed) {
    const ClaimReport report = check_apart(random_input(seed), options, limits, false);
    claims += report.claims;
    inputs_searched += report.is_searched ? 1 : 0;
    for (const Break& broken : report.breaks) {
      if (++inputs_of_kind[broken.kind] > 1) continue;
      if (shrinks)
        print_shrunk(seed, broken, options, limits);
      else
        std::cout << "broken: " << broken.kind << " (seed " << seed << ")\n" << broken.detail << std::endl;
    }
  }
  std::cout << claims << " claims on " << last_seed - first_seed << " inputs, " << inputs_searched
            << " of them against all schedules; " << inputs_of_kind.size() << " kinds broken\n";
  for (const auto& [kind, count] : inputs_of_kind) std::cout << "  " << count << " inputs: " << kind << "\n";
  return inputs_of_kind.empty() ? 0 : 1;
}
