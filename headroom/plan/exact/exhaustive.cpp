#include "headroom/plan/exact/exhaustive.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <span>
#include <unordered_map>

#include "headroom/plan/bounds/time_bound.h"
#include "headroom/plan/exact/state.h"

namespace headroom::internal {
namespace {

/// Returns the sum of two numbers, or the number nearest to it where it does not fit int64.
int64_t capped_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

/// The values of one op as masks.
struct OpMasks {
  Mask inputs = 0;
  Mask outputs = 0;
  Mask overwrites = 0;
};

enum class Goal : uint8_t { kLeastTime, kLeastPeak };

}  // namespace

class ExhaustiveSearch::Search {
 public:
  Search(const Graph& graph, bool keep_order) : graph_(graph), memory_(graph), values_(memory_.values()) {
    const NeededGroups groups = find_needed_groups(graph);
    std::vector<int> number(groups.ops.size(), kOptional);
    std::vector<OpId> last_op;  // By needed group: its last op in base order.
    for (size_t g = 0; g < groups.ops.size(); ++g) {
      if (groups.needed[g] == 0) continue;
      number[g] = static_cast<int>(last_op.size());
      fastest_ns_.push_back(fastest_ns(graph, groups.ops[g]));
      Mask before = 0;
      for (size_t other = 0; keep_order && other < last_op.size(); ++other)
        if (last_op[other] < groups.ops[g].front()) before |= bit(other);
      before_.push_back(before);
      last_op.push_back(groups.ops[g].back());
      all_groups_ |= bit(fastest_ns_.size() - 1);
    }
    outputs_ = memory_.mask_of(graph.outputs());
    needed_inputs_.assign(fastest_ns_.size(), ~Mask{0});
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = graph.ops()[i];
      const OpMasks masks{memory_.mask_of(op.inputs), memory_.mask_of(op.outputs), memory_.mask_of(op.overwrites)};
      if (masks.overwrites != 0) first_outputs_ |= memory_.mask_of(std::span(op.outputs).first(1));
      ops_.push_back(masks);
      const int group = number[static_cast<size_t>(groups.group_of_op[i])];
      group_of_op_.push_back(group);
      if (group >= 0) needed_inputs_[static_cast<size_t>(group)] &= masks.inputs;
    }
    describe_producers(groups);
  }

  /// Searches for a schedule within the budget that costs less than `cost_limit`. Returns whether it found one. Where
  /// it did not, there is none, or timed_out() is true.
  bool run(Goal goal, int64_t budget_bytes, int64_t cost_limit, int64_t max_states) {
    goal_ = goal;
    cost_limit_ = cost_limit;
    budget_bytes_ = budget_bytes;
    found_.clear();
    states_.clear();
    queue_ = {};
    timed_out_ = false;
    const int64_t start_cost = goal == Goal::kLeastPeak ? graph_.resident_bytes() : 0;
    if (start_cost < cost_limit) reach(State{}, start_cost, kNone, Step::run(OpId{0}));
    State state;
    while (!queue_.empty()) {
      const size_t number = queue_.top().second;
      queue_.pop();
      if (found_[number].done) continue;
      found_[number].done = true;
      const int64_t cost = found_[number].cost;
      states_.read(number, state);
      if (state.started == all_groups_ && (state.alive & outputs_) == outputs_) {
        goal_number_ = number;
        return true;
      }
      if (state_count() > max_states) {
        timed_out_ = true;
        return false;
      }
      expand(state, cost, number);
    }
    return false;
  }

  bool timed_out() const { return timed_out_; }
  int64_t state_count() const { return static_cast<int64_t>(found_.size()); }  ///< Number of states in the last run.
  int64_t cost() const { return found_[goal_number_].cost; }

  Schedule schedule() const {
    Schedule result;
    for (size_t at = goal_number_; found_[at].previous != kNone; at = found_[at].previous)
      result.steps.push_back(found_[at].step);
    std::ranges::reverse(result.steps);
    return result;
  }

 private:
  struct Found {
    int64_t cost;
    int64_t rest;  ///< Lower bound on the remaining cost, which is least_rest() of the state.
    size_t previous;
    Step step;
    bool done;
  };

  /// How a value can be recomputed.
  struct Producers {
    Mask inputs = ~Mask{0};  ///< Values that all of them read.
    int64_t fastest_ns = std::numeric_limits<int64_t>::max();
    int needed_group = kOptional;  ///< Bit of their group in State::started.
    int group = 0;                 ///< Number of their group among all groups.
  };

  void describe_producers(const NeededGroups& groups) {
    producers_.resize(values_.size());
    for (size_t i = 0; i < ops_.size(); ++i) {
      for (Mask rest = ops_[i].outputs; rest != 0; rest &= rest - 1) {
        Producers& producers = producers_[static_cast<size_t>(std::countr_zero(rest))];
        producers.inputs &= ops_[i].inputs;
        producers.fastest_ns = std::min(producers.fastest_ns, graph_.ops()[i].time_ns);
        producers.needed_group = group_of_op_[i];
        producers.group = groups.group_of_op[i];
      }
    }
    slowest_missing_ns_.resize(groups.ops.size(), 0);
  }

  /// Returns the values that ops still to come may read, for their first runs or to recompute something.
  Mask useful(Mask started) {
    const auto [entry, is_new] = useful_.try_emplace(started, outputs_);
    Mask& useful = entry->second;
    if (!is_new) return useful;
    for (size_t i = 0; i < ops_.size(); ++i)
      if (group_of_op_[i] >= 0 && (started & group_bit(i)) == 0) useful |= ops_[i].inputs;
    for (Mask before = 0; before != useful;) {
      before = useful;
      for (const OpMasks& op : ops_)
        if ((op.outputs & useful) != 0) useful |= op.inputs;
    }
    return useful;
  }

  /// Returns a lower bound on the cost of all steps to come, if the goal is the least time. Values that first runs and
  /// the end of the step read must be live then. Each group that writes such a value that was produced and is missing
  /// has to run once more, and so do the groups that write missing inputs of such a run, each in the fastest way for
  /// the slowest of its values. No step lowers this bound by more than it costs, so a state that is taken from the
  /// queue has its least cost.
  int64_t least_rest(const State& state) {
    if (goal_ == Goal::kLeastPeak) return 0;
    const auto [entry, is_new] = needed_later_.try_emplace(state.started, outputs_);
    if (is_new)
      for (size_t g = 0; g < needed_inputs_.size(); ++g)
        if ((state.started & bit(g)) == 0) entry->second |= needed_inputs_[g];
    int64_t sum_ns = 0;
    touched_groups_.clear();
    Mask seen = state.alive;
    for (Mask open = entry->second & ~seen; open != 0;) {
      const Producers& producers = producers_[static_cast<size_t>(std::countr_zero(open))];
      seen |= open & -open;
      open &= open - 1;
      if (producers.needed_group != kOptional &&
          (state.started & bit(static_cast<size_t>(producers.needed_group))) == 0)
        continue;
      int64_t& slowest_ns = slowest_missing_ns_[static_cast<size_t>(producers.group)];
      touched_groups_.push_back(producers.group);
      if (producers.fastest_ns > slowest_ns) {
        sum_ns = capped_sum(sum_ns, producers.fastest_ns - slowest_ns);
        slowest_ns = producers.fastest_ns;
      }
      open |= producers.inputs & ~seen;
    }
    for (const int group : touched_groups_) slowest_missing_ns_[static_cast<size_t>(group)] = 0;
    return sum_ns;
  }

  /// Returns the bit of an op's needed group, or 0 for an op that only an alternative needs.
  Mask group_bit(size_t i) const { return group_of_op_[i] < 0 ? 0 : bit(static_cast<size_t>(group_of_op_[i])); }

  /// Returns whether current copies of some of these values hold ghosts.
  static bool hold_ghosts(const State& state, Mask values) {
    return std::ranges::any_of(state.ghosts, [&](const Ghost& ghost) { return (ghost.holders & values) != 0; });
  }

  void expand(const State& state, int64_t cost, size_t number) {
    memory_.restore(state);
    // A value that no later step can use is dropped before anything else is tried.
    const Mask useful_values = useful(state.started);
    for (Mask rest = state.alive & ~useful_values; rest != 0; rest &= rest - 1) {
      const ValueId id = values_[static_cast<size_t>(std::countr_zero(rest))];
      if (memory_.memory().is_held(id)) continue;
      take(state, Step::drop(id), cost, number);
      return;
    }
    bool cramped = false;
    for (size_t i = 0; i < ops_.size(); ++i) {
      // Few ops are ready, and the masks find them faster than find_fault() below.
      if ((ops_[i].inputs & ~state.alive) != 0) continue;
      const bool first_run = (group_bit(i) & ~state.started) != 0;
      if (first_run && (before_[static_cast<size_t>(group_of_op_[i])] & ~state.started) != 0) continue;
      // A run whose outputs are all live can still free what their current copies hold.
      const Mask missing = ops_[i].outputs & ~state.alive;
      if (!first_run && (missing & useful_values) == 0 && !hold_ghosts(state, ops_[i].outputs)) continue;
      if (memory_.memory().find_fault(Step::run(op_id(i)))) continue;
      if (!try_run(state, cost, number, Step::run(op_id(i)), first_run)) cramped = true;
      for (Mask rest = ops_[i].overwrites; rest != 0; rest &= rest - 1) {
        const Step step = Step::run_over(op_id(i), values_[static_cast<size_t>(std::countr_zero(rest))]);
        if (!memory_.memory().find_fault(step)) try_run(state, cost, number, step, first_run);
      }
    }
    if (cramped) try_drops(state, cost, number);
  }

  /// Adds the state after a run, if the run fits. Returns whether it fits without raising the least peak.
  bool try_run(const State& state, int64_t cost, size_t number, const Step& run, bool first_run) {
    const std::optional<int64_t> moment = memory_.memory().find_moment_bytes(run);
    if (!moment) return false;
    if (*moment <= budget_bytes_) take(state, run, cost_after(cost, index(run.op()), first_run, *moment), number);
    return *moment <= (goal_ == Goal::kLeastPeak ? cost : budget_bytes_);
  }

  /// Adds the states after drops of live values. Dropping a value early helps only before a run that does not fit, or
  /// that would raise the least peak.
  void try_drops(const State& state, int64_t cost, size_t number) {
    for (Mask rest = state.alive; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<size_t>(std::countr_zero(rest));
      // Dropping a held value frees nothing, but it must be dropped before a run in place can write it.
      const bool has_bytes = graph_.value(values_[v]).bytes > 0;
      const bool frees = memory_.memory().is_held(values_[v]) ? has_bytes && (first_outputs_ & bit(v)) != 0
                                                              : has_bytes || (memory_.holders() & bit(v)) != 0;
      if (frees) take(state, Step::drop(values_[v]), cost, number);
    }
  }

  /// Returns the cost after a run. Of time, only what exceeds the fastest op of each needed group counts: all schedules
  /// have the rest in common, and states with little recomputation are then expanded first.
  int64_t cost_after(int64_t cost, size_t i, bool first_run, int64_t moment) const {
    if (goal_ == Goal::kLeastPeak) return std::max(cost, moment);
    return capped_sum(cost,
                      graph_.ops()[i].time_ns - (first_run ? fastest_ns_[static_cast<size_t>(group_of_op_[i])] : 0));
  }

  /// Adds the state that a step leads to from the state that is being expanded.
  void take(const State& state, const Step& step, int64_t cost, size_t number) {
    if (cost >= cost_limit_) return;
    State next = memory_.after(state, step);
    if (step.is_run()) next.started |= group_bit(index(step.op()));
    reach(next, cost, number, step);
  }

  /// Stores a way to a state if it is the cheapest so far.
  void reach(const State& state, int64_t cost, size_t previous, Step step) {
    const auto [number, is_new] = states_.add(state);
    if (is_new) {
      found_.push_back(Found{cost, least_rest(state), previous, step, false});
    } else {
      Found& found = found_[number];
      if (found.done || found.cost <= cost) return;
      found.cost = cost;
      found.previous = previous;
      found.step = step;
    }
    const int64_t least_cost = capped_sum(cost, found_[number].rest);
    if (least_cost < cost_limit_) queue_.emplace(least_cost, number);
  }

  static constexpr int kOptional = -1;  ///< The number of a group that is not needed, which may run at any time.
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  const Graph& graph_;
  StateMemory memory_;  ///< The memory at the state that is being expanded.
  std::span<const ValueId> values_;
  Mask all_groups_ = 0;              ///< The needed groups.
  std::vector<Mask> before_;         ///< By needed group: the groups that must run before it to keep the order.
  std::vector<int64_t> fastest_ns_;  ///< By needed group: time of its fastest op.
  Mask outputs_ = 0;
  Mask first_outputs_ = 0;  ///< First outputs of ops that may run in place.
  std::vector<OpMasks> ops_;
  std::vector<int> group_of_op_;
  std::vector<Mask> needed_inputs_;        ///< By needed group: values that all of its ops read.
  std::vector<Producers> producers_;       ///< By value.
  std::unordered_map<Mask, Mask> useful_;  ///< By State::started: result of useful().
  /// By State::started: values that later first runs and the end of the step read.
  std::unordered_map<Mask, Mask> needed_later_;
  /// By group: time of its slowest missing value; 0 outside of least_rest().
  std::vector<int64_t> slowest_missing_ns_;
  std::vector<int> touched_groups_;  ///< Groups whose time least_rest() has set.

  Goal goal_ = Goal::kLeastTime;
  int64_t budget_bytes_ = 0;
  int64_t cost_limit_ = 0;
  bool timed_out_ = false;
  size_t goal_number_ = 0;
  StateTable states_;
  std::vector<Found> found_;  ///< By number of the state.
  using Open = std::pair<int64_t, size_t>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> queue_;
};

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Returns which size of a graph exceeds the limits, in words, or none.
std::optional<std::string> find_excess(const Graph& graph) {
  const auto values = std::ranges::count_if(graph.values(), [](const Value& value) { return !value.resident; });
  if (static_cast<size_t>(values) > ExhaustiveLimits::kMostValues) return std::to_string(values) + " values";
  if (graph.ops().size() > ExhaustiveLimits::kMostOps) return std::to_string(graph.ops().size()) + " ops";
  for (size_t v = 0; v < graph.values().size(); ++v)
    if (!graph.values()[v].holds.empty() && !graph.holders(value_id(v)).empty())
      return "such a holder: value " + std::to_string(v);
  return std::nullopt;
}

void check_size(const Graph& graph) {
  if (const std::optional<std::string> excess = find_excess(graph))
    throw NotApplicable("exhaustive: takes at most " + std::to_string(ExhaustiveLimits::kMostValues) +
                        " values that are not resident and " + std::to_string(ExhaustiveLimits::kMostOps) +
                        " ops, and no holder that is itself held; this graph has " + *excess);
}

}  // namespace

bool is_exhaustible(const Graph& graph) { return !find_excess(graph); }

ExhaustiveSearch::ExhaustiveSearch(const Graph& graph, bool keep_order) {
  check_size(graph);
  least_ns_ = time_lower_bound_ns(graph);
  search_ = std::make_unique<Search>(graph, keep_order);
}

ExhaustiveSearch::~ExhaustiveSearch() = default;

std::optional<Schedule> ExhaustiveSearch::find_faster(int64_t budget_bytes, int64_t time_ns, int64_t max_states) {
  if (!search_->run(Goal::kLeastTime, budget_bytes, time_ns - least_ns_, max_states)) return std::nullopt;
  return search_->schedule();
}

std::optional<Schedule> ExhaustiveSearch::find_smaller(int64_t peak_bytes, int64_t max_states) {
  if (!search_->run(Goal::kLeastPeak, kUnlimited, peak_bytes, max_states)) return std::nullopt;
  return search_->schedule();
}

bool ExhaustiveSearch::limit_reached() const { return search_->timed_out(); }

int64_t ExhaustiveSearch::state_count() const { return search_->state_count(); }

PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request) {
  check_size(graph);
  ExhaustiveSearch::Search search(graph, request.limits.keep_order);
  PlanResult result;
  const int64_t max_states = request.limits.max_states;
  if (!search.run(Goal::kLeastPeak, kUnlimited, kUnlimited, max_states)) {
    result.status = PlanStatus::kTimeout;
    return result;
  }
  result.smallest_budget_bytes = search.cost();
  const int64_t budget_bytes = request.budget_bytes.value_or(result.smallest_budget_bytes);
  if (budget_bytes < result.smallest_budget_bytes) {
    result.status = PlanStatus::kInfeasible;
    return result;
  }
  Schedule least_peak = search.schedule();
  if (search.run(Goal::kLeastTime, budget_bytes, kUnlimited, max_states)) {
    result.status = PlanStatus::kOptimal;
    result.schedule = with_early_drops(graph, search.schedule());
    // Without a budget, schedules of larger peaks may be faster.
    if (request.budget_bytes) result.lower_bound_ns = capped_sum(time_lower_bound_ns(graph), search.cost());
  } else {
    HEADROOM_ASSERT(search.timed_out());
    result.status = PlanStatus::kTimeout;
    result.schedule = with_early_drops(graph, least_peak);
  }
  return result;
}

}  // namespace headroom::internal
