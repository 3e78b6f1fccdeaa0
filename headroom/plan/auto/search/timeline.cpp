#include "headroom/plan/auto/search/timeline.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

namespace headroom::internal {
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
    const auto i = static_cast<int32_t>(time_ns.size());
    for (const int32_t v : inputs(i)) touched_.ids.push_back(2 * static_cast<uint32_t>(v));
    for (const int32_t v : outputs(i)) touched_.ids.push_back(2 * static_cast<uint32_t>(v) + 1);
    touched_.close();
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
    for (const OpId producer : graph.producers(id)) {
      const auto op = static_cast<int32_t>(producer);
      producers_.ids.push_back(op);
      if (once[at(op)] == 0) makers_.ids.push_back(op);
    }
    producers_.close();
    makers_.close();
    std::ranges::sort(makers_.ids.end() - std::ssize(makers(v)), makers_.ids.end(), {}, [&](int32_t op) {
      return std::tuple(time_ns[at(op)], output_bytes[at(op)] + workspace[at(op)], op);
    });
    maker.push_back(makers(v).empty() ? -1 : makers(v).front());
    has_sure_makers.push_back(are_sure(v) ? 1 : 0);
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

bool FlatGraph::are_sure(int32_t value) const {
  if (producers(value).size() == 1) return true;
  const auto is_read_by_all = [&](int32_t u) {
    return std::ranges::all_of(producers(value),
                               [&](int32_t op) { return std::ranges::find(inputs(op), u) != inputs(op).end(); });
  };
  return std::ranges::all_of(makers(value),
                             [&](int32_t op) { return std::ranges::all_of(inputs(op), is_read_by_all); });
}

Timeline::Timeline(const FlatGraph& flat) : flat_(&flat) {}

void Timeline::assign(const std::vector<int32_t>& runs) {
  runs_ = runs;
  find_events();
  find_copies();
  if (flat_->has_holds) extend_held();
  add_up();
}

int64_t Timeline::most(int32_t first, int32_t last) const {
  if (first > last) return kLeast;
  const int32_t first_block = first / kBlock;
  const int32_t last_block = last / kBlock;
  if (first_block == last_block) return *std::max_element(moments_.begin() + first, moments_.begin() + last + 1);
  if (!has_most_) find_most();
  const int64_t ends = std::max(most_to_end_[at(first)], most_from_start_[at(last)]);
  const int32_t blocks = last_block - first_block - 1;
  if (blocks == 0) return ends;
  // The blocks in between are covered by two overlapping ranges whose length is a power of two.
  const auto level = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(blocks)) - 1);
  const std::vector<int64_t>& most = block_most_[level];
  return std::max({ends, most[at(first_block + 1)], most[at(last_block) - (size_t{1} << level)]});
}

void Timeline::find_most() const {
  has_most_ = true;
  most_from_start_.resize(at(size()));
  most_to_end_.resize(at(size()));
  const int32_t blocks = (size() + kBlock - 1) / kBlock;
  const auto levels = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(blocks)));
  if (block_most_.size() < std::max<size_t>(levels, 1)) block_most_.resize(std::max<size_t>(levels, 1));
  block_most_[0].resize(at(blocks));
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t first = block * kBlock;
    const int32_t end = std::min(first + kBlock, size());
    int64_t most = kLeast;
    for (int32_t p = first; p < end; ++p) most_from_start_[at(p)] = most = std::max(most, moments_[at(p)]);
    block_most_[0][at(block)] = most;
    most = kLeast;
    for (int32_t p = end; p-- > first;) most_to_end_[at(p)] = most = std::max(most, moments_[at(p)]);
  }
  for (size_t level = 1; level < levels; ++level) {
    const size_t half = size_t{1} << (level - 1);
    const size_t count = at(blocks) + 1 - 2 * half;
    block_most_[level].resize(count);
    for (size_t b = 0; b < count; ++b)
      block_most_[level][b] = std::max(block_most_[level - 1][b], block_most_[level - 1][b + half]);
  }
}

/// Collects all reads and writes by value, in a counting sort.
void Timeline::find_events() {
  event_begin_.assign(at(flat_->value_count) + 1, 0);
  int32_t* const begins = event_begin_.data();
  for (const int32_t op : runs_)
    for (const uint32_t touch : flat_->touched(op)) ++begins[touch / 2];
  int32_t sum = 0;
  for (int32_t& begin : event_begin_) begin = sum += begin;
  events_.resize(at(sum));
  Event* const events = events_.data();
  for (int32_t p = size(); p-- > 0;)
    for (const uint32_t touch : flat_->touched(run(p))) events[--begins[touch / 2]] = {p, (touch & 1) != 0};
}

void Timeline::find_copies() {
  copy_begin_.resize(at(flat_->value_count) + 1);
  if (copies_.size() < events_.size()) copies_.resize(events_.size());  // There is at most one copy for each event.
  between_.assign(at(size()) + 2, 0);
  Copy* next = copies_.data();
  for (int32_t v = 0; v < flat_->value_count; ++v) {
    copy_begin_[at(v)] = static_cast<int32_t>(next - copies_.data());
    const std::span<const Event> all = events(v);
    if (all.empty()) continue;
    Copy* const first = next;
    for (const Event& event : all) {
      if (event.is_write) {
        *next++ = {event.position, event.position, event.position};
      } else {
        next[-1].last = next[-1].freed = event.position;
      }
    }
    if (flat_->is_output[at(v)] != 0) next[-1].last = next[-1].freed = size();
    if (!flat_->has_holds) add_bytes({first, next}, flat_->bytes[at(v)]);
  }
  copy_begin_.back() = static_cast<int32_t>(next - copies_.data());
}

/// Adds copies to between_ as changes from one position to the next; add_up() sums them.
void Timeline::add_bytes(std::span<const Copy> copies, int64_t bytes) {
  int64_t* const changes = between_.data() + 1;
  for (const Copy& copy : copies) {
    changes[copy.born] += bytes;
    changes[copy.freed] -= bytes;
  }
}

void Timeline::extend_held() {
  for (const int32_t holder : flat_->hold_order) {
    for (const Copy& holding : copies(holder)) {
      for (const int32_t held : flat_->holds(holder)) {
        const int32_t first = copy_begin_[at(held)];
        const auto all = std::span(copies_).subspan(at(first), at(copy_begin_[at(held) + 1] - first));
        // A holder holds the copy that its run finds or makes.
        const auto later =
            std::ranges::partition_point(all, [&](const Copy& copy) { return copy.born <= holding.born; });
        if (later == all.begin()) continue;
        Copy& copy = *std::prev(later);
        if (copy.last >= holding.born) copy.freed = std::max(copy.freed, holding.freed);
      }
    }
  }
  for (int32_t v = 0; v < flat_->value_count; ++v) add_bytes(copies(v), flat_->bytes[at(v)]);
}

/// Returns whether another copy holds a copy during the run at a position.
bool Timeline::is_held(int32_t value, const Copy& copy, int32_t position) const {
  return std::ranges::any_of(flat_->holders(value), [&](int32_t holder) {
    return std::ranges::any_of(copies(holder), [&](const Copy& holding) {
      return holding.born >= copy.born && holding.born <= position && holding.freed >= position;
    });
  });
}

/// Returns the input whose memory the first output of the run at a position takes: one that dies there and that nothing
/// holds. Returns -1 where there is none.
int32_t Timeline::overwritten(int32_t position) const {
  const int32_t op = run(position);
  for (const int32_t v : flat_->overwrites(op)) {
    const Copy* copy = alive(v, position);
    if (copy == nullptr || copy->last != position || is_held(v, *copy, position)) continue;
    // The first output is not live: its earlier copy, if any, was dropped after its last use.
    return v;
  }
  return -1;
}

void Timeline::add_up() {
  int64_t sum = flat_->graph.resident_bytes();
  moments_.resize(at(size()));
  peak_bytes_ = sum;
  time_ns_ = 0;
  for (int32_t p = 0; p < size(); ++p) {
    const int32_t op = run(p);
    // Copies that end at p still count in its moment.
    sum += between_[at(p)];
    between_[at(p)] = sum;
    int64_t moment = sum + flat_->output_bytes[at(op)] + flat_->workspace[at(op)];
    if (!flat_->overwrites(op).empty()) {
      const int32_t v = overwritten(p);
      if (v >= 0) moment -= flat_->bytes[at(v)];
    }
    moments_[at(p)] = moment;
    peak_bytes_ = std::max(peak_bytes_, moment);
    if (__builtin_add_overflow(time_ns_, flat_->time_ns[at(op)], &time_ns_))
      time_ns_ = std::numeric_limits<int64_t>::max();
  }
  between_[at(size())] += sum;
  has_most_ = false;
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

}  // namespace headroom::internal
