#include "headroom/plan/exact/exhaustive.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <span>
#include <unordered_map>

#include "headroom/plan/bounds/time_bound.h"

namespace headroom {
namespace {

using Mask = uint64_t;
constexpr Mask bit(size_t i) { return Mask{1} << i; }

/// Where a schedule can be between two steps. `ghosts` are copies that their value has given up and that current copies
/// of other values still hold: (value, holders), sorted.
struct State {
  Mask alive = 0;     ///< values, resident ones left out
  Mask ran_once = 0;  ///< ops with recompute = false that have run
  Mask started = 0;   ///< needed groups whose first run is done
  std::vector<std::pair<uint8_t, Mask>> ghosts;
  bool operator==(const State&) const = default;
};

struct StateHash {
  size_t operator()(const State& state) const {
    uint64_t hash = 0;
    const auto mix = [&](uint64_t x) {
      hash = (hash ^ x) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 29U;
    };
    mix(state.alive);
    mix(state.ran_once);
    mix(state.started);
    for (const auto& [value, holders] : state.ghosts) mix(holders + value);
    return hash;
  }
};

/// Sums of absurd sizes stop at the largest number, which no budget reaches.
int64_t capped_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

/// One op in masks.
struct OpMasks {
  Mask inputs = 0;
  Mask outputs = 0;
  Mask overwrites = 0;
  int64_t output_bytes = 0;
};

enum class Goal : uint8_t { kLeastTime, kLeastPeak };

}  // namespace

class ExhaustiveSearch::Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph) {
    const NeededGroups groups = find_needed_groups(graph);
    std::vector<int> number(groups.ops.size(), kOptional);
    std::vector<OpId> last_op;  // by needed group
    for (size_t g = 0; g < groups.ops.size(); ++g) {
      if (groups.needed[g] == 0) continue;
      number[g] = static_cast<int>(last_op.size());
      fastest_ns_.push_back(fastest_ns(graph, groups.ops[g]));
      Mask before = 0;
      for (size_t other = 0; other < last_op.size(); ++other)
        if (last_op[other] < groups.ops[g].front()) before |= bit(other);
      before_.push_back(before);
      last_op.push_back(groups.ops[g].back());
      all_groups_ |= bit(fastest_ns_.size() - 1);
    }
    for (size_t v = 0; v < graph.values().size(); ++v) {
      if (graph.values()[v].resident) continue;
      number_of_value_.resize(v + 1, 0);
      number_of_value_[v] = values_.size();
      values_.push_back(value_id(v));
    }
    number_of_value_.resize(graph.values().size(), 0);
    for (const ValueId id : values_) {
      holds_.push_back(mask_of(graph.value(id).holds));
      holders_.push_back(mask_of(graph.holders(id)));
      bytes_.push_back(graph.value(id).bytes);
    }
    outputs_ = mask_of(graph.outputs());
    needed_inputs_.assign(fastest_ns_.size(), ~Mask{0});
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = graph.ops()[i];
      OpMasks masks{mask_of(op.inputs), mask_of(op.outputs), mask_of(op.overwrites), 0};
      for (const ValueId id : op.outputs) masks.output_bytes += graph.value(id).bytes;
      if (masks.overwrites != 0) first_outputs_ |= mask_of(std::span(op.outputs).first(1));
      ops_.push_back(masks);
      const int group = number[static_cast<size_t>(groups.group_of_op[i])];
      group_of_op_.push_back(group);
      if (group >= 0) needed_inputs_[static_cast<size_t>(group)] &= masks.inputs;
    }
    describe_producers(groups);
  }

  /// False: no schedule within the budget that costs less than `cost_limit`, or (timed_out()) none found.
  bool run(Goal goal, int64_t budget_bytes, int64_t cost_limit, int64_t max_states) {
    goal_ = goal;
    cost_limit_ = cost_limit;
    // What resident values leave; moments below are beside them.
    budget_ = budget_bytes - graph_.resident_bytes();
    found_.clear();
    index_.clear();
    queue_ = {};
    timed_out_ = false;
    reach(State{}, 0, kNone, Step::run(OpId{0}));
    while (!queue_.empty()) {
      const size_t number = queue_.top().second;
      queue_.pop();
      if (found_[number].done) continue;
      found_[number].done = true;
      const int64_t cost = found_[number].cost;
      const State state = *found_[number].state;
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

  int64_t resident_bytes() const { return graph_.resident_bytes(); }
  bool timed_out() const { return timed_out_; }
  int64_t state_count() const { return static_cast<int64_t>(found_.size()); }  ///< of the last run
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
    const State* state;
    int64_t cost;
    int64_t rest;  ///< least_rest() of the state
    size_t previous;
    Step step;
    bool done;
  };

  /// How a missing value can be made again.
  struct Producers {
    Mask inputs = ~Mask{0};  ///< of all of them
    int64_t fastest_ns = std::numeric_limits<int64_t>::max();
    int needed_group = kOptional;  ///< its bit in State::started
    int group = 0;                 ///< among all groups
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

  template <typename Ids>
  Mask mask_of(const Ids& ids) const {
    Mask mask = 0;
    for (const ValueId id : ids)
      if (!graph_.value(id).resident) mask |= bit(number_of_value_[index(id)]);
    return mask;
  }

  /// The values that what is still to come may read, directly or to make something again.
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

  /// A lower bound on the cost of all that is to come, for the least time. What first runs and the end of the step read
  /// must be alive then: of what has been made and is missing, and of what making that again reads and is missing too,
  /// each group has to run once more, in the fastest way for the slowest of its values. No step takes more off this bound
  /// than it costs, so that a state that is taken from the queue has its least cost.
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

  /// Of the needed group of an op; none for an op that only an alternative needs.
  Mask group_bit(size_t i) const { return group_of_op_[i] < 0 ? 0 : bit(static_cast<size_t>(group_of_op_[i])); }

  int64_t memory(const State& state) const {
    int64_t sum = 0;
    for (Mask rest = state.alive; rest != 0; rest &= rest - 1)
      sum += bytes_[static_cast<size_t>(std::countr_zero(rest))];
    for (const auto& ghost : state.ghosts) sum = capped_sum(sum, bytes_[ghost.first]);
    return sum;
  }

  /// Values whose current copies hold the current copy of v.
  Mask current_holders(const State& state, size_t v) const {
    Mask holders = holders_[v] & state.alive;
    for (const auto& [value, mask] : state.ghosts)
      if (value == v) holders &= ~mask;
    return holders;
  }

  /// The current copies of these values let go of all that they hold.
  static void release_ghosts(State& state, Mask holders) {
    for (auto& ghost : state.ghosts) ghost.second &= ~holders;
    std::erase_if(state.ghosts, [](const auto& ghost) { return ghost.second == 0; });
  }

  State after_run(const State& state, size_t i) const {
    const Mask outputs = ops_[i].outputs;
    State next = state;
    for (Mask rest = outputs & state.alive; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<size_t>(std::countr_zero(rest));
      const Mask holders = current_holders(state, v) & ~outputs;
      if (holders != 0) next.ghosts.emplace_back(static_cast<uint8_t>(v), holders);
    }
    release_ghosts(next, outputs);
    std::ranges::sort(next.ghosts);
    next.alive |= outputs;
    next.started |= group_bit(i);
    if (!graph_.ops()[i].recompute) next.ran_once |= bit(i);
    return next;
  }

  State after_drop(const State& state, size_t v) const {
    State next = state;
    next.alive &= ~bit(v);
    release_ghosts(next, bit(v));
    if (const Mask holders = current_holders(state, v); holders != 0) {
      next.ghosts.emplace_back(static_cast<uint8_t>(v), holders);
      std::ranges::sort(next.ghosts);
    }
    return next;
  }

  /// Some of these values hold copies that their values have given up.
  static bool hold_ghosts(const State& state, Mask values) {
    return std::ranges::any_of(state.ghosts, [&](const auto& ghost) { return (ghost.second & values) != 0; });
  }

  void expand(const State& state, int64_t cost, size_t number) {
    // What nothing to come can use goes first, and nothing else matters until it is gone.
    const Mask useful_values = useful(state.started);
    for (Mask rest = state.alive & ~useful_values; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<size_t>(std::countr_zero(rest));
      if (current_holders(state, v) != 0) continue;
      reach(after_drop(state, v), cost, number, Step::drop(values_[v]));
      return;
    }
    const int64_t memory_bytes = memory(state);
    bool cramped = false;
    for (size_t i = 0; i < ops_.size(); ++i) {
      const OpMasks& op = ops_[i];
      if ((op.inputs & ~state.alive) != 0 || (state.ran_once & bit(i)) != 0) continue;
      const bool first_run = (group_bit(i) & ~state.started) != 0;
      if (first_run && (before_[static_cast<size_t>(group_of_op_[i])] & ~state.started) != 0) continue;
      // A run that makes nothing new can still free what its outputs' present copies hold.
      const Mask missing = op.outputs & ~state.alive;
      if (!first_run && (missing & useful_values) == 0 && !hold_ghosts(state, op.outputs)) continue;
      const int64_t moment = capped_sum(capped_sum(memory_bytes, op.output_bytes), graph_.ops()[i].workspace_bytes);
      const State next = after_run(state, i);
      if (moment > (goal_ == Goal::kLeastPeak ? cost : budget_)) cramped = true;
      if (moment <= budget_) reach(next, cost_after(cost, i, first_run, moment), number, Step::run(op_id(i)));
      const auto first = number_of_value_[index(graph_.ops()[i].outputs.front())];
      if ((state.alive & bit(first)) != 0) continue;
      for (Mask rest = op.overwrites; rest != 0; rest &= rest - 1) {
        const auto over = static_cast<size_t>(std::countr_zero(rest));
        if (current_holders(state, over) != 0 || (holders_[over] & op.outputs) != 0) continue;
        if (moment - bytes_[over] <= budget_)
          reach(after_drop(next, over), cost_after(cost, i, first_run, moment - bytes_[over]), number,
                Step::run_over(op_id(i), values_[over]));
      }
    }
    // Giving up early buys nothing: only before a run that does not fit, or that would raise the least peak.
    if (!cramped) return;
    for (Mask rest = state.alive; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<size_t>(std::countr_zero(rest));
      // What is held frees nothing, but it has to go before a run can put it in the place of an input.
      const bool is_held = current_holders(state, v) != 0;
      const bool frees = is_held ? bytes_[v] > 0 && (first_outputs_ & bit(v)) != 0 : bytes_[v] > 0 || holds_[v] != 0;
      if (frees) reach(after_drop(state, v), cost, number, Step::drop(values_[v]));
    }
  }

  /// Of time, only what goes beyond the fastest op of each needed group, which all schedules have in common: states of
  /// little recomputation are then looked at first.
  int64_t cost_after(int64_t cost, size_t i, bool first_run, int64_t moment) const {
    if (goal_ == Goal::kLeastPeak) return std::max(cost, moment);
    return capped_sum(cost,
                      graph_.ops()[i].time_ns - (first_run ? fastest_ns_[static_cast<size_t>(group_of_op_[i])] : 0));
  }

  void reach(const State& state, int64_t cost, size_t previous, Step step) {
    if (cost >= cost_limit_) return;
    const auto [entry, is_new] = index_.try_emplace(state, found_.size());
    if (is_new) {
      found_.push_back(Found{&entry->first, cost, least_rest(state), previous, step, false});
    } else {
      Found& found = found_[entry->second];
      if (found.done || found.cost <= cost) return;
      found.cost = cost;
      found.previous = previous;
      found.step = step;
    }
    const int64_t least_cost = capped_sum(cost, found_[entry->second].rest);
    if (least_cost < cost_limit_) queue_.emplace(least_cost, entry->second);
  }

  static constexpr int kOptional = -1;  ///< a group that is not needed: free at any time
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  const Graph& graph_;
  Mask all_groups_ = 0;              ///< needed ones
  std::vector<Mask> before_;         ///< by needed group: those that are listed before all of it
  std::vector<int64_t> fastest_ns_;  ///< by needed group
  std::vector<ValueId> values_;
  std::vector<size_t> number_of_value_;
  std::vector<Mask> holds_;
  std::vector<Mask> holders_;
  std::vector<int64_t> bytes_;
  Mask outputs_ = 0;
  Mask first_outputs_ = 0;  ///< of ops that may run in place
  std::vector<OpMasks> ops_;
  std::vector<int> group_of_op_;
  std::vector<Mask> needed_inputs_;              ///< by needed group: what all of its ops read
  std::vector<Producers> producers_;             ///< by value
  std::unordered_map<Mask, Mask> useful_;        ///< by State::started
  std::unordered_map<Mask, Mask> needed_later_;  ///< by State::started: what first runs to come and the end must have
  std::vector<int64_t> slowest_missing_ns_;      ///< by group, 0 outside of least_rest()
  std::vector<int> touched_groups_;              ///< of least_rest()

  Goal goal_ = Goal::kLeastTime;
  int64_t budget_ = 0;
  int64_t cost_limit_ = 0;
  bool timed_out_ = false;
  size_t goal_number_ = 0;
  std::vector<Found> found_;
  std::unordered_map<State, size_t, StateHash> index_;
  using Open = std::pair<int64_t, size_t>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> queue_;
};

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// What of a graph is beyond the limits.
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

ExhaustiveSearch::ExhaustiveSearch(const Graph& graph) {
  check_size(graph);
  least_ns_ = time_lower_bound_ns(graph);
  search_ = std::make_unique<Search>(graph);
}

ExhaustiveSearch::~ExhaustiveSearch() = default;

std::optional<Schedule> ExhaustiveSearch::find_faster(int64_t budget_bytes, int64_t time_ns, int64_t max_states) {
  if (!search_->run(Goal::kLeastTime, budget_bytes, time_ns - least_ns_, max_states)) return std::nullopt;
  return search_->schedule();
}

std::optional<Schedule> ExhaustiveSearch::find_smaller(int64_t peak_bytes, int64_t max_states) {
  const int64_t beside_resident_bytes = peak_bytes - search_->resident_bytes();
  if (!search_->run(Goal::kLeastPeak, kUnlimited, beside_resident_bytes, max_states)) return std::nullopt;
  return search_->schedule();
}

bool ExhaustiveSearch::limit_reached() const { return search_->timed_out(); }

int64_t ExhaustiveSearch::state_count() const { return search_->state_count(); }

PlanResult plan_exhaustive(const Graph& graph, const PlanRequest& request) {
  check_size(graph);
  ExhaustiveSearch::Search search(graph);
  PlanResult result;
  const int64_t max_states = request.limits.max_states;
  if (!search.run(Goal::kLeastPeak, kUnlimited, kUnlimited, max_states)) {
    result.status = PlanStatus::kTimeout;
    return result;
  }
  // A peak is never below what is resident, whatever negative workspaces say.
  result.smallest_budget_bytes = graph.resident_bytes() + std::max<int64_t>(search.cost(), 0);
  const int64_t budget_bytes = request.budget_bytes.value_or(result.smallest_budget_bytes);
  if (budget_bytes < result.smallest_budget_bytes) {
    result.status = PlanStatus::kInfeasible;
    return result;
  }
  Schedule least_peak = search.schedule();
  if (search.run(Goal::kLeastTime, budget_bytes, kUnlimited, max_states)) {
    result.status = PlanStatus::kOptimal;
    result.schedule = with_early_drops(graph, search.schedule());
    // Without a budget there are faster ones, of larger peaks.
    if (request.budget_bytes) result.lower_bound_ns = capped_sum(time_lower_bound_ns(graph), search.cost());
  } else {
    HEADROOM_ASSERT(search.timed_out());
    result.status = PlanStatus::kTimeout;
    result.schedule = with_early_drops(graph, least_peak);
  }
  return result;
}

}  // namespace headroom
