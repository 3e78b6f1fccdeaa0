#include "tests/claims/claims.h"

#include <algorithm>
#include <map>
#include <set>

#include "headroom/io/text.h"
#include "headroom/plan/planners.h"
#include "tests/claims/all_schedules.h"
#include "tests/support/memory_rules.h"

namespace headroom::internal::testing {
namespace {

/// A planner with its options, whose claims are checked.
struct Subject {
  std::string name;
  const Planner* planner;
  PlanLimits limits;
  PlannerOptions options;
  bool is_exact = false;  ///< whether its proofs cover all schedules, or with limits.keep_order all that keep the order
  bool is_any_order = false;         ///< whether it may move first runs
  bool is_monotone = true;           ///< whether a larger budget is never slower
  bool is_monotone_at_limit = true;  ///< whether that holds if a limit was reached
};

constexpr int64_t kFewStates = 200;  ///< Most searches over all schedules reach this limit.

/// Returns every planner, then variants of some. Uses one thread, which is fastest here and does not change results.
std::vector<Subject> subjects() {
  std::vector<Subject> all;
  const auto add = [&](const std::string& name, const std::string& planner) -> Subject& {
    all.push_back({.name = name,
                   .planner = &get_planner(planner),
                   .limits = {.max_states = 20'000, .threads = 1},
                   .options = {}});
    all.back().is_exact = planner == "auto" || planner == "exhaustive";
    all.back().is_any_order = all.back().is_exact;
    all.back().is_monotone_at_limit = planner != "exhaustive";
    return all.back();
  };
  for (const Planner& planner : planners()) add(std::string(planner.name), std::string(planner.name));
  add("auto at low effort", "auto").limits.effort = Effort::kLow;
  add("auto at high effort", "auto").limits.effort = Effort::kHigh;
  add("auto with few states", "auto").limits.max_states = kFewStates;
  add("exhaustive with few states", "exhaustive").limits.max_states = kFewStates;
  for (const std::string name : {"auto", "exhaustive", "auto at low effort", "auto at high effort",
                                 "auto with few states", "exhaustive with few states"}) {
    Subject kept = *std::ranges::find(all, name, &Subject::name);
    kept.name += ", order kept";
    kept.limits.keep_order = true;
    kept.is_any_order = false;
    all.push_back(kept);
  }
  add("lower-sets of all lower sets", "lower-sets").options.exact = true;
  for (const char* name : {"even", "sqrt", "peak-cubic", "peak-linear"})
    add(std::string(name) + ", reentrant", name).options.reentrant = true;
  Subject& coarse = add("chain in 3 slots", "chain");
  coarse.options.slots = 3;
  coarse.is_monotone = false;
  return all;
}

/// Returns the minimum time within a budget.
std::optional<int64_t> best_time_ns(const std::vector<BestTime>& front, int64_t budget_bytes) {
  std::optional<int64_t> best;
  for (const BestTime& point : front)
    if (point.peak_bytes <= budget_bytes) best = point.time_ns;
  return best;
}

std::string text_of(std::optional<int64_t> number) { return number ? std::to_string(*number) : "none"; }

std::string text_of(const Plan& plan) {
  return std::string(name_of(plan.result.status)) + " at budget " + text_of(plan.budget_bytes) + ": peak " +
         text_of(plan.peak_bytes) + ", time " + text_of(plan.time_ns) + ", bound " +
         std::to_string(plan.result.lower_bound_ns) + ", smallest budget " +
         std::to_string(plan.result.smallest_budget_bytes);
}

/// Returns whether a result is as good as another: it has a plan if the other has one, and is not slower.
bool is_as_good(const Plan& plan, const Plan& other) {
  return !other.time_ns || (plan.time_ns && *plan.time_ns <= *other.time_ns);
}

class Checker {
 public:
  Checker(const Problem& problem, const ClaimOptions& options) : problem_(problem), options_(options) {
    ordered_ = search_all_schedules(problem.graph, Order::kKeep, options.max_states);
    if (ordered_) any_ = search_all_schedules(problem.graph, Order::kAny, options.max_states);
    report_.is_searched = ordered_ && any_;
    choose_budgets();
  }

  ClaimReport run() {
    if (any_)
      claim(subjects_.front(), "base-bound", problem_.lower_bound_ns <= any_->back().time_ns,
            [&] { return std::to_string(problem_.lower_bound_ns) + ", possible " + text_of(any_->back().time_ns); });
    for (const Subject& subject : subjects_) {
      options_.on_planner(subject.name);
      check_subject(subject);
    }
    const auto named = [&](std::string_view name) { return *std::ranges::find(subjects_, name, &Subject::name); };
    for (const std::string order : {"", ", order kept"}) {
      for (const Subject& subject : subjects_)
        if (subject.planner->name != "auto" && subject.is_any_order == order.empty())
          compare("auto-beaten", named("auto" + order), subject);
      compare("auto-beaten", named("auto with few states" + order), named("exhaustive with few states" + order));
      compare("effort", named("auto" + order), named("auto at low effort" + order));
      compare("effort", named("auto at high effort" + order), named("auto" + order));
    }
    for (const std::string name : {"auto", "auto at low effort", "auto at high effort", "auto with few states"})
      compare("order", named(name), named(name + ", order kept"));
    return report_;
  }

 private:
  template <typename Detail>
  void claim(const Subject& subject, const std::string& name, bool holds, const Detail& detail) {
    ++report_.claims;
    const std::string kind = std::string(subject.planner->name) + ": " + name;
    if (holds || std::ranges::any_of(report_.breaks, [&](const Break& known) { return known.kind == kind; })) return;
    report_.breaks.push_back({kind, subject.name + ": " + detail()});
  }

  /// Returns the front over the schedules that a planner's proofs cover.
  const std::vector<BestTime>& possible(const Subject& subject) const {
    return subject.is_any_order ? *any_ : *ordered_;
  }

  /// Returns some of the budgets at which the minimum time changes, a byte less each, and some around the peak of
  /// store-all.
  void choose_budgets() {
    std::set<int64_t> all = {problem_.base_peak_bytes - 1, problem_.base_peak_bytes, problem_.base_peak_bytes + 50};
    for (const auto* front : {&ordered_, &any_}) {
      if (!*front) continue;
      for (const BestTime& point : **front) all.insert({point.peak_bytes - 1, point.peak_bytes});
    }
    if (!report_.is_searched)
      for (int64_t part = 3; part < 10; ++part) all.insert(problem_.base_peak_bytes * part / 10);
    // The search of `auto` is slowest on inputs that are too large for the search over all schedules.
    const size_t max_budgets = report_.is_searched ? options_.max_budgets : (options_.max_budgets + 1) / 2;
    const size_t stride = (all.size() + max_budgets - 1) / max_budgets;
    size_t i = 0;
    for (const int64_t budget_bytes : all)
      if (i++ % stride == 0) budgets_.push_back(budget_bytes);
  }

  std::optional<Plan> plan(const Subject& subject, std::optional<int64_t> budget_bytes) {
    try {
      const Plan result = make_plan(*subject.planner, problem_, {budget_bytes, subject.limits}, subject.options);
      claim(subject, "error", true, [] { return ""; });
      return result;
    } catch (const NotApplicable&) {
    } catch (const std::exception& error) {
      claim(subject, "error", false, [&] { return "at budget " + text_of(budget_bytes) + ": " + error.what(); });
    }
    return {};
  }

  void check_subject(const Subject& subject) {
    std::map<int64_t, Plan>& plans = plans_[subject.name];
    for (const int64_t budget_bytes : budgets_)
      if (const std::optional<Plan> candidate = plan(subject, budget_bytes)) plans.emplace(budget_bytes, *candidate);
    const Plan* before = nullptr;
    for (const auto& [budget_bytes, candidate] : plans) {
      check_schedule(subject, candidate);
      check_proofs(subject, candidate);
      check_smallest_budget(subject, candidate);
      const bool is_monotone = subject.is_monotone_at_limit || candidate.result.status != PlanStatus::kTimeout;
      if (before != nullptr && subject.is_monotone && is_monotone)
        claim(subject, "monotone", is_as_good(candidate, *before),
              [&, larger = candidate] { return text_of(*before) + "; " + text_of(larger); });
      before = &candidate;
    }
    if (plans.empty()) return;
    if (!subject.planner->needs_budget) check_without_budget(subject);
    check_curve(subject);
  }

  void check_schedule(const Subject& subject, const Plan& candidate) {
    const auto detail = [&] {
      return text_of(candidate) +
             (candidate.result.schedule ? "\n" + headroom::to_text(problem_.graph, *candidate.result.schedule) : "");
    };
    if (!candidate.result.schedule) {
      claim(subject, "status", candidate.result.status != PlanStatus::kOptimal, detail);
      return;
    }
    const Replay own = replay(problem_.graph, *candidate.result.schedule);
    claim(subject, "valid", own.is_valid(), [&] { return own.errors.front() + "\n" + detail(); });
    if (!own.is_valid()) return;
    const bool keeps_order = keeps_base_order(problem_.graph, *candidate.result.schedule);
    claim(subject, "peak", own.peak_bytes == *candidate.peak_bytes, detail);
    claim(subject, "time", own.time_ns == *candidate.time_ns, detail);
    claim(subject, "within-budget", !candidate.budget_bytes || own.peak_bytes <= *candidate.budget_bytes, detail);
    claim(subject, "keep-order", keeps_order || subject.is_any_order, detail);
    if (!report_.is_searched) return;
    const std::optional<int64_t> best = best_time_ns(keeps_order ? *ordered_ : *any_, own.peak_bytes);
    claim(subject, "impossible", best && own.time_ns >= *best, detail);
  }

  void check_proofs(const Subject& subject, const Plan& candidate) {
    if (!report_.is_searched) return;
    const std::optional<int64_t> best = best_time_ns(possible(subject), *candidate.budget_bytes);
    const auto detail = [&] { return text_of(candidate) + "; possible: " + text_of(best); };
    claim(subject, "bound", !best || candidate.result.lower_bound_ns <= *best, detail);
    if (!subject.is_exact) return;
    if (candidate.result.status == PlanStatus::kOptimal) claim(subject, "optimal", candidate.time_ns == best, detail);
    if (candidate.result.status == PlanStatus::kInfeasible) claim(subject, "infeasible", !best, detail);
  }

  void check_smallest_budget(const Subject& subject, const Plan& candidate) {
    const int64_t smallest = candidate.result.smallest_budget_bytes;
    if (smallest == 0 && problem_.base_peak_bytes > 0) return;  // Not computed.
    const auto detail = [&] { return text_of(candidate); };
    claim(subject, "smallest-budget", candidate.result.schedule.has_value() == (*candidate.budget_bytes >= smallest),
          detail);
    if (report_.is_searched)
      claim(subject, "smallest-budget", !possible(subject).empty() && smallest >= possible(subject).front().peak_bytes,
            detail);
    if (checked_smallest_.insert({subject.name, smallest}).second) {
      const std::optional<Plan> at_smallest = plan(subject, smallest);
      claim(subject, "smallest-budget", at_smallest && at_smallest->result.schedule,
            [&] { return text_of(candidate) + "; " + (at_smallest ? text_of(*at_smallest) : "not applicable there"); });
      const std::optional<Plan> below = plan(subject, smallest - 1);
      claim(subject, "smallest-budget", !below || !below->result.schedule,
            [&] { return text_of(candidate) + "; " + text_of(*below); });
    }
  }

  void check_without_budget(const Subject& subject) {
    const std::optional<Plan> candidate = plan(subject, std::nullopt);
    if (!candidate) return;
    check_schedule(subject, *candidate);
    if (subject.planner->name != "exhaustive" || !report_.is_searched || !candidate->result.schedule) return;
    if (candidate->result.status != PlanStatus::kOptimal) return;
    const BestTime& best = possible(subject).front();
    claim(subject, "least-peak", candidate->peak_bytes == best.peak_bytes && candidate->time_ns == best.time_ns, [&] {
      return text_of(*candidate) + "; possible: peak " + text_of(best.peak_bytes) + ", time " + text_of(best.time_ns);
    });
  }

  void check_curve(const Subject& subject) {
    constexpr int kPoints = 4;
    std::vector<CurvePoint> points;
    try {
      points = plan_curve(*subject.planner, problem_, kPoints, {std::nullopt, subject.limits}, subject.options);
    } catch (const NotApplicable&) {
      return;
    } catch (const std::exception& error) {
      claim(subject, "error", false, [&] { return std::string("curve: ") + error.what(); });
      return;
    }
    for (size_t i = 0; i < points.size(); ++i) {
      const CurvePoint& point = points[i];
      const std::string text = "point " + text_of(point.peak_bytes) + " bytes, " + text_of(point.time_ns) + " ns";
      claim(subject, "curve",
            i == 0 || (points[i - 1].peak_bytes < point.peak_bytes && points[i - 1].time_ns > point.time_ns),
            [&] { return text + " is not beyond the one before"; });
      if (report_.is_searched) {
        const std::optional<int64_t> best = best_time_ns(possible(subject), point.peak_bytes);
        claim(subject, "curve", best && point.time_ns >= *best, [&] { return text + " is impossible"; });
      }
      if (i % ((points.size() + 2) / 3) != 0) continue;  // Plans take max_here of the time.
      const std::optional<Plan> at_point = plan(subject, point.peak_bytes);
      claim(subject, "curve",
            at_point && at_point->time_ns && (*at_point->time_ns <= point.time_ns || !subject.is_monotone),
            [&] { return text + "; " + (at_point ? text_of(*at_point) : "not applicable there"); });
    }
  }

  /// Checks that at every budget the plan of `better` is as good as that of `other`.
  void compare(const std::string& name, const Subject& better, const Subject& other) {
    const std::map<int64_t, Plan>& plans = plans_[better.name];
    for (const auto& [budget_bytes, plan] : plans_[other.name]) {
      const auto candidate = plans.find(budget_bytes);
      if (candidate == plans.end()) continue;
      const bool may_be_slower = name == "auto-beaten" && other.is_exact &&
                                 candidate->second.result.status == PlanStatus::kTimeout &&
                                 plan.result.status == PlanStatus::kOptimal;
      const bool holds = may_be_slower ? candidate->second.time_ns.has_value() : is_as_good(candidate->second, plan);
      claim(other, name, holds,
            [&, plan = plan] { return text_of(plan) + "; " + better.name + ": " + text_of(candidate->second); });
    }
  }

  const Problem& problem_;
  ClaimOptions options_;
  ClaimReport report_;
  std::optional<std::vector<BestTime>> ordered_;  ///< front over schedules that keep the order
  std::optional<std::vector<BestTime>> any_;      ///< front over all schedules
  std::vector<Subject> subjects_ = subjects();
  std::vector<int64_t> budgets_;
  std::map<std::string, std::map<int64_t, Plan>> plans_;  ///< for each subject and budget
  std::set<std::pair<std::string, int64_t>> checked_smallest_;
};

}  // namespace

ClaimReport check_claims(const Input& input, const ClaimOptions& options) {
  const Problem problem = input.chain ? make_problem(*input.chain) : make_problem(Graph(input.graph));
  return Checker(problem, options).run();
}

}  // namespace headroom::internal::testing
