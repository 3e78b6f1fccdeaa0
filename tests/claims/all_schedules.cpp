#include "tests/claims/all_schedules.h"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

namespace headroom::testing {
namespace {

using Mask = uint64_t;
constexpr size_t kMaxCopies = 64;

Mask bit(size_t i) { return Mask{1} << i; }

/// One allocation. A copy that is not current is in memory because living copies hold it.
struct Copy {
  uint32_t value = 0;
  bool current = true;
  Mask holders = 0;  ///< positions, in State::copies, of the copies that hold it
  auto operator<=>(const Copy&) const = default;
};

struct State {
  std::vector<Copy> copies;
  Mask ran_once = 0;  ///< ops that have run and may not run again
  Mask started = 0;   ///< needed groups that have run; where the order matters
  bool operator==(const State&) const = default;
};

struct StateHash {
  size_t operator()(const State& state) const {
    Mask hash = state.ran_once * 31 + state.started;
    for (const Copy& copy : state.copies)
      for (const Mask word : {Mask{copy.value} * 2 + (copy.current ? 1 : 0), copy.holders})
        hash = (hash ^ word ^ (hash >> 31)) * 0x9E3779B97F4A7C15U;
    return hash;
  }
};

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

/// The rules of a step, as docs/formats.md has them.
class Machine {
 public:
  explicit Machine(const Graph& graph) : graph_(graph), depth_(graph.values().size(), 0) {
    // Holding is not circular, so this ends: what is held lies deeper than its holders.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t v = 0; v < depth_.size(); ++v)
        for (const ValueId held : graph.values()[v].holds)
          if (depth_[index(held)] <= depth_[v]) {
            depth_[index(held)] = depth_[v] + 1;
            changed = true;
          }
    }
    max_depth_ = depth_.empty() ? 0 : std::ranges::max(depth_);
    for (const Value& value : graph.values())
      if (value.resident) resident_bytes_ += value.bytes;
    find_groups();
  }

  int64_t resident_bytes() const { return resident_bytes_; }
  /// Notes a run's group as run. False where this breaks the base order of first runs.
  bool start_group(State& state, size_t op) const {
    if (!is_needed_[op] || (state.started & bit(group_[op])) != 0) return true;
    state.started |= bit(group_[op]);
    return (before_[op] & ~state.started) == 0;
  }

  bool is_alive(const State& state, ValueId id) const {
    return graph_.value(id).resident || find(state, id) < state.copies.size();
  }

  bool is_end(const State& state) const {
    return std::ranges::all_of(graph_.outputs(), [&](ValueId id) { return is_alive(state, id); });
  }

  bool drop(State& state, ValueId id) const {
    const size_t copy = find(state, id);
    if (copy == state.copies.size()) return false;
    state.copies[copy].current = false;
    settle(state);
    return true;
  }

  /// The moment of the run; none, and a state of no use, where it may not run. `over`: an input, or null.
  std::optional<int64_t> run(State& state, size_t number, const ValueId* over) const {
    const Op& op = graph_.ops()[number];
    if ((state.ran_once & bit(number)) != 0) return {};
    for (const ValueId id : op.inputs)
      if (!is_alive(state, id)) return {};
    if (over != nullptr && !may_run_over(state, op, *over)) return {};

    int64_t moment = resident_bytes_ + op.workspace_bytes;
    for (const Copy& copy : state.copies) moment += graph_.values()[copy.value].bytes;
    for (const ValueId id : op.outputs) moment += graph_.value(id).bytes;
    if (over != nullptr) moment -= graph_.value(*over).bytes;

    const size_t before = state.copies.size();
    if (before + op.outputs.size() > kMaxCopies) throw std::length_error("more copies in memory than the search takes");
    for (const ValueId id : op.outputs) {
      const size_t replaced = find(state, id);
      if (replaced < before) state.copies[replaced].current = false;
      state.copies.push_back({static_cast<uint32_t>(id), true, 0});
    }
    for (size_t i = 0; i < op.outputs.size(); ++i)
      for (const ValueId held : graph_.value(op.outputs[i]).holds)
        if (const size_t copy = find(state, held); copy < state.copies.size())
          state.copies[copy].holders |= bit(before + i);
    if (over != nullptr) state.copies[find(state, *over)].current = false;
    if (!op.recompute) state.ran_once |= bit(number);
    settle(state);
    return moment;
  }

 private:
  /// The position of a value's current copy, or the number of copies.
  static size_t find(const State& state, ValueId id) {
    const auto is_it = [&](const Copy& copy) { return copy.current && copy.value == static_cast<uint32_t>(id); };
    return static_cast<size_t>(std::ranges::find_if(state.copies, is_it) - state.copies.begin());
  }

  bool may_run_over(const State& state, const Op& op, ValueId over) const {
    if (!contains(op.overwrites, over) || graph_.value(over).resident) return false;
    if (is_alive(state, op.outputs.front()) || state.copies[find(state, over)].holders != 0) return false;
    return std::ranges::none_of(op.outputs, [&](ValueId id) { return contains(graph_.value(id).holds, over); });
  }

  /// Frees what is neither current nor held, and puts the copies into an order that only depends on what they are.
  void settle(State& state) const {
    std::vector<Copy> kept;
    Mask moved[kMaxCopies] = {};  // by old position: the bit of the new one, 0 where freed
    std::vector<std::pair<Copy, size_t>> layer;
    for (int depth = 0; depth <= max_depth_; ++depth) {
      layer.clear();
      for (size_t i = 0; i < state.copies.size(); ++i) {
        Copy copy = state.copies[i];
        if (depth_[copy.value] != depth) continue;
        Mask holders = 0;
        for (size_t h = 0; h < state.copies.size(); ++h)
          if ((copy.holders & bit(h)) != 0) holders |= moved[h];
        copy.holders = holders;
        if (copy.current || holders != 0) layer.emplace_back(copy, i);
      }
      std::ranges::sort(layer);
      for (const auto& [copy, old] : layer) {
        moved[old] = bit(kept.size());
        kept.push_back(copy);
      }
    }
    state.copies = std::move(kept);
  }

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

  /// Applies a change to each op until none changes any more.
  template <typename Change>
  void repeat(const Change& change) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < graph_.ops().size(); ++i) changed = change(i) || changed;
    }
  }

  const Graph& graph_;
  std::vector<int> depth_;  ///< by value: the most values in a row of which each holds the next, up to this one
  int max_depth_ = 0;
  int64_t resident_bytes_ = 0;
  std::vector<size_t> group_;    ///< by op: the first op of its group
  std::vector<bool> is_needed_;  ///< by op: its group is
  std::vector<Mask> before_;     ///< by op: the needed groups that are listed before all of its group
};

/// Shortest paths from nothing in memory to all outputs, by time and then by peak.
class Search {
 public:
  Search(const Graph& graph, Order order, size_t max_states)
      : graph_(graph), machine_(graph), order_(order), max_states_(max_states) {}

  bool limit_reached() const { return limit_reached_; }

  std::optional<BestTime> find_fastest(int64_t budget_bytes) {
    states_.clear();
    index_.clear();
    queue_ = {};
    if (machine_.resident_bytes() > budget_bytes) return {};
    reach(State{}, 0, machine_.resident_bytes());
    while (!queue_.empty()) {
      const auto [time_ns, peak_bytes, number] = queue_.top();
      queue_.pop();
      if (is_done_[number]) continue;
      is_done_[number] = true;
      const State state = *states_[number];
      if (machine_.is_end(state)) return BestTime{peak_bytes, time_ns};
      if (states_.size() > max_states_) {
        limit_reached_ = true;
        return {};
      }
      for (const Copy& copy : state.copies) {
        State next = state;
        if (copy.current && machine_.drop(next, static_cast<ValueId>(copy.value))) reach(next, time_ns, peak_bytes);
      }
      for (size_t op = 0; op < graph_.ops().size(); ++op) {
        try_run(state, op, nullptr, time_ns, peak_bytes, budget_bytes);
        for (const ValueId& over : graph_.ops()[op].overwrites)
          try_run(state, op, &over, time_ns, peak_bytes, budget_bytes);
      }
    }
    return {};
  }

 private:
  void try_run(const State& state, size_t op, const ValueId* over, int64_t time_ns, int64_t peak_bytes,
               int64_t budget_bytes) {
    State next = state;
    if (order_ == Order::kKeep && !machine_.start_group(next, op)) return;
    const std::optional<int64_t> moment = machine_.run(next, op, over);
    if (moment && *moment <= budget_bytes)
      reach(next, time_ns + graph_.ops()[op].time_ns, std::max(peak_bytes, *moment));
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
  Machine machine_;
  Order order_;
  size_t max_states_;
  bool limit_reached_ = false;
  std::unordered_map<State, size_t, StateHash> index_;
  std::vector<const State*> states_;
  std::vector<std::pair<int64_t, int64_t>> costs_;  ///< by state: time, peak
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

Replay replay(const Graph& graph, const Schedule& schedule) {
  const Machine machine(graph);
  State state;
  Replay result;
  result.peak_bytes = machine.resident_bytes();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (!step.is_run()) {
      if (machine.drop(state, step.value())) continue;
      result.error = "step " + std::to_string(i) + " drops what is not alive";
      return result;
    }
    const ValueId over = step.value();
    const std::optional<int64_t> moment = machine.run(state, index(step.op()), step.is_over() ? &over : nullptr);
    if (!moment) {
      result.error = "step " + std::to_string(i) + " cannot run " + graph.op(step.op()).name;
      return result;
    }
    if (!machine.start_group(state, index(step.op()))) result.keeps_order = false;
    result.peak_bytes = std::max(result.peak_bytes, *moment);
    result.time_ns += graph.op(step.op()).time_ns;
  }
  if (!machine.is_end(state)) result.error = "the step ends without an output";
  return result;
}

}  // namespace headroom::testing
