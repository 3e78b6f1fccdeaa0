// The parts of RunSearch that remove runs and make random changes.

#include <algorithm>
#include <limits>
#include <optional>

#include "headroom/plan/auto/search.h"

namespace headroom::internal {
namespace {

/// Maximum work of one call of prune(), for each op of the graph. A plan for the smallest budget of a long chain may
/// have a hundred times as many runs as the graph has ops, and would take very many passes.
constexpr int64_t kMaxPruneWorkPerOp = 2'000;

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

/// Returns how to remove a run whose outputs can be kept from an earlier copy instead, or none where that is seen to
/// exceed the target without trying it. Where an earlier run of an alternative wrote only some of the outputs, that run
/// is replaced by one of this op.
std::optional<RunSearch::Removal> RunSearch::find_removal(int32_t position, int64_t target_bytes) const {
  const int32_t op = now_.run(position);
  Removal removal{position, -1, op, position, 0};
  int64_t sum = 0;
  int32_t first = position;
  bool lacks_some = false;
  for (const int32_t w : flat_.outputs(op)) {
    const std::span<const Timeline::Copy> copies = now_.copies(w);
    const auto later =
        std::ranges::partition_point(copies, [&](const Timeline::Copy& copy) { return copy.born < position; });
    if (later != copies.begin()) removal.replaced = std::max(removal.replaced, std::prev(later)->born);
    if (later->last == position) continue;  // This copy is never read.
    sum += flat_.bytes[at(w)];
    if (later == copies.begin()) {
      lacks_some = true;
      continue;
    }
    const int32_t freed = std::prev(later)->freed;
    first = std::min(first, freed + 1);
    if (freed >= position) continue;
    const std::span<const int32_t> taken_over = flat_.overwrites(now_.run(freed));
    if (std::ranges::find(taken_over, w) != taken_over.end()) first = std::min(first, freed);
  }
  if (!lacks_some) {
    removal.replaced = -1;
  } else {
    if (removal.replaced < 0 || flat_.once[at(op)] != 0) return {};
    const int32_t other = now_.run(removal.replaced);
    const auto is_made = [&](int32_t w) { return std::ranges::find(flat_.outputs(op), w) != flat_.outputs(op).end(); };
    if (!now_.is_ready(op, removal.replaced) || !std::ranges::all_of(flat_.outputs(other), is_made)) return {};
    first = std::min(first, removal.replaced);
  }
  if (now_.most(first, position - 1) > target_bytes - sum) return {};
  removal.first = first;
  removal.bytes = sum;
  return removal;
}

/// Evaluates in trial_ the sequence without some runs. Where an earlier run is replaced, there must be only one
/// removal.
void RunSearch::try_without(std::span<const Removal> removals) {
  std::vector<int32_t> positions;
  for (const Removal& removal : removals) positions.push_back(removal.position);
  std::ranges::sort(positions);
  make_edited({}, positions);
  for (const Removal& removal : removals)
    if (removal.replaced >= 0) edited_[at(removal.replaced)] = removal.op;
  try_runs(edited_);
}

/// Replaces each run whose outputs are not all read by an alternative that writes what is read, reads no other inputs,
/// and is cheaper (by time, then bytes).
void RunSearch::make_leaner() {
  if (!flat_.has_alternatives) return;
  edited_ = now_.runs();
  bool changed = false;
  for (int32_t p = 0; p < now_.size(); ++p) {
    const int32_t op = now_.run(p);
    if (std::ranges::all_of(flat_.outputs(op), [&](int32_t v) { return flat_.producers(v).size() == 1; })) continue;
    const auto is_read = [&](int32_t w) { return now_.alive(w, p + 1) != nullptr; };
    const auto cost = [&](int32_t one) {
      return std::pair(flat_.time_ns[at(one)], flat_.output_bytes[at(one)] + flat_.workspace[at(one)]);
    };
    const int32_t shared =
        *std::ranges::find_if(flat_.outputs(op), [&](int32_t v) { return flat_.producers(v).size() > 1; });
    for (const int32_t other : flat_.producers(shared)) {
      if (flat_.once[at(other)] != 0 || cost(other) >= cost(edited_[at(p)])) continue;
      const auto makes = [&](int32_t w) {
        return std::ranges::find(flat_.outputs(other), w) != flat_.outputs(other).end();
      };
      const auto reads = [&](int32_t u) { return std::ranges::find(flat_.inputs(op), u) != flat_.inputs(op).end(); };
      const bool makes_all = std::ranges::all_of(flat_.outputs(op), [&](int32_t w) { return !is_read(w) || makes(w); });
      if (!makes_all || !std::ranges::all_of(flat_.inputs(other), reads)) continue;
      edited_[at(p)] = other;
      changed = true;
    }
  }
  if (changed) assign(edited_);
}

void RunSearch::prune(int64_t target_bytes) {
  if (flat_.has_alternatives) {
    const std::vector<int32_t> before = now_.runs();
    make_leaner();
    if (now_.peak_bytes() > target_bytes) assign(before);
  }
  drop_early_runs();
  const int64_t end = work_ + kMaxPruneWorkPerOp * flat_.op_count;
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<std::pair<int64_t, int32_t>> order;  // Reruns, slowest first.
    for (int32_t p = 0; p < now_.size(); ++p)
      if (is_rerun(p)) order.emplace_back(-flat_.time_ns[at(now_.run(p))], p);
    std::ranges::sort(order);
    // Each try evaluates the whole sequence, so as many runs are removed at a time as seem to fit together.
    size_t most = order.size();
    for (size_t i = 0; i < order.size();) {
      if (work_ > end) return;
      std::vector<Removal> removals;
      const size_t first = i;
      for (; i < order.size() && removals.size() < most; ++i) {
        ++work_;
        const std::optional<Removal> removal = find_removal(order[i].second, target_bytes);
        if (!removal || (!removals.empty() && !fits_with_others(*removal, target_bytes))) continue;
        // A removal that replaces an earlier run is tried by itself.
        if (removal->replaced >= 0 && !removals.empty()) break;
        removals.push_back(*removal);
        for (const int32_t w : flat_.outputs(removal->op)) is_removed_[at(w)] = 1;
        if (removal->replaced >= 0) {
          ++i;
          break;
        }
        if (removals.size() == 1) with_removals_.assign(now_.moments());
        if (removal->first < removal->position)
          with_removals_.add(at(removal->first), at(removal->position), removal->bytes);
      }
      if (removals.empty()) continue;
      for (const Removal& removal : removals)
        for (const int32_t w : flat_.outputs(removal.op)) is_removed_[at(w)] = 0;
      try_without(removals);
      if (trial_.peak_bytes() > target_bytes) {
        if (removals.size() > 1) i = first;
        if (removals.front().replaced < 0) most = std::max<size_t>(1, removals.size() / 4);
        continue;
      }
      std::swap(now_, trial_);
      changed = true;
      std::ranges::sort(removals, {}, &Removal::position);
      for (size_t k = i; k < order.size(); ++k) {
        const auto later = std::ranges::partition_point(
            removals, [&](const Removal& removal) { return removal.position < order[k].second; });
        order[k].second -= static_cast<int32_t>(later - removals.begin());
      }
    }
  }
}

/// Removes first runs that nothing reads before the op runs again, as long as no other first run is in between. First
/// runs keep their order, and memory only decreases.
void RunSearch::drop_early_runs() {
  std::vector<int32_t> early;
  int32_t next_first = now_.size();  // Position of the first run that follows.
  for (int32_t p = now_.size(); p-- > 0;) {
    if (is_rerun(p)) continue;
    const std::span<const int32_t> outputs = flat_.outputs(now_.run(p));
    const auto is_made_again = [&](int32_t w) {
      const std::span<const Timeline::Event> events = now_.events(w);
      return events.size() > 1 && events[1].is_write && events[1].position < next_first &&
             now_.run(events[1].position) == now_.run(p);
    };
    if (!outputs.empty() && std::ranges::all_of(outputs, is_made_again)) {
      early.push_back(p);
      next_first = now_.events(outputs.front())[1].position;
    } else {
      next_first = p;
    }
  }
  work_ += now_.size() / 8;
  if (early.empty()) return;
  std::ranges::reverse(early);
  make_edited({}, early);
  assign(edited_);
}

/// Returns whether a run can be removed together with those in with_removals_. It cannot if one of them writes the same
/// value, since the value would be kept from that run.
bool RunSearch::fits_with_others(const Removal& removal, int64_t target_bytes) const {
  for (const int32_t w : flat_.outputs(removal.op))
    if (is_removed_[at(w)] != 0) return false;
  return removal.first >= removal.position ||
         with_removals_.most(at(removal.first), at(removal.position)) <= target_bytes - removal.bytes;
}

/// Returns whether one of the run's outputs was written before.
bool RunSearch::is_rerun(int32_t position) const {
  return std::ranges::any_of(flat_.outputs(now_.run(position)),
                             [&](int32_t w) { return now_.events(w).front().position < position; });
}

bool RunSearch::ruin(int count) {
  restart();
  if (!has_removals_) {
    removals_.clear();
    for (int32_t p = 0; p < now_.size(); ++p) {
      if (!is_rerun(p)) continue;
      const std::optional<Removal> removal = find_removal(p, std::numeric_limits<int64_t>::max());
      if (removal) removals_.push_back(*removal);
    }
    work_ += now_.size();
    has_removals_ = true;
  }
  if (removals_.empty()) return false;
  std::vector<Removal> removals = removals_;
  const auto n = static_cast<int64_t>(removals.size());
  const int64_t chosen = static_cast<int64_t>(random(removals.size()));
  const uint64_t kind = random(4);
  std::vector<Removal> removed;
  if (kind < 2) {
    // Remove neighbouring reruns.
    const int64_t first = std::clamp<int64_t>(chosen - count / 2, 0, std::max<int64_t>(n - count, 0));
    removed.assign(removals.begin() + first, removals.begin() + std::min(first + count, n));
  } else {
    // Remove reruns of ops with equal costs, such as the same op in other blocks, or any reruns.
    const int32_t op = removals[static_cast<size_t>(chosen)].op;
    if (kind == 2)
      std::erase_if(removals, [&](const Removal& removal) {
        return flat_.time_ns[at(removal.op)] != flat_.time_ns[at(op)] ||
               flat_.output_bytes[at(removal.op)] != flat_.output_bytes[at(op)];
      });
    for (int i = 0; i < count && !removals.empty(); ++i) {
      const auto which = removals.begin() + static_cast<std::ptrdiff_t>(random(removals.size()));
      removed.push_back(*which);
      removals.erase(which);
    }
    std::ranges::sort(removed, {}, &Removal::position);
  }
  if (!flat_.has_alternatives) {
    try_without(removed);
    std::swap(now_, trial_);
    return true;
  }
  // Removals go from the last to the first, so that positions stay valid. Each is looked for anew, because the copy
  // that it relied on may have been removed.
  for (size_t i = removed.size(); i-- > 0;) {
    const std::optional<Removal> removal = find_removal(removed[i].position, std::numeric_limits<int64_t>::max());
    if (!removal) continue;
    try_without(std::span(&*removal, 1));
    std::swap(now_, trial_);
  }
  return true;
}

/// Postpones an op that may run only once, if an alternative writes what is read for now: the alternative takes its
/// place, and the op runs right before the first read of an output that only the op writes.
void RunSearch::put_off(int32_t position) {
  const int32_t op = now_.run(position);
  const auto shared = std::ranges::find_if(flat_.outputs(op), [&](int32_t v) { return flat_.maker[at(v)] >= 0; });
  if (flat_.once[at(op)] == 0 || shared == flat_.outputs(op).end()) return;
  const int32_t other = flat_.maker[at(*shared)];
  if (!now_.is_ready(other, position)) return;
  int32_t needed = now_.size();
  for (const int32_t w : flat_.outputs(op)) {
    if (std::ranges::find(flat_.outputs(other), w) != flat_.outputs(other).end()) continue;
    const std::span<const Timeline::Event> later = now_.events(w).subspan(at(now_.events_before(w, position + 1)));
    if (!later.empty()) needed = std::min(needed, later.front().position);
  }
  make_edited({{needed, op}}, {});
  edited_[at(position)] = other;
  try_runs(edited_);
  std::swap(now_, trial_);
}

void RunSearch::insert_any(int count) {
  if (flat_.has_alternatives && random(2) == 0) put_off(static_cast<int32_t>(random(at(now_.size()))));
  for (int i = 0; i < count; ++i) {
    const auto position = static_cast<int32_t>(1 + random(at(now_.size())));
    const int32_t op = now_.run(static_cast<int32_t>(random(at(position))));
    if (flat_.once[at(op)] != 0) continue;
    make_edited({{position, op}}, {});
    try_runs(edited_);
    std::swap(now_, trial_);
  }
}

}  // namespace headroom::internal
