#include "headroom/plan/auto/starts.h"

#include <algorithm>
#include <limits>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

class FasterBase {
 public:
  explicit FasterBase(const FlatGraph& flat) : flat_(flat), producer_(at(flat.value_count), -1) {
    for (int32_t v = 0; v < flat.value_count; ++v)
      if (!flat.producers(v).empty()) producer_[at(v)] = flat.producers(v).back();
  }

  std::vector<int32_t> find(const std::vector<int32_t>& base, int64_t max_work) {
    std::vector<int32_t> best;
    if (!flat_.has_alternatives) return best;
    int64_t best_ns = time_of(base);
    int64_t work = 0;
    for (int32_t op = 0; op < flat_.op_count && work < max_work; ++op) {
      const auto is_slower = [&](int32_t v) { return flat_.time_ns[at(producer_[at(v)])] > flat_.time_ns[at(op)]; };
      if (!std::ranges::any_of(flat_.outputs(op), is_slower)) continue;
      const std::vector<int32_t> before = producer_;
      for (const int32_t v : flat_.outputs(op)) producer_[at(v)] = op;
      std::vector<int32_t> runs = needed_runs();
      work += flat_.op_count;
      if (runs.empty() || time_of(runs) >= best_ns) {
        producer_ = before;
        continue;
      }
      best_ns = time_of(runs);
      best = std::move(runs);
    }
    return best;
  }

 private:
  int64_t time_of(const std::vector<int32_t>& runs) const {
    int64_t sum_ns = 0;
    for (const int32_t op : runs)
      if (__builtin_add_overflow(sum_ns, flat_.time_ns[at(op)], &sum_ns)) return std::numeric_limits<int64_t>::max();
    return sum_ns;
  }

  /// Returns the ops that the step's outputs need with the producers in producer_, in base order, or nothing where base
  /// order is not valid for them.
  std::vector<int32_t> needed_runs() const {
    std::vector<uint8_t> is_needed(at(flat_.op_count), 0);
    std::vector<int32_t> open;
    const auto need = [&](int32_t v) {
      const int32_t op = producer_[at(v)];
      if (is_needed[at(op)] == 0) open.push_back(op);
      is_needed[at(op)] = 1;
    };
    for (const ValueId id : flat_.graph.outputs())
      if (!flat_.graph.value(id).resident) need(static_cast<int32_t>(id));
    while (!open.empty()) {
      const int32_t op = open.back();
      open.pop_back();
      for (const int32_t u : flat_.inputs(op)) need(u);
    }
    std::vector<int32_t> runs;
    std::vector<uint8_t> is_written(at(flat_.value_count), 0);
    for (int32_t op = 0; op < flat_.op_count; ++op) {
      if (is_needed[at(op)] == 0) continue;
      if (!std::ranges::all_of(flat_.inputs(op), [&](int32_t u) { return is_written[at(u)] != 0; })) return {};
      for (const int32_t v : flat_.outputs(op)) is_written[at(v)] = 1;
      runs.push_back(op);
    }
    return runs;
  }

  const FlatGraph& flat_;
  std::vector<int32_t> producer_;  ///< By value: the producer to use; -1 for resident values.
};

}  // namespace

std::vector<int32_t> faster_base(const FlatGraph& flat, const std::vector<int32_t>& base, int64_t max_work) {
  return FasterBase(flat).find(base, max_work);
}

namespace {

/// Orders runs of different ops, of which each value has one producer, by what they add to memory.
class ListScheduler {
 public:
  ListScheduler(const FlatGraph& flat, const std::vector<int32_t>& base, bool backwards)
      : flat_(flat), base_(base), backwards_(backwards), open_(at(flat.op_count), 0), users_(at(flat.value_count)) {
    std::vector<int32_t> maker(at(flat.value_count), -1);
    for (const int32_t op : base) {
      for (const int32_t u : flat.inputs(op)) {
        users_[at(u)].push_back(op);
        ++open_[at(backwards ? maker[at(u)] : op)];
      }
      for (const int32_t w : flat.outputs(op)) maker[at(w)] = op;
    }
    maker_ = std::move(maker);
    left_.resize(at(flat.value_count));
    for (size_t v = 0; v < left_.size(); ++v) left_[v] = static_cast<int32_t>(users_[v].size()) + flat.is_output[v];
  }

  std::vector<int32_t> run() {
    std::vector<int32_t> ready;
    for (const int32_t op : base_)
      if (open_[at(op)] == 0) ready.push_back(op);
    std::vector<int32_t> order;
    while (!ready.empty()) {
      const auto next = std::ranges::min_element(ready, {}, [&](int32_t op) { return std::pair(added(op), op); });
      const int32_t op = *next;
      ready.erase(next);
      order.push_back(op);
      place(op, ready);
    }
    if (backwards_) std::ranges::reverse(order);
    return order;
  }

 private:
  /// Returns the bytes that an op adds at its place, less those that it frees.
  int64_t added(int32_t op) const {
    int64_t bytes = 0;
    for (const int32_t w : flat_.outputs(op)) bytes += backwards_ ? -flat_.bytes[at(w)] : flat_.bytes[at(w)];
    for (const int32_t u : flat_.inputs(op)) {
      if (is_last_use(u)) bytes += backwards_ ? flat_.bytes[at(u)] : -flat_.bytes[at(u)];
    }
    return bytes;
  }
  /// Returns whether no read of a value follows the next one that is placed.
  bool is_last_use(int32_t value) const {
    if (!backwards_) return left_[at(value)] == 1;
    return left_[at(value)] == static_cast<int32_t>(users_[at(value)].size());
  }
  void place(int32_t op, std::vector<int32_t>& ready) {
    for (const int32_t u : flat_.inputs(op)) {
      --left_[at(u)];
      if (backwards_ && --open_[at(maker_[at(u)])] == 0) ready.push_back(maker_[at(u)]);
    }
    if (backwards_) return;
    for (const int32_t w : flat_.outputs(op))
      for (const int32_t user : users_[at(w)])
        if (--open_[at(user)] == 0) ready.push_back(user);
  }

  const FlatGraph& flat_;
  const std::vector<int32_t>& base_;
  bool backwards_;
  std::vector<int32_t> open_;                ///< By op: number of inputs (backwards: reads of its outputs) not placed.
  std::vector<std::vector<int32_t>> users_;  ///< By value: the ops that read it.
  std::vector<int32_t> maker_;               ///< By value: the op that writes it.
  std::vector<int32_t> left_;                ///< By value: number of reads that are not placed.
};

/// Returns the runs of `base` as cut_start() says.
std::vector<int32_t> order_around_cut(const FlatGraph& flat, const std::vector<int32_t>& base,
                                      const MemoryBound& bound) {
  std::vector<uint8_t> is_postponed(at(flat.op_count), 0);
  for (const OpId op : bound.postponed) is_postponed[index(op)] = 1;
  std::vector<uint8_t> is_late_value(at(flat.value_count), 0);
  std::vector<int32_t> order;
  std::vector<int32_t> moment;
  std::vector<int32_t> late;
  for (const int32_t op : base) {
    const auto is_late = [&](int32_t u) { return is_late_value[at(u)] != 0; };
    const bool is_moment = std::ranges::find(bound.moment, static_cast<OpId>(op)) != bound.moment.end();
    // One of several alternatives may read what is postponed.
    const bool reads_late = std::ranges::any_of(flat.inputs(op), is_late);
    (reads_late || is_postponed[at(op)] != 0 ? late : is_moment ? moment : order).push_back(op);
    if (order.empty() || order.back() != op)
      for (const int32_t w : flat.outputs(op)) is_late_value[at(w)] = 1;
  }
  order.insert(order.end(), moment.begin(), moment.end());
  order.insert(order.end(), late.begin(), late.end());
  return order;
}

}  // namespace

std::vector<int32_t> greedy_order(const FlatGraph& flat, const std::vector<int32_t>& base, bool backwards) {
  return ListScheduler(flat, base, backwards).run();
}

std::vector<int32_t> runs_around_cut(const FlatGraph& flat, const std::vector<int32_t>& base,
                                     const MemoryBound& bound) {
  if (bound.moment.empty()) return {};
  std::vector<uint8_t> is_live(at(flat.value_count), 1);
  std::vector<uint8_t> is_written(at(flat.value_count), 0);
  std::vector<int32_t> runs;
  const auto add = [&](int32_t op) {
    runs.push_back(op);
    for (const int32_t v : flat.outputs(op)) is_live[at(v)] = is_written[at(v)] = 1;
  };
  // Returns the op that recomputes `v`, or -1 where none can run and the value is kept instead. It is listed before the
  // reader, so that no two ops wait for each other.
  const auto maker_for = [&](int32_t v, int32_t reader) {
    const auto can_run = [&](int32_t op) {
      return op < reader && std::ranges::all_of(flat.inputs(op), [&](int32_t u) { return is_written[at(u)] != 0; });
    };
    const auto found = std::ranges::find_if(flat.makers(v), can_run);
    return found == flat.makers(v).end() ? -1 : *found;
  };
  size_t position = 0;
  for (; position < base.size(); ++position) {
    add(base[position]);
    if (std::ranges::find(bound.moment, static_cast<OpId>(base[position])) != bound.moment.end()) break;
  }
  if (position == base.size()) return {};
  for (size_t i = 0; i < position; ++i)
    for (const int32_t v : flat.outputs(base[i])) is_live[at(v)] = flat.maker[at(v)] < 0 ? 1 : 0;
  for (const ValueId id : bound.kept) is_live[index(id)] = 1;
  for (const int32_t v : flat.inputs(base[position])) is_live[at(v)] = 1;
  std::vector<int32_t> open;  // Stack of ops: each lies below the ops that must run before it.
  for (++position; position < base.size(); ++position) {
    open.assign(1, base[position]);
    while (!open.empty()) {
      const int32_t op = open.back();
      int32_t next = -1;
      // Recompute the op with the most outputs first: a tape before its output.
      for (const int32_t u : flat.inputs(op)) {
        const int32_t maker = is_live[at(u)] == 0 ? maker_for(u, op) : -1;
        if (maker >= 0 && (next < 0 || flat.outputs(maker).size() > flat.outputs(next).size())) next = maker;
      }
      if (next >= 0) {
        open.push_back(next);
      } else {
        add(op);
        open.pop_back();
      }
    }
  }
  for (const ValueId id : flat.graph.outputs())
    if (!flat.graph.value(id).resident && is_live[index(id)] == 0) return {};
  return runs;
}

std::vector<int32_t> cut_start(const FlatGraph& flat, const std::vector<int32_t>& base, const MemoryBound& bound) {
  if (bound.moment.empty()) return {};
  return runs_around_cut(flat, order_around_cut(flat, base, bound), bound);
}

}  // namespace headroom::internal
