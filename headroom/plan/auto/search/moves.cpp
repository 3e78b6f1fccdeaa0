#include "headroom/plan/auto/search/moves.h"

#include <algorithm>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

/// Returns the position at which a copy is last needed if the value is recomputed by `op` before position `before`.
/// That is its last use until then, or the end of the copies that hold it, except of those that `op` rewrites as well.
int32_t MoveEvaluator::last_needed(int32_t value, const Timeline::Copy& copy, int32_t before, int32_t op) const {
  const int32_t k = now_.events_before(value, before);
  int32_t last = now_.events(value)[at(k - 1)].position;
  if (!flat_.has_holds) return last;
  for (const int32_t holder : flat_.holders(value)) {
    for (const Timeline::Copy& holding : now_.copies(holder)) {
      if (holding.born < copy.born || holding.born > copy.last) continue;
      const bool made_anew = holding.born < before && holding.last >= before &&
                             std::ranges::find(flat_.outputs(op), holder) != flat_.outputs(op).end();
      last = std::max(
          last, made_anew ? now_.events(holder)[at(now_.events_before(holder, before) - 1)].position : holding.freed);
    }
  }
  return last;
}

/// Returns the op to run before a position to recompute a value that `reader` reads there, or -1 if there is none. The
/// op is listed before the reader, so that the runs of a move in base order are in a valid order and no two of them
/// wait for each other.
int32_t MoveEvaluator::maker_for(int32_t value, int32_t position, int32_t reader) const {
  const int32_t best = flat_.maker[at(value)];
  if (best < reader && flat_.has_sure_makers[at(value)] != 0) return best;
  for (const int32_t op : flat_.makers(value))
    if (op < reader && now_.is_ready(op, position)) return op;
  return -1;
}

bool MoveEvaluator::evaluate(int32_t value, int32_t position, const MoveOptions& options, Move& move,
                             bool& has_choice) {
  if (flat_.has_sure_makers[at(value)] != 0)
    return evaluate_with(flat_.maker[at(value)], value, position, options, move, has_choice);
  bool is_found = false;
  for (const int32_t op : flat_.makers(value)) {
    if (!now_.is_ready(op, position)) continue;
    if (!evaluate_with(op, value, position, options, alternative_, has_choice)) continue;
    if (!is_found || alternative_.ratio > move.ratio) std::swap(move, alternative_);
    is_found = true;
  }
  return is_found;
}

/// Computes the move that recomputes `value` by `maker`, which can run at `position`.
bool MoveEvaluator::evaluate_with(int32_t maker, int32_t value, int32_t position, const MoveOptions& options,
                                  Move& move, bool& has_choice) {
  move.insertions.clear();
  move.erasures.clear();
  move.relied.clear();
  move.extended.clear();
  move.value = value;
  Sums sums;
  int64_t freed_here = 0;
  for (const int32_t w : flat_.outputs(maker)) {
    const Timeline::Copy* copy = now_.alive(w, position);
    if (copy == nullptr) continue;
    const int32_t last = last_needed(w, *copy, position, maker);
    sums.gain += excess_.freed(last + 1, position - 1, flat_.bytes[at(w)]);
    if (last < position) freed_here += flat_.bytes[at(w)];
  }
  if (sums.gain <= 0) return false;

  open_.assign(1, maker);
  while (!open_.empty()) {
    const int32_t op = open_.back();
    open_.pop_back();
    const auto is_same = [&](const Insertion& other) { return other.op == op; };
    if (std::ranges::any_of(move.insertions, is_same)) continue;
    if (move.insertions.size() >= max_insertions_) return false;
    move.insertions.push_back({.before = position, .op = op});
    sums.time += static_cast<double>(flat_.time_ns[at(op)]);
    // The time is final only when all insertions are known: the reruns that become unnecessary are subtracted below,
    // one by one.
    const double ratio = (sums.gain - sums.harm) / (sums.time + parameters_.min_move_ns);
    if (move.erasures.empty() && ratio < options.min_ratio) return false;
    for (const int32_t u : flat_.inputs(op)) {
      editor_.add_work(1);
      if (u == value) return false;  // The value would be computed from itself.
      if (now_.alive(u, position) != nullptr) {
        move.relied.push_back(u);
      } else {
        provide(u, op, position, options.may_extend, move, sums, has_choice);
      }
    }
  }
  std::ranges::sort(move.insertions, {}, &Insertion::op);
  sums.harm += excess_of_insertions(
      move, static_cast<double>(now_.between(position) - freed_here) + static_cast<double>(sums.extended_bytes));
  move.gain = sums.gain - sums.harm;
  move.ratio = move.gain / (std::max(sums.time, 0.0) + parameters_.min_move_ns);
  return move.gain > 0;
}

/// Provides an input of an inserted run of `op` that is not live at the position: keeps it longer, or recomputes it by
/// an op that is added to open_, whose own next run is erased where the value can be kept until then.
void MoveEvaluator::provide(int32_t input, int32_t op, int32_t position, bool may_extend, Move& move, Sums& sums,
                            bool& has_choice) {
  const std::span<const Timeline::Event> events = now_.events(input);
  const int32_t k = now_.events_before(input, position);
  const int64_t bytes = flat_.bytes[at(input)];
  const int32_t again = maker_for(input, position, op);
  editor_.add_work((position - events[at(k - 1)].position) / Timeline::kBlock);
  const double longer =
      excess_.added(events[at(k - 1)].position + 1, position - 1, bytes, may_extend ? sums.gain - sums.harm : 0);
  has_choice = has_choice || (longer > 0 && again >= 0);
  if (longer == 0 || again < 0 || (may_extend && sums.harm + longer < sums.gain)) {
    sums.harm += longer;
    if (std::ranges::find(move.extended, input) == move.extended.end()) sums.extended_bytes += bytes;
    move.extended.push_back(input);
    move.relied.push_back(input);
    return;
  }
  const bool is_made_later =
      parameters_.moves_reruns && k < static_cast<int32_t>(events.size()) && now_.run(events[at(k)].position) == again;
  if (is_made_later && excess_.added(position, events[at(k)].position - 1, bytes, 0) == 0) {
    move.erasures.push_back(events[at(k)].position);
    sums.time -= static_cast<double>(flat_.time_ns[at(again)]);
  }
  open_.push_back(again);
}

/// Returns the bytes by which the moments of a move's inserted runs exceed the target, with `memory` bytes live before
/// them. An output of an inserted run is live until the last inserted run that reads it, or beyond where it is read
/// later.
double MoveEvaluator::excess_of_insertions(const Move& move, double memory) const {
  double excess = 0;
  const size_t count = move.insertions.size();
  for (size_t i = 0; i < count; ++i) {
    const int32_t op = move.insertions[i].op;
    const double moment = memory + static_cast<double>(flat_.output_bytes[at(op)] + flat_.workspace[at(op)]);
    excess += std::max(moment - static_cast<double>(excess_.target_bytes()), 0.0);
    const auto is_read_after = [&](int32_t v, size_t from) {
      for (size_t j = from; j < count; ++j)
        if (std::ranges::find(flat_.inputs(move.insertions[j].op), v) != flat_.inputs(move.insertions[j].op).end())
          return true;
      return false;
    };
    const int32_t position = move.insertions[i].before;
    const auto is_read_later = [&](int32_t v) {
      return now_.alive(v, position) != nullptr || std::ranges::any_of(move.erasures, [&](int32_t erased) {
               return std::ranges::find(flat_.outputs(now_.run(erased)), v) != flat_.outputs(now_.run(erased)).end();
             });
    };
    for (const int32_t v : flat_.outputs(op))
      if (is_read_later(v) || is_read_after(v, i + 1)) memory += static_cast<double>(flat_.bytes[at(v)]);
    for (const int32_t v : flat_.inputs(op)) {
      const bool is_made_here =
          std::ranges::find(move.extended, v) != move.extended.end() ||
          std::any_of(move.insertions.begin(), move.insertions.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const Insertion& other) {
                        return std::ranges::find(flat_.outputs(other.op), v) != flat_.outputs(other.op).end();
                      });
      if (is_made_here && !is_read_later(v) && !is_read_after(v, i + 1))
        memory -= static_cast<double>(flat_.bytes[at(v)]);
    }
  }
  return excess;
}

}  // namespace headroom::internal
