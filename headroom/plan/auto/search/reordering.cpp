#include "headroom/plan/auto/search/reordering.h"

#include <algorithm>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

bool contains(std::span<const int32_t> items, int32_t item) { return std::ranges::find(items, item) != items.end(); }

}  // namespace

bool Reordering::run(int64_t target_bytes) {
  bool is_changed = false;
  banned_.clear();
  size_t max_moves = std::max<size_t>(1, at(now_.size() / parameters_.runs_per_move));
  const int64_t end = editor_.work() + parameters_.max_work_per_run * now_.size();
  bool is_new = true;  // Whether the moves are to be found anew.
  while (now_.peak_bytes() > target_bytes && editor_.work() < end) {
    if (is_new) {
      excess_.assign(now_, target_bytes);
      find_moves();
    }
    const size_t applied = apply_best(max_moves);
    if (applied == 0) return is_changed;
    is_new = excess_above(editor_.trial(), target_bytes) < excess_.total();
    if (is_new) {
      editor_.accept();
      is_changed = true;
      continue;
    }
    if (applied > 1) {
      max_moves = std::max<size_t>(1, applied / 4);
      continue;
    }
    if (banned_.size() >= parameters_.max_failed_moves) return is_changed;
    banned_.emplace_back(now_.run(moves_.front().positions.front()), moves_.front().before);
    moves_.erase(moves_.begin());
  }
  return is_changed;
}

/// Finds the moves with a gain, the best ones first.
void Reordering::find_moves() {
  moves_.clear();
  if (excess_.total() <= 0) return;
  for (int32_t p = 0; p < now_.size(); ++p) {
    add_sink(p);
    add_hoist(p);
  }
  editor_.add_work(now_.size() / 2);
  std::ranges::stable_sort(moves_, [](const OrderMove& a, const OrderMove& b) { return a.gain > b.gain; });
}

void Reordering::keep(const OrderMove& move) {
  if (move.gain <= 0) return;
  const std::pair<int32_t, int32_t> key(now_.run(move.positions.front()), move.before);
  if (std::ranges::find(banned_, key) == banned_.end()) moves_.push_back(move);
}

/// Returns the first position after the runs at some positions at which something else reads or rewrites what they
/// write, or the end.
int32_t Reordering::latest(const std::vector<int32_t>& positions) const {
  int32_t latest = now_.size();
  for (const int32_t p : positions) {
    for (const int32_t w : flat_.outputs(now_.run(p))) {
      const std::span<const Timeline::Event> events = now_.events(w);
      for (size_t k = at(now_.events_before(w, p + 1)); k < events.size(); ++k) {
        if (contains(positions, events[k].position)) continue;
        latest = std::min(latest, events[k].position);
        break;
      }
    }
  }
  return latest;
}

/// Returns the first position before which the runs at some positions can run with the copies that they read now.
int32_t Reordering::earliest(const std::vector<int32_t>& positions) const {
  int32_t earliest = 0;
  for (const int32_t p : positions) {
    for (const int32_t u : flat_.inputs(now_.run(p))) {
      const Timeline::Copy* const copy = now_.alive(u, p);
      if (!contains(positions, copy->born)) earliest = std::max(earliest, copy->born + 1);
    }
  }
  return earliest;
}

void Reordering::add_sink(int32_t position) {
  OrderMove move{.positions = {position}};
  OrderMove best;
  for (size_t i = 0; i < parameters_.max_block; ++i) {
    move.before = latest(move.positions);
    if (move.before <= move.positions.back() || !excess_.is_over_between(move.positions.front(), move.before)) break;
    move.gain = gain_of(move.positions, move.before);
    if (move.gain > best.gain) best = move;
    if (best.gain > 0 || !grow_back(move.positions)) break;
  }
  keep(best);
}

void Reordering::add_hoist(int32_t position) {
  OrderMove move{.positions = {position}};
  OrderMove best;
  for (size_t i = 0; i < parameters_.max_block; ++i) {
    move.before = earliest(move.positions);
    if (move.before >= move.positions.front() || !excess_.is_over_between(move.before, move.positions.back() + 1))
      break;
    move.gain = gain_of(move.positions, move.before);
    if (move.gain > best.gain) best = move;
    if (best.gain > 0 || !grow_forward(move.positions)) break;
  }
  keep(best);
}

/// Adds the run that writes the largest of the copies that die at these runs, if nothing else reads its outputs.
bool Reordering::grow_back(std::vector<int32_t>& positions) const {
  int32_t best = -1;
  int64_t most_bytes = -1;
  for (const int32_t p : positions) {
    for (const int32_t u : flat_.inputs(now_.run(p))) {
      const Timeline::Copy* const copy = now_.alive(u, p);
      if (flat_.bytes[at(u)] <= most_bytes || contains(positions, copy->born)) continue;
      const auto is_own = [&](int32_t w) {
        const Timeline::Copy* const made = now_.alive(w, copy->born + 1);
        if (made == nullptr) return true;
        const std::span<const Timeline::Event> events = now_.events(w);
        for (size_t k = at(now_.events_before(w, copy->born + 1)); k < events.size(); ++k) {
          if (events[k].is_write) return true;
          if (!contains(positions, events[k].position)) return false;
        }
        return flat_.is_output[at(w)] == 0;
      };
      if (!std::ranges::all_of(flat_.outputs(now_.run(copy->born)), is_own)) continue;
      best = copy->born;
      most_bytes = flat_.bytes[at(u)];
    }
  }
  if (best < 0) return false;
  positions.insert(std::ranges::lower_bound(positions, best), best);
  return true;
}

/// Adds the first run that reads the largest of the outputs of these runs, if it can follow them directly.
bool Reordering::grow_forward(std::vector<int32_t>& positions) const {
  int32_t best = -1;
  int64_t most_bytes = -1;
  for (const int32_t p : positions) {
    for (const int32_t w : flat_.outputs(now_.run(p))) {
      const std::span<const Timeline::Event> events = now_.events(w);
      const auto next = std::ranges::find_if(
          events, [&](const Timeline::Event& e) { return e.position > p && !contains(positions, e.position); });
      if (next == events.end() || next->is_write || flat_.bytes[at(w)] <= most_bytes) continue;
      const auto is_ready = [&](int32_t u) {
        const Timeline::Copy* const copy = now_.alive(u, next->position);
        return copy->born < positions.front() || contains(positions, copy->born);
      };
      if (!std::ranges::all_of(flat_.inputs(now_.run(next->position)), is_ready)) continue;
      best = next->position;
      most_bytes = flat_.bytes[at(w)];
    }
  }
  if (best < 0) return false;
  positions.insert(std::ranges::lower_bound(positions, best), best);
  return true;
}

/// Notes that `bytes` more are live in the moments of [first, end).
void Reordering::change(int32_t first, int32_t end, int64_t bytes) {
  if (first >= end || bytes == 0) return;
  changes_.emplace_back(first, bytes);
  changes_.emplace_back(end, -bytes);
}

/// Returns an estimate of the excess that is removed if the runs at some positions move to before `before`.
double Reordering::gain_of(const std::vector<int32_t>& positions, int32_t before) {
  changes_.clear();
  change_outputs(positions, before);
  const size_t output_changes = changes_.size();
  change_inputs(positions, before);
  editor_.add_work(20 + std::ssize(changes_));
  const auto target = static_cast<double>(excess_.target_bytes());
  auto memory = static_cast<double>(now_.between(before));  // Bytes that are live before the next of the moved runs.
  for (size_t i = output_changes; before > positions.back() && i < changes_.size(); ++i)
    if (changes_[i].first == before) memory -= static_cast<double>(changes_[i].second);
  double gain = 0;
  for (const int32_t p : positions) {
    const int32_t op = now_.run(p);
    // What is read at the new place has been counted as live there.
    const bool is_sink = before > p;
    if (!is_sink) memory += static_cast<double>(flat_.output_bytes[at(op)]);
    gain += std::max(static_cast<double>(now_.moment(p)) - target, 0.0);
    gain -= std::max(memory + static_cast<double>(flat_.workspace[at(op)]) - target, 0.0);
  }
  return gain + sum_of_changes();
}

void Reordering::change_outputs(const std::vector<int32_t>& positions, int32_t before) {
  for (const int32_t p : positions) {
    for (const int32_t w : flat_.outputs(now_.run(p))) {
      const Timeline::Copy* const copy = now_.alive(w, p + 1);
      if (copy == nullptr) continue;
      if (before <= p) {
        if (!contains(positions, copy->last)) change(before, p, flat_.bytes[at(w)]);
        if (contains(positions, copy->last)) change(p + 1, copy->last + 1, -flat_.bytes[at(w)]);
      } else {
        change(p + 1, std::min(copy->last + 1, before), -flat_.bytes[at(w)]);
      }
    }
  }
}

void Reordering::change_inputs(const std::vector<int32_t>& positions, int32_t before) {
  std::vector<int32_t>& seen = seen_;
  seen.clear();
  for (const int32_t p : positions) {
    for (const int32_t u : flat_.inputs(now_.run(p))) {
      const Timeline::Copy* const copy = now_.alive(u, p);
      if (contains(positions, copy->born) || contains(seen, u)) continue;
      seen.push_back(u);
      if (before > p) {
        change(copy->last + 1, before, flat_.bytes[at(u)]);
        continue;
      }
      if (!contains(positions, copy->last)) continue;
      // The copy dies at the last of its other reads, or where the runs go.
      int32_t last = before - 1;
      const std::span<const Timeline::Event> events = now_.events(u);
      for (size_t k = at(now_.events_before(u, copy->born + 1)); k < events.size() && events[k].position <= copy->last;
           ++k)
        if (!contains(positions, events[k].position)) last = std::max(last, events[k].position);
      change(last + 1, copy->last + 1, -flat_.bytes[at(u)]);
    }
  }
}

/// Returns the excess that changes_ remove together.
double Reordering::sum_of_changes() {
  std::ranges::sort(changes_);
  double freed = 0;
  double added = 0;
  for (const bool is_freed : {true, false}) {
    int64_t bytes = 0;
    for (size_t i = 0; i + 1 < changes_.size(); ++i) {
      bytes += changes_[i].second;
      const int32_t first = changes_[i].first;
      const int32_t last = changes_[i + 1].first - 1;
      if (first > last) continue;
      if (is_freed && bytes < 0) freed += excess_.freed(first, std::min(last, now_.size() - 1), -bytes);
      if (!is_freed && bytes > 0 && added <= freed)
        added += excess_.added(first, std::min(last, now_.size() - 1), bytes, freed - added + 1);
    }
    if (is_freed && freed <= 0) return -1;
  }
  return freed - added;
}

/// Evaluates the best moves that do not touch the same values, at most `max_moves`. Returns how many.
size_t Reordering::apply_best(size_t max_moves) {
  std::vector<Insertion> insertions;
  std::vector<int32_t> erasures;
  std::vector<int32_t> touched;
  size_t applied = 0;
  for (const OrderMove& move : moves_) {
    if (applied == max_moves) break;
    const auto any_touched = [&](int32_t p) {
      const auto is_touched = [&](uint32_t touch) { return is_touched_[touch / 2] != 0; };
      return std::ranges::any_of(flat_.touched(now_.run(p)), is_touched);
    };
    if (std::ranges::any_of(move.positions, any_touched)) continue;
    for (const int32_t p : move.positions) {
      for (const uint32_t touch : flat_.touched(now_.run(p))) touched.push_back(static_cast<int32_t>(touch / 2));
      insertions.push_back({.before = move.before, .op = now_.run(p)});
      erasures.push_back(p);
    }
    for (const int32_t v : touched) is_touched_[at(v)] = 1;
    ++applied;
  }
  for (const int32_t v : touched) is_touched_[at(v)] = 0;
  if (applied == 0) return 0;
  std::ranges::stable_sort(insertions, {}, &Insertion::before);
  std::ranges::sort(erasures);
  editor_.try_runs(editor_.edited(insertions, erasures));
  return applied;
}

}  // namespace headroom::internal
