#include "headroom/plan/planners.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

#include "headroom/algorithm/pareto.h"
#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/auto/auto.h"
#include "headroom/plan/chain/binomial.h"
#include "headroom/plan/chain/chain.h"
#include "headroom/plan/chain/even.h"
#include "headroom/plan/chain/peak_cubic.h"
#include "headroom/plan/chain/peak_linear.h"
#include "headroom/plan/chain/sqrt.h"
#include "headroom/plan/exact/exhaustive.h"
#include "headroom/plan/graph/division_tree.h"
#include "headroom/plan/graph/lower_sets.h"

namespace headroom {
using namespace internal;
namespace {

PlanResult store_all_plan(const Problem& problem, const PlanRequest&, const PlannerOptions&) {
  PlanResult result;
  result.status = PlanStatus::kFeasible;
  result.schedule = store_all(problem.graph);
  return result;
}

PlanResult even_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_even(*problem.chain, request, EvenOptions{{options.reentrant}, options.segments});
}

PlanResult sqrt_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_sqrt(*problem.chain, request, {options.reentrant});
}

PlanResult binomial_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_binomial(*problem.chain, request, {options.segments});
}

PlanResult peak_cubic_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_peak_cubic(*problem.chain, request, {options.reentrant});
}

PlanResult peak_linear_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_peak_linear(*problem.chain, request, {options.reentrant});
}

PlanResult chain_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_chain(*problem.chain, request, {options.slots});
}

/// Plans a problem by `division-tree`. On a chain, the division tree is one linear node, whose chain case is
/// peak-cubic's objective.
PlanResult division_tree_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  if (problem.chain) return peak_cubic_plan(problem, request, options);
  return plan_division_tree(problem.graph, request);
}

PlanResult lower_sets_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions& options) {
  return plan_lower_sets(problem.graph, request, {options.exact});
}

PlanResult exhaustive_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions&) {
  return plan_exhaustive(problem.graph, request);
}

PlanResult auto_plan(const Problem& problem, const PlanRequest& request, const PlannerOptions&) {
  return plan_auto(problem, request);
}

constexpr bool kChains = false;
constexpr bool kGraphs = true;

constexpr std::array<Planner, 11> kPlanners = {{
    {.name = "store-all",
     .takes_graphs = kGraphs,
     .minimises = Minimises::kTime,
     .source = "plain training",
     .plan = store_all_plan},
    {.name = "even",
     .takes_graphs = kChains,
     .minimises = Minimises::kPeak,
     .chooses_checkpoints = true,
     .source = "PyTorch's checkpoint_sequential",
     .plan = even_plan},
    {.name = "sqrt",
     .takes_graphs = kChains,
     .minimises = Minimises::kPeak,
     .chooses_checkpoints = true,
     .source = "Chen et al. 2016, arXiv 1604.06174",
     .plan = sqrt_plan},
    {.name = "binomial",
     .takes_graphs = kChains,
     .minimises = Minimises::kTime,
     .cost = CostClass::kSteep,
     .source = "Griewank & Walther 2000, Algorithm 799: revolve",
     .plan = binomial_plan},
    {.name = "peak-cubic",
     .takes_graphs = kChains,
     .minimises = Minimises::kPeak,
     .chooses_checkpoints = true,
     .source = "Hong et al. 2025, arXiv 2502.12499, Theorem 1",
     .plan = peak_cubic_plan},
    {.name = "peak-linear",
     .takes_graphs = kChains,
     .minimises = Minimises::kPeak,
     .chooses_checkpoints = true,
     .source = "Hong et al. 2025, arXiv 2502.12499",
     .plan = peak_linear_plan},
    {.name = "chain",
     .takes_graphs = kChains,
     .minimises = Minimises::kTime,
     .needs_budget = true,
     .cost = CostClass::kSteep,
     .source = "Beaumont et al. 2019, arXiv 1911.13214 (Rotor)",
     .plan = chain_plan},
    {.name = "division-tree",
     .takes_graphs = kGraphs,
     .minimises = Minimises::kPeak,
     .chooses_checkpoints = true,
     .source = "Feng & Huang 2021, arXiv 1808.00079",
     .plan = division_tree_plan},
    {.name = "lower-sets",
     .takes_graphs = kGraphs,
     .minimises = Minimises::kTime,
     .cost = CostClass::kSteep,
     .source = "Kusumoto et al. 2019, arXiv 1905.11722",
     .plan = lower_sets_plan},
    {.name = "exhaustive",
     .takes_graphs = kGraphs,
     .minimises = Minimises::kTime,
     .source = "every schedule, small inputs only",
     .plan = exhaustive_plan},
    {.name = "auto",
     .takes_graphs = kGraphs,
     .minimises = Minimises::kTime,
     .needs_budget = true,
     .has_front = true,
     .cost = CostClass::kSearch,
     .source = "minimum cuts, descent and polish, ours",
     .plan = auto_plan,
     .curve = auto_curve},
}};

PlanStatus status_of(const Plan& plan) {
  if (!plan.result.schedule) return plan.result.status;
  const bool meets_bound = plan.planner->minimises == Minimises::kTime && *plan.time_ns == plan.result.lower_bound_ns;
  return meets_bound ? PlanStatus::kOptimal : plan.result.status;
}

}  // namespace

std::span<const Planner> planners() { return kPlanners; }

const Planner& default_planner() { return kPlanners.back(); }

const Planner& get_planner(std::string_view name) {
  std::string known;
  for (const Planner& planner : kPlanners) {
    if (planner.name == name) return planner;
    known += (known.empty() ? "" : ", ") + std::string(planner.name);
  }
  throw InvalidInput("there is no planner " + quote(name) + "; there are " + known);
}

std::string_view name_of(PlanStatus status) {
  switch (status) {
    case PlanStatus::kOptimal:
      return "optimal";
    case PlanStatus::kFeasible:
      return "feasible";
    case PlanStatus::kInfeasible:
      return "infeasible";
    case PlanStatus::kNotFound:
      return "not-found";
    case PlanStatus::kTimeout:
      return "timeout";
  }
  throw InternalError("a plan status without a name");
}

namespace {

/// Runs the planner and the simulator for make_plan().
Plan plan_and_simulate(const Planner& planner, const Problem& problem, const PlanRequest& request,
                       const PlannerOptions& options) {
  Plan plan;
  plan.planner = &planner;
  plan.on_chain = problem.chain.has_value();
  plan.budget_bytes = request.budget_bytes;
  const auto start = std::chrono::steady_clock::now();
  plan.result = planner.plan(problem, request, options);
  plan.solve_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  plan.base_time_ns = problem.base_time_ns;
  plan.result.lower_bound_ns = std::max(plan.result.lower_bound_ns, problem.lower_bound_ns);
  if (!plan.result.schedule) {
    plan.result.smallest_budget_bytes = std::max<int64_t>(plan.result.smallest_budget_bytes, 0);
    return plan;
  }
  const Simulation simulation = simulate(problem.graph, *plan.result.schedule);
  if (simulation.error)
    throw InternalError(std::string(planner.name) + ": made an invalid schedule, step " +
                        std::to_string(simulation.error->step) + ": " + simulation.error->message);
  if (plan.result.smallest_budget_bytes < 0) plan.result.smallest_budget_bytes = simulation.peak_bytes;
  if (request.budget_bytes && simulation.peak_bytes > *request.budget_bytes) {
    plan.result.status = PlanStatus::kInfeasible;
    plan.result.schedule.reset();
    plan.result.checkpoints.clear();
    return plan;
  }
  plan.peak_bytes = simulation.peak_bytes;
  plan.time_ns = simulation.time_ns;
  plan.result.status = status_of(plan);
  return plan;
}

}  // namespace

Plan make_plan(const Planner& planner, const Problem& problem, const PlanRequest& request,
               const PlannerOptions& options) {
  const std::string name(planner.name);
  if (!planner.takes_graphs && !problem.chain)
    throw NotApplicable(name + ": takes chains, and graph " + quote(problem.graph.name()) + " is not one");
  if (planner.needs_budget && !request.budget_bytes) throw InvalidInput(name + ": needs a budget");
  try {
    return plan_and_simulate(planner, problem, request, options);
  } catch (const TooLarge& error) {
    const std::string what = error.what();
    throw NotApplicable(what.starts_with(name + ": ") ? what : name + ": " + what);
  }
}

std::optional<Plan> find_plan_without_reruns(const Problem& problem) {
  Plan plan;
  plan.planner = &default_planner();
  plan.on_chain = problem.chain.has_value();
  const auto start = std::chrono::steady_clock::now();
  plan.result.schedule = store_all_in_place(problem.graph);
  plan.solve_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const Simulation simulation = simulate(problem.graph, *plan.result.schedule);
  HEADROOM_ASSERT(!simulation.error);
  if (simulation.time_ns != problem.lower_bound_ns) return std::nullopt;
  plan.peak_bytes = simulation.peak_bytes;
  plan.time_ns = simulation.time_ns;
  plan.base_time_ns = problem.base_time_ns;
  plan.result.lower_bound_ns = problem.lower_bound_ns;
  plan.result.status = PlanStatus::kOptimal;
  return plan;
}

std::vector<CurvePoint> plan_curve(const Planner& planner, const Problem& problem, int points,
                                   const PlanRequest& request, const PlannerOptions& options) {
  if (planner.curve != nullptr) return planner.curve(problem, request.limits);
  const int64_t most_bytes = problem.base_peak_bytes;
  std::vector<CurvePoint> found;
  // A planner may accept at one budget what it refuses at another.
  std::exception_ptr refusal;
  const auto try_plan = [&](std::optional<int64_t> budget_bytes) -> std::optional<int64_t> {
    try {
      const Plan plan = make_plan(planner, problem, {budget_bytes, request.limits}, options);
      if (plan.result.schedule) found.push_back({*plan.peak_bytes, *plan.time_ns});
      return plan.result.smallest_budget_bytes;
    } catch (const NotApplicable&) {
      refusal = std::current_exception();
      return std::nullopt;
    }
  };
  if (planner.minimises == Minimises::kPeak) {
    try_plan(std::nullopt);
  } else {
    const int64_t least_bytes = std::min(try_plan(most_bytes).value_or(problem.graph.resident_bytes()), most_bytes);
    for (int i = 0; i + 1 < points; ++i)
      try_plan(least_bytes + static_cast<int64_t>(static_cast<double>(most_bytes - least_bytes) * i / (points - 1)));
  }
  if (found.empty() && refusal) std::rethrow_exception(refusal);
  return pareto_front(std::move(found), &CurvePoint::peak_bytes, &CurvePoint::time_ns);
}

}  // namespace headroom
