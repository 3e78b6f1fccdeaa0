#include "headroom/plan/chain/binomial.h"

#include <algorithm>
#include <limits>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/steps.h"

namespace headroom::internal {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
/// Number of stages above which few numbers of states are tried, because each plan takes long to make.
constexpr int kMaxStagesForFineRange = 10'000;
/// Maximum number of forwards of a plan for a longer chain.
constexpr int64_t kMaxForwardsIfLong = 10'000'000;
constexpr int kFineStepFraction = 64;  ///< Successive numbers of states that are tried differ by this fraction (1/64).
/// The same fraction (1/8) on longer chains, except near the best number of states.
constexpr int kCoarseStepFraction = 8;

/// Returns C(s+r, s), or kMost where it is too large to compute; 0 for negative r or s.
int64_t beta(int64_t s, int64_t r) {
  if (r < 0 || s < 0) return 0;
  int64_t product = 1;
  const int64_t few = std::min(s, r);
  for (int64_t k = 1; k <= few; ++k) {
    if (__builtin_mul_overflow(product, std::max(s, r) + k, &product)) return kMost;
    product /= k;
  }
  return product;
}

/// Returns the r with beta(s, r-1) < length <= beta(s, r).
int64_t repetitions(int64_t length, int64_t s) {
  int64_t r = 0;
  if (s == 1) return length - 1;  // Because beta(1, r) = r + 1.
  while (beta(s, r) < length) ++r;
  return r;
}

/// Returns how many stages to run before keeping a state, when `length` stages are reversed with `s` states. Every
/// number for which both parts need at most r repetitions is optimal; this is the smallest.
int64_t first_part(int64_t length, int64_t s) {
  const int64_t r = repetitions(length, s);
  return std::max({int64_t{1}, length - beta(s - 1, r), beta(s, r - 2)});
}

/// A part of the schedule that reverses stages first..last with `s` states. Their input is live, kept by the caller,
/// and one of these states.
struct Part {
  int first;
  int last;
  int64_t states;
  int drop_before;  ///< Stage whose output is dropped when this part begins, or 0.
};

Schedule schedule_with(const Chain& chain, int64_t states) {
  ChainSteps steps(chain.length());
  std::vector<Part> parts = {{1, chain.length(), states, 0}};
  while (!parts.empty()) {
    const Part part = parts.back();
    parts.pop_back();
    if (part.drop_before != 0) steps.drop_output(part.drop_before);
    const int length = part.last - part.first + 1;
    if (length == 1) {
      steps.record(part.first);
      steps.backward_and_drop(part.first);
      continue;
    }
    // With one state, no other can be kept: run up to the last stage, reverse it, and start again.
    const int split =
        part.states == 1 ? part.last - 1 : part.first - 1 + static_cast<int>(first_part(length, part.states));
    for (int i = part.first; i <= split; ++i) {
      steps.forward(i);
      if (i > part.first) steps.drop_output(i - 1);
    }
    parts.push_back({part.first, split, part.states, split});
    parts.push_back({split + 1, part.last, std::max<int64_t>(part.states - 1, 1), 0});
  }
  return steps.take();
}

}  // namespace

int64_t binomial_forwards(int64_t length, int64_t checkpoints) {
  const int64_t r = repetitions(length, checkpoints);
  return r * length - beta(checkpoints + 1, r - 1);
}

PlanResult plan_binomial(const Chain& chain, const PlanRequest& request, const BinomialOptions& options) {
  const int length = chain.length();
  if (options.checkpoints && *options.checkpoints < 1)
    throw InvalidInput("binomial: the number of checkpoints must be at least 1 (the input is one), found " +
                       std::to_string(*options.checkpoints));
  PlanResult result;
  if (options.checkpoints) {
    const int states = std::min(*options.checkpoints, length);
    if (binomial_forwards(length, states) > BinomialOptions::kMostForwards)
      throw NotApplicable("binomial: " + std::to_string(states) + " checkpoints for " + std::to_string(length) +
                          " stages need more than " + std::to_string(BinomialOptions::kMostForwards) +
                          " forwards; give it more checkpoints");
    result.status = PlanStatus::kFeasible;
    result.schedule = schedule_with(chain, states);
    return result;
  }
  // The number of forwards falls as states are added, until all are kept. Many numbers of states give plans of the same
  // cost, so long chains try a geometric range of them.
  const Graph graph = to_graph(chain);
  const bool tries_all = length < 128 && binomial_forwards(length, 1) <= BinomialOptions::kMostForwards;
  result.status = tries_all ? PlanStatus::kInfeasible : PlanStatus::kNotFound;
  int64_t best_time_ns = kMost;
  int64_t best_peak_bytes = kMost;
  int best_states = 0;
  result.smallest_budget_bytes = kMost;
  const int64_t max_forwards = length <= kMaxStagesForFineRange ? BinomialOptions::kMostForwards : kMaxForwardsIfLong;
  const auto try_states = [&](int states) {
    if (binomial_forwards(length, states) > max_forwards) return;
    Schedule schedule = schedule_with(chain, states);
    const std::optional<Simulation> judged = find_simulation(graph, schedule);
    if (!judged) return;  // Its time does not fit int64, but that of a plan with more states does.
    const Simulation& simulation = *judged;
    result.smallest_budget_bytes = std::min(result.smallest_budget_bytes, simulation.peak_bytes);
    if (request.budget_bytes && simulation.peak_bytes > *request.budget_bytes) return;
    const int64_t time_ns = request.budget_bytes ? simulation.time_ns : 0;
    if (std::pair(time_ns, simulation.peak_bytes) >= std::pair(best_time_ns, best_peak_bytes)) return;
    best_time_ns = time_ns;
    best_peak_bytes = simulation.peak_bytes;
    best_states = states;
    result.status = PlanStatus::kFeasible;
    result.schedule = std::move(schedule);
  };
  const auto next = [](int states, int part) { return states + std::max(1, states / part); };
  const int part = length <= kMaxStagesForFineRange ? kFineStepFraction : kCoarseStepFraction;
  for (int states = 1; states <= length; states = next(states, part)) try_states(states);
  if (result.smallest_budget_bytes == kMost) throw TooLarge("binomial: the time of no plan fits 64 bits");
  if (part == kFineStepFraction || best_states == 0) return result;
  // Longer chains were tried with a coarse range; now try a finer one on both sides of the best.
  const int last = std::min(length, next(best_states, part) - 1);
  for (int states = best_states - best_states / kCoarseStepFraction + 1; states <= last;
       states = next(states, kFineStepFraction))
    try_states(states);
  return result;
}

}  // namespace headroom::internal
