#include "headroom/plan/chain/chain.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "headroom/algorithm/workers.h"
#include "headroom/plan/chain/needs.h"
#include "headroom/plan/chain/steps.h"
#include "headroom/plan/chain/table.h"

namespace headroom::internal {
namespace {

/// Maximum number of stages for which a table is computed, which takes O(L^3).
constexpr int kMaxStages = 2048;
/// Maximum number of stages for which the smallest budget is computed though all stages can be recorded.
constexpr int kMaxStagesForSmallestBudget = 1024;
/// Maximum size of a table.
constexpr size_t kMaxTableBytes = size_t{4} << 30;

size_t at(int i) { return static_cast<size_t>(i); }

/// The first decision for a segment: record its first stage, or keep the output of stage `keep`.
struct Decision {
  std::optional<int> keep;
};

/// Returns the schedule in which `decide(i, l, m)` says how to reverse the segments i < l within m. Steps are written
/// in order of time. What follows a segment waits on a stack instead of a recursion, which would be as deep as the
/// chain is long.
template <typename Decide>
Schedule make_schedule(const ChainMoments& moments, const ChainNeeds& needs, int64_t capacity, const Decide& decide) {
  struct Segment {
    int i = 0;
    int l = 0;
    int64_t m = 0;
  };
  enum class After : uint8_t { kReverse, kBackward };
  struct Todo {
    After what = After::kReverse;
    Segment segment;  // With kBackward, only its stage i is used.
  };
  ChainSteps steps(needs.length);
  std::vector<Todo> todo{{After::kReverse, {1, needs.length, capacity}}};
  while (!todo.empty()) {
    const auto [what, segment] = todo.back();
    todo.pop_back();
    auto [i, l, m] = segment;
    if (what == After::kBackward) {
      steps.backward_and_drop(i);
      continue;
    }
    // The stages after l were reversed from a{l}, which is no longer needed.
    if (l < needs.length) steps.drop_output(l);
    while (i < l) {
      const Decision decision = decide(i, l, m);
      if (decision.keep) {
        const int j = *decision.keep;
        todo.push_back({After::kReverse, {i, j, m}});
        for (int k = i; k <= j; ++k) {
          if (moments.forward_by_recording(k)) {
            steps.record(k);
            steps.drop_tape(k);
          } else {
            steps.forward(k);
          }
          if (k > i) steps.drop_output(k - 1);
        }
        m -= needs.output[at(j)];
        i = j + 1;
      } else {
        steps.record(i);
        todo.push_back({After::kBackward, {i, i, 0}});
        m -= needs.tape[at(i)];
        ++i;
      }
    }
    steps.record(i);
    steps.backward_and_drop(i);
  }
  return steps.take();
}

Schedule record_all(int length) {
  ChainSteps steps(length);
  for (int i = 1; i <= length; ++i) steps.record(i);
  for (int i = length; i >= 1; --i) steps.backward_and_drop(i);
  return steps.take();
}

/// Returns the schedule that takes, for each segment, the first decision with the least time of the table.
template <typename Number>
Schedule follow_table(const ChainMoments& moments, const ChainNeeds& needs, int64_t capacity,
                      const ChainTable<Number>& table, const std::vector<int64_t>& forward_ns) {
  return make_schedule(moments, needs, capacity, [&](int i, int l, int64_t m) -> Decision {
    const double least_ns = table.extra_ns(i, l, m);
    const int64_t beside_tape = m - needs.tape[at(i)];
    if (m >= needs.record(i, l) && beside_tape >= 0 && table.extra_ns(i + 1, l, beside_tape) == least_ns) return {};
    double forward_sum_ns = 0;
    for (int j = i; j < l; ++j) {
      forward_sum_ns += static_cast<double>(forward_ns[at(j - 1)]);
      const int64_t beside_output = m - needs.output[at(j)];
      if (beside_output >= 0 &&
          forward_sum_ns + table.extra_ns(j + 1, l, beside_output) + table.extra_ns(i, j, m) == least_ns)
        return {j};
    }
    throw InternalError("chain: no decision takes the time that the table has");
  });
}

/// Returns the schedule that follows the smallest memory of each segment, which is at most m: it records where the
/// memory suffices, and else keeps the output nearest the middle for which it suffices, because bisection recomputes
/// the least.
Schedule follow_least_memory(const ChainMoments& moments, const ChainNeeds& needs, int64_t capacity,
                             const SegmentArray<int64_t>& least) {
  return make_schedule(moments, needs, capacity, [&](int i, int l, int64_t m) -> Decision {
    if (std::max(needs.record(i, l), needs.tape[at(i)] + least(i + 1, l)) <= m) return {};
    Decision nearest;
    const auto from_middle = [&](int j) { return std::abs(2 * j - (i + l - 1)); };
    for (int j = i; j < l; ++j)
      if (std::max(least(i, j), needs.output[at(j)] + least(j + 1, l)) <= m &&
          (!nearest.keep || from_middle(j) < from_middle(*nearest.keep)))
        nearest.keep = j;
    HEADROOM_ASSERT(nearest.keep.has_value());
    return nearest;
  });
}

/// Returns memory in slots, rounded up. The result is at most the smallest memory computed in slots.
SegmentArray<int64_t> in_slots(SegmentArray<int64_t> bytes, int64_t slot_bytes) {
  for (int64_t& item : bytes.items()) item = (item + slot_bytes - 1) / slot_bytes;
  return bytes;
}

struct Solution {
  Schedule schedule;
  double extra_ns = 0;
};

/// Returns the smallest number of slots for each time in a table, the largest first. Returns at most `most` of them,
/// and only `capacity` where `most` is 1.
template <typename Number>
std::vector<int64_t> capacities_of(const ChainTable<Number>& table, int length, int64_t capacity, int64_t most) {
  std::vector<int64_t> capacities;
  const auto extra_ns = [&](int64_t m) { return table.extra_ns(1, length, m); };
  if (most == 1) return {capacity};
  for (int64_t m = capacity; m >= 0 && extra_ns(m) < std::numeric_limits<double>::infinity(); --m)
    if (m == 0 || extra_ns(m - 1) > extra_ns(m)) capacities.push_back(m);
  const auto found = static_cast<int64_t>(capacities.size());
  if (found <= most) return capacities;
  std::vector<int64_t> spread;
  for (int64_t i = 0; i < most; ++i) spread.push_back(capacities[static_cast<size_t>(i * (found - 1) / (most - 1))]);
  return spread;
}

/// Returns plans of least time in slots: one within `capacity`, or those of capacities_of(). A plan is missing where
/// its time is more than the table's numbers can represent, or where there is no plan.
template <typename Number>
std::vector<Solution> solve(const ChainMoments& moments, const ChainNeeds& needs, int64_t capacity, int64_t most,
                            const SegmentArray<int64_t>& least, const std::vector<int64_t>& forward_ns, int threads) {
  ChainTableOptions options;
  options.threads = thread_count(threads);
  const ChainTable<Number> table(needs, capacity, least, forward_ns, kMaxTableBytes, options);
  std::vector<Solution> solutions;
  for (const int64_t within : capacities_of(table, needs.length, capacity, most)) {
    const double extra_ns = table.extra_ns(1, needs.length, within);
    if (extra_ns == std::numeric_limits<double>::infinity()) continue;
    solutions.push_back({follow_table(moments, needs, within, table, forward_ns), extra_ns});
  }
  return solutions;
}

/// Returns plans of least time in slots, computed with 32-bit numbers where those suffice, which is faster.
std::vector<Solution> solve(const ChainMoments& moments, const ChainNeeds& needs, int64_t capacity, int64_t most,
                            const SegmentArray<int64_t>& least, const std::vector<int64_t>& forward_ns, int threads) {
  double forward_sum_ns = 0;
  for (const int64_t ns : forward_ns) forward_sum_ns += static_cast<double>(ns);
  const double most_ns = 2.0 * needs.length * forward_sum_ns;
  if (most_ns >= ChainTable<double>::kMostNs)
    throw NotApplicable(
        "chain: forward times are too long to be counted exactly; expected 2 * (stages) * (their sum) below "
        "2^53 ns, found " +
        std::to_string(needs.length) + " stages and a sum of " + std::to_string(static_cast<int64_t>(forward_sum_ns)) +
        " ns");
  constexpr double kMaxSmallNs = ChainTable<uint32_t>::kMostNs;
  if (forward_sum_ns < kMaxSmallNs) {
    std::vector<Solution> solutions = solve<uint32_t>(moments, needs, capacity, most, least, forward_ns, threads);
    // Of several plans, the slowest may be missing if the others come close to the largest number.
    const bool has_all =
        !solutions.empty() && (most == 1 || solutions.back().extra_ns + forward_sum_ns < kMaxSmallNs / 2);
    if (has_all || most_ns < kMaxSmallNs) return solutions;
  }
  return solve<double>(moments, needs, capacity, most, least, forward_ns, threads);
}

void check_length(const Chain& chain) {
  if (chain.length() > kMaxStages)
    throw NotApplicable("chain: takes at most " + std::to_string(kMaxStages) + " stages, found " +
                        std::to_string(chain.length()) +
                        ", unless the budget is enough to record all of them: join stages");
}

int64_t resident_bytes_of(const Chain& chain) {
  return chain.resident_bytes + chain.input_bytes + chain.gradient_bytes(chain.length());
}

std::vector<int64_t> forward_times(const Chain& chain) {
  std::vector<int64_t> forward_ns;
  for (const Stage& stage : chain.stages) forward_ns.push_back(stage.forward_ns);
  return forward_ns;
}

}  // namespace

PlanResult plan_chain(const Chain& chain, const PlanRequest& request, const ChainOptions& options) {
  if (const std::optional<std::string> problem = lint(chain)) throw InvalidInput("chain: " + *problem);
  if (!request.budget_bytes) throw InvalidInput("chain: expected a budget, found none");
  if (options.slots < 1) throw InvalidInput("chain: slots must be at least 1, found " + std::to_string(options.slots));

  const int length = chain.length();
  const int64_t resident_bytes = resident_bytes_of(chain);
  const ChainMoments moments(chain);
  PlanResult result;
  const std::vector<int64_t> forward_ns = forward_times(chain);
  for (const Stage& stage : chain.stages) result.lower_bound_ns += stage.forward_ns + stage.backward_ns;

  // The bytes that the budget leaves beside resident values, without the shift that is part of all needs.
  const int64_t left_bytes = *request.budget_bytes < resident_bytes ? -1 : *request.budget_bytes - resident_bytes;
  const bool fits_recorded = left_bytes >= std::max<int64_t>(moments.record_all_bytes() - moments.shift_bytes(), 0);
  if (fits_recorded) {
    result.status = PlanStatus::kOptimal;
    result.schedule = record_all(length);
    if (length > kMaxStagesForSmallestBudget) return result;
  }
  check_length(chain);
  const ChainNeeds needs_bytes = moments.needs(1);
  const SegmentArray<int64_t> least_bytes = least_memory(needs_bytes);
  const int64_t smallest_bytes = std::max<int64_t>(least_bytes(1, length) - moments.shift_bytes(), 0);
  result.smallest_budget_bytes = resident_bytes + smallest_bytes;
  if (fits_recorded) return result;
  if (left_bytes < smallest_bytes) {
    result.status = PlanStatus::kInfeasible;
    return result;
  }

  const int64_t slot_bytes = std::max<int64_t>(left_bytes / options.slots, 1);
  const int64_t capacity_bytes = left_bytes + moments.shift_bytes();
  const int64_t capacity = capacity_bytes / slot_bytes;
  std::vector<Solution> solutions = solve(moments, moments.needs(slot_bytes), capacity, 1,
                                          in_slots(least_bytes, slot_bytes), forward_ns, request.limits.threads);
  const bool found = !solutions.empty();
  HEADROOM_ASSERT(found || slot_bytes > 1);
  result.schedule = found ? std::move(solutions.front().schedule)
                          : follow_least_memory(moments, needs_bytes, capacity_bytes, least_bytes);
  result.status =
      slot_bytes == 1 || (found && solutions.front().extra_ns == 0) ? PlanStatus::kOptimal : PlanStatus::kFeasible;
  return result;
}

std::vector<Schedule> plan_chain_front(const Chain& chain, int64_t most_bytes, int64_t slots, int64_t most_plans,
                                       int threads) {
  if (const std::optional<std::string> problem = lint(chain)) throw InvalidInput("chain: " + *problem);
  check_length(chain);
  const ChainMoments moments(chain);
  std::vector<Schedule> schedules;
  const int64_t left_bytes = most_bytes - resident_bytes_of(chain);
  if (left_bytes < 0) return schedules;
  const int64_t slot_bytes = std::max<int64_t>(left_bytes / slots, 1);
  const ChainNeeds needs_bytes = moments.needs(1);
  const SegmentArray<int64_t> least_bytes = least_memory(needs_bytes);
  for (Solution& solution :
       solve(moments, moments.needs(slot_bytes), (left_bytes + moments.shift_bytes()) / slot_bytes,
             std::max<int64_t>(most_plans, 2), in_slots(least_bytes, slot_bytes), forward_times(chain), threads))
    schedules.push_back(std::move(solution.schedule));
  const int64_t smallest_bytes = std::max(least_bytes(1, chain.length()), moments.shift_bytes());
  if (smallest_bytes <= left_bytes + moments.shift_bytes())
    schedules.push_back(follow_least_memory(moments, needs_bytes, smallest_bytes, least_bytes));
  return schedules;
}

}  // namespace headroom::internal
