#include "headroom/plan/auto_timeline.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace headroom {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

FlatGraph::FlatGraph(const Graph& given)
    : graph(given),
      op_count(static_cast<int32_t>(given.ops().size())),
      value_count(static_cast<int32_t>(given.values().size())) {
  const auto add = [&](Lists& lists, const auto& ids) {
    for (const ValueId id : ids)
      if (!graph.value(id).resident) lists.ids.push_back(static_cast<int32_t>(id));
    lists.close();
  };
  for (const Op& op : graph.ops()) {
    add(inputs_, op.inputs);
    add(outputs_, op.outputs);
    add(overwrites_, op.overwrites);
    time_ns.push_back(op.time_ns);
    workspace.push_back(op.workspace_bytes);
    once.push_back(op.recompute ? 0 : 1);
    int64_t sum = 0;
    for (const ValueId id : op.outputs) sum += graph.value(id).bytes;
    output_bytes.push_back(sum);
  }
  for (int32_t v = 0; v < value_count; ++v) {
    const auto id = static_cast<ValueId>(v);
    const Value& value = graph.value(id);
    bytes.push_back(value.bytes);
    is_output.push_back(graph.is_output(id) ? 1 : 0);
    add(holds_, value.holds);
    add(holders_, graph.holders(id));
    has_holds = has_holds || !holds(v).empty();
    int32_t best = -1;
    const auto cost = [&](int32_t op) {
      return std::tuple(time_ns[at(op)], output_bytes[at(op)] + workspace[at(op)], op);
    };
    for (const OpId producer : graph.producers(id)) {
      const auto op = static_cast<int32_t>(producer);
      producers_.ids.push_back(op);
      if (once[at(op)] == 0 && (best < 0 || cost(op) < cost(best))) best = op;
    }
    producers_.close();
    maker.push_back(best);
    has_alternatives = has_alternatives || producers(v).size() > 1;
  }
  if (!has_holds) return;
  std::vector<size_t> open(at(value_count));
  std::vector<int32_t> order;
  for (int32_t v = 0; v < value_count; ++v) {
    open[at(v)] = holders(v).size();
    if (open[at(v)] == 0) order.push_back(v);
  }
  for (size_t i = 0; i < order.size(); ++i)
    for (const int32_t held : holds(order[i]))
      if (--open[at(held)] == 0) order.push_back(held);
  for (const int32_t v : order)
    if (!holds(v).empty()) hold_order.push_back(v);
}

Timeline::Timeline(const FlatGraph& flat) : flat_(&flat) {}

void Timeline::assign(std::vector<int32_t> runs) {
  runs_ = std::move(runs);
  find_events();
  find_copies();
  if (flat_->has_holds) extend_held();
  add_up();
}

int64_t Timeline::most(int32_t first, int32_t last) const {
  int64_t most = kLeast;
  while (first <= last) {
    if (first % kBlock == 0 && first + kBlock - 1 <= last) {
      most = std::max(most, block_most_[at(first / kBlock)]);
      first += kBlock;
    } else {
      most = std::max(most, moments_[at(first)]);
      ++first;
    }
  }
  return most;
}

/// A counting sort of all reads and writes by value.
void Timeline::find_events() {
  event_begin_.assign(at(flat_->value_count) + 1, 0);
  for (const int32_t op : runs_) {
    for (const int32_t v : flat_->inputs(op)) ++event_begin_[at(v)];
    for (const int32_t v : flat_->outputs(op)) ++event_begin_[at(v)];
  }
  int32_t sum = 0;
  for (int32_t& begin : event_begin_) begin = sum += begin;
  events_.resize(at(sum));
  for (int32_t p = size(); p-- > 0;) {
    for (const int32_t v : flat_->inputs(run(p))) events_[at(--event_begin_[at(v)])] = {p, false};
    for (const int32_t v : flat_->outputs(run(p))) events_[at(--event_begin_[at(v)])] = {p, true};
  }
}

void Timeline::find_copies() {
  copy_begin_.clear();
  copies_.clear();
  for (int32_t v = 0; v < flat_->value_count; ++v) {
    copy_begin_.push_back(static_cast<int32_t>(copies_.size()));
    const std::span<const Event> all = events(v);
    for (const Event& event : all) {
      if (event.is_write) {
        copies_.push_back({event.position, event.position, event.position});
      } else {
        copies_.back().last = copies_.back().freed = event.position;
      }
    }
    if (!all.empty() && flat_->is_output[at(v)] != 0) copies_.back().last = copies_.back().freed = size();
  }
  copy_begin_.push_back(static_cast<int32_t>(copies_.size()));
}

void Timeline::extend_held() {
  for (const int32_t holder : flat_->hold_order) {
    for (const Copy& holding : copies(holder)) {
      for (const int32_t held : flat_->holds(holder)) {
        const int32_t first = copy_begin_[at(held)];
        const auto all = std::span(copies_).subspan(at(first), at(copy_begin_[at(held) + 1] - first));
        // The one that the holder's run finds or makes.
        const auto later =
            std::ranges::partition_point(all, [&](const Copy& copy) { return copy.born <= holding.born; });
        if (later == all.begin()) continue;
        Copy& copy = *std::prev(later);
        if (copy.last >= holding.born) copy.freed = std::max(copy.freed, holding.freed);
      }
    }
  }
}

/// The input that the run at a position takes over: one that dies there, is held by nothing and has the op's first
/// output in its place; -1: none.
int32_t Timeline::overwritten(int32_t position) const {
  const int32_t op = run(position);
  for (const int32_t v : flat_->overwrites(op)) {
    const Copy* copy = alive(v, position);
    if (copy == nullptr || copy->last != position || !flat_->holders(v).empty()) continue;
    // The output's old copy, if any, was dropped after its last use: it is not alive.
    return v;
  }
  return -1;
}

void Timeline::add_up() {
  between_.assign(at(size()) + 2, 0);
  for (int32_t v = 0; v < flat_->value_count; ++v) {
    for (const Copy& copy : copies(v)) {
      between_[at(copy.born) + 1] += flat_->bytes[at(v)];
      between_[at(std::min(copy.freed, size())) + 1] -= flat_->bytes[at(v)];
    }
  }
  int64_t sum = flat_->graph.resident_bytes();
  moments_.resize(at(size()));
  peak_bytes_ = sum;
  time_ns_ = 0;
  block_most_.assign(at(size() / kBlock) + 1, kLeast);
  for (int32_t p = 0; p < size(); ++p) {
    const int32_t op = run(p);
    // What is in memory before, and what the run adds; copies that end at p are still there.
    sum += between_[at(p)];
    between_[at(p)] = sum;
    int64_t moment = sum + flat_->output_bytes[at(op)] + flat_->workspace[at(op)];
    if (!flat_->overwrites(op).empty()) {
      const int32_t v = overwritten(p);
      if (v >= 0) moment -= flat_->bytes[at(v)];
    }
    moments_[at(p)] = moment;
    peak_bytes_ = std::max(peak_bytes_, moment);
    block_most_[at(p / kBlock)] = std::max(block_most_[at(p / kBlock)], moment);
    if (__builtin_add_overflow(time_ns_, flat_->time_ns[at(op)], &time_ns_))
      time_ns_ = std::numeric_limits<int64_t>::max();
  }
  between_[at(size())] += sum;
}

Schedule Timeline::schedule() const {
  std::vector<OpId> ops;
  ops.reserve(runs_.size());
  for (const int32_t op : runs_) ops.push_back(static_cast<OpId>(op));
  Schedule schedule;
  int32_t position = -1;
  int32_t over = -1;
  for (const Step& step : with_drops(flat_->graph, ops).steps) {
    if (step.is_run()) {
      over = overwritten(++position);
      schedule.steps.push_back(over < 0 ? step : Step::run_over(step.op(), static_cast<ValueId>(over)));
    } else if (static_cast<int32_t>(step.value()) != over) {
      schedule.steps.push_back(step);
    }
  }
  return schedule;
}

}  // namespace headroom
