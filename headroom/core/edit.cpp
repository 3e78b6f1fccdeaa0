#include "headroom/core/edit.h"

#include <algorithm>
#include <limits>

#include "headroom/core/error.h"

namespace headroom {
namespace {

constexpr int64_t kNoMoment = std::numeric_limits<int64_t>::min();

bool contains(const std::vector<ValueId>& ids, ValueId id) { return std::ranges::find(ids, id) != ids.end(); }

/// A well-mixed function of `x`: priorities that keep the tree balanced and are the same in every run.
uint32_t mixed(uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 29U)) * 0x94D049BB133111EBU;
  return static_cast<uint32_t>(x >> 32U);
}

/// By value, a number larger than those of all its holders.
std::vector<int32_t> rank_by_holding(const Graph& graph) {
  std::vector<size_t> open(graph.values().size());
  std::vector<ValueId> order;
  for (size_t v = 0; v < open.size(); ++v) {
    open[v] = graph.holders(value_id(v)).size();
    if (open[v] == 0) order.push_back(value_id(v));
  }
  std::vector<int32_t> rank(open.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    rank[index(order[i])] = static_cast<int32_t>(i);
    for (const ValueId held : graph.value(order[i]).holds)
      if (--open[index(held)] == 0) order.push_back(held);
  }
  return rank;
}

}  // namespace

ScheduleEditor::ScheduleEditor(const Graph& graph, const Schedule& schedule)
    : graph_(graph),
      lives_(graph.values().size()),
      hold_rank_(rank_by_holding(graph)),
      run_count_(graph.ops().size(), 0) {
  nodes_.reserve(schedule.steps.size());
  for (const Step& step : schedule.steps) {
    const Handle handle = new_node(step);
    link(kEnd, index_of(handle));
    for (const ValueId id : touched_by(step)) lives_[index(id)].events.push_back(handle);
  }
  std::vector<ValueId> all;
  for (size_t v = 0; v < lives_.size(); ++v)
    if (!graph.values()[v].resident) all.push_back(value_id(v));
  std::ranges::sort(all, {}, [&](ValueId id) { return hold_rank_[index(id)]; });
  attach(all);
}

ScheduleEditor::Handle ScheduleEditor::insert(Handle before, Step step) {
  const Handle handle = new_node(step);
  const std::vector<ValueId> affected = affected_by(step);
  detach(affected);
  link(before, index_of(handle));
  for (const ValueId id : touched_by(step)) {
    std::vector<Handle>& events = lives_[index(id)].events;
    const auto later = std::ranges::partition_point(events, [&](Handle event) { return compare(event, handle) < 0; });
    events.insert(later, handle);
  }
  attach(affected);
  return handle;
}

void ScheduleEditor::erase(Handle handle) {
  const Step step = this->step(handle);
  const std::vector<ValueId> affected = affected_by(step);
  detach(affected);
  for (const ValueId id : touched_by(step)) std::erase(lives_[index(id)].events, handle);
  unlink(index_of(handle));
  count(step, -1);
  free_nodes_.push_back(index_of(handle));
  attach(affected);
}

int64_t ScheduleEditor::peak_bytes() const {
  const int64_t largest = root_ == kNil ? kNoMoment : node(root_).largest;
  return graph_.resident_bytes() + (largest == kNoMoment ? 0 : std::max<int64_t>(largest, 0));
}

int64_t ScheduleEditor::moment_bytes(Handle run) const {
  int32_t i = index_of(run);
  int64_t before = node(i).left == kNil ? 0 : node(node(i).left).sum;
  const int64_t moment = node(i).moment;
  for (; node(i).parent != kNil; i = node(i).parent) {
    const Node& parent = node(node(i).parent);
    if (parent.right == i) before += parent.delta + (parent.left == kNil ? 0 : node(parent.left).sum);
  }
  return graph_.resident_bytes() + before + moment;
}

ScheduleEditor::Handle ScheduleEditor::peak_step() const {
  if (root_ == kNil || node(root_).largest == kNoMoment) return kEnd;
  int32_t i = root_;
  int64_t wanted = node(root_).largest;
  for (;;) {
    const Node& n = node(i);
    if (n.left != kNil && node(n.left).largest == wanted) {
      i = n.left;
      continue;
    }
    const int64_t left_sum = n.left == kNil ? 0 : node(n.left).sum;
    if (n.step.is_run() && left_sum + n.moment == wanted) return static_cast<Handle>(i);
    wanted -= left_sum + n.delta;
    i = n.right;
  }
}

ScheduleEditor::Handle ScheduleEditor::first() const {
  int32_t i = root_;
  while (i != kNil && node(i).left != kNil) i = node(i).left;
  return static_cast<Handle>(i);
}

ScheduleEditor::Handle ScheduleEditor::next(Handle handle) const {
  int32_t i = index_of(handle);
  if (node(i).right != kNil) {
    i = node(i).right;
    while (node(i).left != kNil) i = node(i).left;
    return static_cast<Handle>(i);
  }
  while (node(i).parent != kNil && node(node(i).parent).right == i) i = node(i).parent;
  return static_cast<Handle>(node(i).parent);
}

size_t ScheduleEditor::position(Handle handle) const {
  int32_t i = index_of(handle);
  int32_t before = node(i).left == kNil ? 0 : node(node(i).left).count;
  for (; node(i).parent != kNil; i = node(i).parent) {
    const Node& parent = node(node(i).parent);
    if (parent.right == i) before += 1 + (parent.left == kNil ? 0 : node(parent.left).count);
  }
  return static_cast<size_t>(before);
}

Schedule ScheduleEditor::schedule() const {
  Schedule result;
  result.steps.reserve(size());
  for (Handle handle = first(); handle != kEnd; handle = next(handle)) result.steps.push_back(step(handle));
  return result;
}

ScheduleEditor::Handle ScheduleEditor::new_node(Step step) {
  count(step, 1);
  Node fresh{.step = step};
  if (step.is_run()) {
    const Op& op = graph_.op(step.op());
    for (const ValueId id : op.outputs) fresh.delta += graph_.value(id).bytes;
    fresh.moment = fresh.delta + op.workspace_bytes;
    if (step.is_over()) fresh.moment -= graph_.value(step.value()).bytes;
  }
  if (free_nodes_.empty()) {
    nodes_.push_back(fresh);
    nodes_.back().priority = mixed(nodes_.size());
    return static_cast<Handle>(nodes_.size() - 1);
  }
  const int32_t i = free_nodes_.back();
  free_nodes_.pop_back();
  fresh.priority = node(i).priority;
  node(i) = fresh;
  return static_cast<Handle>(i);
}

void ScheduleEditor::count(Step step, int sign) {
  if (!step.is_run()) {
    if (graph_.value(step.value()).resident) faults_ += sign;
    return;
  }
  const Op& op = graph_.op(step.op());
  int64_t bytes = op.workspace_bytes < 0 ? -op.workspace_bytes : op.workspace_bytes;
  for (const ValueId id : op.outputs) bytes += graph_.value(id).bytes;
  int64_t written_bytes = 0;
  int64_t time_ns = 0;
  if (__builtin_add_overflow(written_bytes_, sign * bytes, &written_bytes) ||
      __builtin_add_overflow(time_ns_, sign * op.time_ns, &time_ns))
    throw TooLarge("the bytes or times of the schedule's runs do not fit 64 bits");
  written_bytes_ = written_bytes;
  time_ns_ = time_ns;
  int32_t& runs = run_count_[index(step.op())];
  // Whichever of two runs goes, one fault goes with it.
  if (!op.recompute && std::max(runs, runs + sign) > 1) faults_ += sign;
  runs += sign;
  if (step.is_over() && !contains(op.overwrites, step.value())) faults_ += sign;
}

void ScheduleEditor::refresh(int32_t i) {
  Node& n = node(i);
  n.count = 1;
  n.sum = 0;
  n.largest = kNoMoment;
  if (n.left != kNil) {
    n.count += node(n.left).count;
    n.sum = node(n.left).sum;
    n.largest = node(n.left).largest;
  }
  if (n.step.is_run()) n.largest = std::max(n.largest, n.sum + n.moment);
  n.sum += n.delta;
  if (n.right != kNil) {
    const Node& right = node(n.right);
    n.count += right.count;
    if (right.largest != kNoMoment) n.largest = std::max(n.largest, n.sum + right.largest);
    n.sum += right.sum;
  }
}

void ScheduleEditor::refresh_to_root(int32_t i) {
  for (; i != kNil; i = node(i).parent) refresh(i);
}

void ScheduleEditor::rotate_up(int32_t child) {
  const int32_t parent = node(child).parent;
  const int32_t above = node(parent).parent;
  const bool was_left = node(parent).left == child;
  int32_t& inner = was_left ? node(child).right : node(child).left;
  (was_left ? node(parent).left : node(parent).right) = inner;
  if (inner != kNil) node(inner).parent = parent;
  inner = parent;
  node(parent).parent = child;
  node(child).parent = above;
  if (above == kNil) {
    root_ = child;
  } else {
    (node(above).left == parent ? node(above).left : node(above).right) = child;
  }
  refresh(parent);
  refresh(child);
}

void ScheduleEditor::link(Handle before, int32_t added) {
  // A leaf first: the rightmost place left of `before`; then up while it weighs more.
  int32_t place = before == kEnd ? root_ : node(index_of(before)).left;
  if (place == kNil) {
    const int32_t parent = before == kEnd ? kNil : index_of(before);
    node(added).parent = parent;
    (parent == kNil ? root_ : node(parent).left) = added;
  } else {
    while (node(place).right != kNil) place = node(place).right;
    node(place).right = added;
    node(added).parent = place;
  }
  refresh(added);
  while (node(added).parent != kNil && node(node(added).parent).priority < node(added).priority) rotate_up(added);
  refresh_to_root(node(added).parent);
}

void ScheduleEditor::unlink(int32_t removed) {
  while (node(removed).left != kNil || node(removed).right != kNil) {
    const int32_t left = node(removed).left;
    const int32_t right = node(removed).right;
    const bool take_left = right == kNil || (left != kNil && node(left).priority >= node(right).priority);
    rotate_up(take_left ? left : right);
  }
  const int32_t parent = node(removed).parent;
  if (parent == kNil) {
    root_ = kNil;
  } else {
    (node(parent).left == removed ? node(parent).left : node(parent).right) = kNil;
  }
  refresh_to_root(parent);
}

void ScheduleEditor::add_delta(Handle handle, int64_t bytes) {
  if (handle == kEnd || bytes == 0) return;
  node(index_of(handle)).delta += bytes;
  refresh_to_root(index_of(handle));
}

int ScheduleEditor::compare(Handle a, Handle b) const {
  if (a == b) return 0;
  if (a == kEnd) return 1;
  if (b == kEnd) return -1;
  return position(a) < position(b) ? -1 : 1;
}

std::vector<ValueId> ScheduleEditor::touched_by(Step step) const {
  std::vector<ValueId> ids;
  const auto add = [&](ValueId id) {
    if (!graph_.value(id).resident) ids.push_back(id);
  };
  if (!step.is_run()) {
    add(step.value());
    return ids;
  }
  for (const ValueId id : graph_.op(step.op()).inputs) add(id);
  for (const ValueId id : graph_.op(step.op()).outputs) add(id);
  return ids;
}

std::vector<ValueId> ScheduleEditor::affected_by(Step step) const {
  std::vector<ValueId> ids = touched_by(step);
  for (size_t i = 0; i < ids.size(); ++i)
    for (const ValueId held : graph_.value(ids[i]).holds)
      if (!graph_.value(held).resident && !contains(ids, held)) ids.push_back(held);
  std::ranges::sort(ids, {}, [&](ValueId id) { return hold_rank_[index(id)]; });
  return ids;
}

void ScheduleEditor::detach(std::span<const ValueId> affected) {
  for (const ValueId id : affected) {
    Life& life = lives_[index(id)];
    for (const Copy& copy : life.copies) add_delta(copy.freed, graph_.value(id).bytes);
    life.copies.clear();
    faults_ -= life.faults;
  }
}

void ScheduleEditor::attach(std::span<const ValueId> affected) {
  for (const ValueId id : affected) find_copies(id);
  for (const ValueId id : affected) {
    extend_by_holders(id);
    Life& life = lives_[index(id)];
    for (const Copy& copy : life.copies) add_delta(copy.freed, -graph_.value(id).bytes);
    faults_ += life.faults;
  }
}

void ScheduleEditor::find_copies(ValueId id) {
  Life& life = lives_[index(id)];
  life.faults = 0;
  bool alive = false;
  const auto end_copy = [&](Handle event) {
    life.copies.back().ended = event;
    alive = false;
  };
  for (const Handle event : life.events) {
    const Step step = this->step(event);
    const bool is_written = step.is_run() && contains(graph_.op(step.op()).outputs, id);
    if (!is_written && !alive) {
      ++life.faults;  // reads or drops what is not there
    } else if (is_written) {
      if (alive && step.is_over() && graph_.op(step.op()).outputs.front() == id) ++life.faults;
      if (alive) end_copy(event);
      life.copies.push_back(Copy{event, kEnd, kEnd});
      alive = true;
    } else if (!step.is_run() || (step.is_over() && step.value() == id)) {
      end_copy(event);
    }
  }
  if (!alive && graph_.is_output(id)) ++life.faults;
}

void ScheduleEditor::extend_by_holders(ValueId id) {
  Life& life = lives_[index(id)];
  for (Copy& copy : life.copies) copy.freed = copy.ended;
  for (const ValueId holder : graph_.holders(id)) {
    for (const Copy& holding : lives_[index(holder)].copies) {
      Copy* copy = find_copy(id, holding.born);
      if (copy == nullptr) continue;
      if (compare(holding.freed, copy->freed) > 0) copy->freed = holding.freed;
      const bool overwritten = copy->ended != kEnd && step(copy->ended).is_over() && step(copy->ended).value() == id;
      if (overwritten && compare(holding.freed, copy->ended) >= 0) ++life.faults;
    }
  }
}

/// The copy of `id` that `run` writes, else the one that it finds alive; null where there is none.
ScheduleEditor::Copy* ScheduleEditor::find_copy(ValueId id, Handle run) {
  std::vector<Copy>& copies = lives_[index(id)].copies;
  const auto later =
      std::ranges::partition_point(copies, [&](const Copy& copy) { return compare(copy.born, run) <= 0; });
  if (later == copies.begin()) return nullptr;
  Copy& copy = *std::prev(later);
  if (copy.born != run && compare(copy.ended, run) < 0) return nullptr;
  return &copy;
}

}  // namespace headroom
