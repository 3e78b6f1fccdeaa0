#include "tests/claims/all_schedules.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "tests/support/memory_rules.h"

namespace headroom::internal::testing {
namespace {

using Mask = uint64_t;
Mask bit(size_t i) { return Mask{1} << i; }

struct State {
  MemoryState memory;
  Mask started = 0;  ///< needed groups that have run, if the order matters
  bool operator==(const State&) const = default;
};

struct StateHash {
  size_t operator()(const State& state) const {
    Mask hash = state.memory.ran_once * 31 + state.started;
    for (const CopyInMemory& copy : state.memory.copies)
      for (const Mask word : {Mask{copy.value} * 2 + (copy.is_current ? 1 : 0), copy.holders})
        hash = (hash ^ word ^ (hash >> 31)) * 0x9E3779B97F4A7C15U;
    return hash;
  }
};

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

/// The base order of first runs, as docs/formats.md defines it.
class BaseOrder {
 public:
  explicit BaseOrder(const Graph& graph) : graph_(graph) { find_groups(); }

  /// Adds the group of a run to those that have run. Returns false if that breaks the base order of first runs.
  bool start_group(Mask& started, size_t op) const {
    if (!is_needed_[op] || (started & bit(group_[op])) != 0) return true;
    started |= bit(group_[op]);
    return (before_[op] & ~started) == 0;
  }

 private:
  bool is_in(std::vector<ValueId> Op::*list, size_t op, ValueId id) const {
    return contains(graph_.ops()[op].*list, id);
  }

  void find_groups() {
    const size_t count = graph_.ops().size();
    for (size_t i = 0; i < count; ++i) group_.push_back(i);
    const auto share_an_output = [&](size_t i, size_t j) {
      return std::ranges::any_of(graph_.ops()[i].outputs, [&](ValueId id) { return is_in(&Op::outputs, j, id); });
    };
    repeat([&](size_t i) {
      const size_t before = group_[i];
      for (size_t j = 0; j < count; ++j)
        if (share_an_output(i, j)) group_[i] = std::min(group_[i], group_[j]);
      return group_[i] != before;
    });
    is_needed_.assign(count, false);
    const auto is_needed_by = [&](ValueId id, size_t group) {
      for (size_t i = 0; i < count; ++i)
        if (group_[i] == group && (!is_needed_[i] || !is_in(&Op::inputs, i, id))) return false;
      return true;
    };
    repeat([&](size_t i) {
      if (is_needed_[i]) return false;
      for (size_t j = 0; j < count; ++j)
        if (group_[j] == group_[i] && is_needed_[j]) is_needed_[i] = true;
      for (const ValueId id : graph_.ops()[i].outputs) {
        if (std::ranges::find(graph_.outputs(), id) != graph_.outputs().end()) is_needed_[i] = true;
        for (size_t j = 0; j < count; ++j)
          if (is_needed_by(id, group_[j])) is_needed_[i] = true;
      }
      return bool{is_needed_[i]};
    });
    for (size_t i = 0; i < count; ++i) {
      before_.push_back(0);
      for (size_t j = 0; j < group_[i]; ++j) {
        const auto is_later = [&](size_t other) { return group_[other] == group_[j] && other > group_[i]; };
        bool is_before = is_needed_[j];
        for (size_t other = 0; other < count; ++other) is_before = is_before && !is_later(other);
        if (is_before) before_.back() |= bit(group_[j]);
      }
    }
  }

  /// Applies a change to all ops until none changes.
  template <typename Change>
  void repeat(const Change& change) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < graph_.ops().size(); ++i) changed = change(i) || changed;
    }
  }

  const Graph& graph_;
  std::vector<size_t> group_;    ///< for each op, the first op of its group
  std::vector<bool> is_needed_;  ///< for each op, whether its group is needed
  std::vector<Mask> before_;     ///< for each op, the needed groups listed before all ops of its group
};

/// Finds shortest paths from an empty memory to all outputs, by time and then by peak.
class Search {
 public:
  Search(const Graph& graph, Order order, size_t max_states)
      : graph_(graph), rules_(graph), base_order_(graph), order_(order), max_states_(max_states) {}

  bool limit_reached() const { return limit_reached_; }

  std::optional<BestTime> find_fastest(int64_t budget_bytes) {
    states_.clear();
    index_.clear();
    queue_ = {};
    if (graph_.resident_bytes() > budget_bytes) return {};
    reach(State{}, 0, graph_.resident_bytes());
    while (!queue_.empty()) {
      const auto [time_ns, peak_bytes, number] = queue_.top();
      queue_.pop();
      if (is_done_[number]) continue;
      is_done_[number] = true;
      const State state = *states_[number];
      if (is_end(state)) return BestTime{peak_bytes, time_ns};
      if (states_.size() > max_states_) {
        limit_reached_ = true;
        return {};
      }
      for (const CopyInMemory& copy : state.memory.copies) {
        if (!copy.is_current) continue;
        State next = state;
        rules_.apply(next.memory, Step::drop(static_cast<ValueId>(copy.value)));
        reach(next, time_ns, peak_bytes);
      }
      for (size_t op = 0; op < graph_.ops().size(); ++op) {
        try_run(state, Step::run(op_id(op)), time_ns, peak_bytes, budget_bytes);
        for (const ValueId over : graph_.ops()[op].overwrites)
          try_run(state, Step::run_over(op_id(op), over), time_ns, peak_bytes, budget_bytes);
      }
    }
    return {};
  }

 private:
  bool is_end(const State& state) const {
    return std::ranges::all_of(graph_.outputs(), [&](ValueId id) { return rules_.is_alive(state.memory, id); });
  }

  void try_run(const State& state, const Step& run, int64_t time_ns, int64_t peak_bytes, int64_t budget_bytes) {
    if (!rules_.broken_rules(state.memory, run).empty()) return;
    const int64_t moment = rules_.moment_bytes(state.memory, run);
    if (moment > budget_bytes) return;
    State next = state;
    if (order_ == Order::kKeep && !base_order_.start_group(next.started, index(run.op()))) return;
    rules_.apply(next.memory, run);
    reach(next, time_ns + graph_.op(run.op()).time_ns, std::max(peak_bytes, moment));
  }

  void reach(const State& state, int64_t time_ns, int64_t peak_bytes) {
    const auto [entry, is_new] = index_.try_emplace(state, states_.size());
    const size_t number = entry->second;
    if (is_new) {
      states_.push_back(&entry->first);
      costs_.resize(states_.size());
      is_done_.resize(states_.size());
      is_done_[number] = false;
    } else if (is_done_[number] || costs_[number] <= std::pair(time_ns, peak_bytes)) {
      return;
    }
    costs_[number] = {time_ns, peak_bytes};
    queue_.emplace(time_ns, peak_bytes, number);
  }

  const Graph& graph_;
  MemoryRules rules_;
  BaseOrder base_order_;
  Order order_;
  size_t max_states_;
  bool limit_reached_ = false;
  std::unordered_map<State, size_t, StateHash> index_;
  std::vector<const State*> states_;
  std::vector<std::pair<int64_t, int64_t>> costs_;  ///< time and peak of each state
  std::vector<bool> is_done_;
  using Open = std::tuple<int64_t, int64_t, size_t>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> queue_;
};

}  // namespace

std::optional<std::vector<BestTime>> search_all_schedules(const Graph& graph, Order order, size_t max_states) {
  Search search(graph, order, max_states);
  std::vector<BestTime> front;
  int64_t budget_bytes = INT64_MAX;
  while (const std::optional<BestTime> fastest = search.find_fastest(budget_bytes)) {
    front.push_back(*fastest);
    budget_bytes = fastest->peak_bytes - 1;
  }
  if (search.limit_reached()) return {};
  std::ranges::reverse(front);
  return front;
}

bool keeps_base_order(const Graph& graph, const Schedule& schedule) {
  const BaseOrder base_order(graph);
  Mask started = 0;
  return std::ranges::all_of(schedule.steps, [&](const Step& step) {
    return !step.is_run() || base_order.start_group(started, index(step.op()));
  });
}

}  // namespace headroom::internal::testing
