#include "headroom/plan/auto/search.h"

#include <algorithm>
#include <tuple>

namespace headroom::internal {
namespace {

/// Number of failed moves at one sequence after which descent gives up.
constexpr size_t kMaxFailedMoves = 12;
/// Number of candidates evaluated at one step once a move has been found.
constexpr int kMaxEvaluationsAfterMove = 50;
/// Maximum number of candidates evaluated at one step.
constexpr int kMaxEvaluations = 500;
/// Work, for each run, between two checks of whether descent still makes progress.
constexpr int64_t kWorkPerProgressCheck = 450;
/// Descent gives up if the excess is above this fraction of the excess at the previous check.
constexpr double kStalledFraction = 0.9;
/// Time added to every move, in nanoseconds, so that ops of time 0 are compared by their bytes.
constexpr double kMinMoveNs = 0.01;

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

RunSearch::RunSearch(const FlatGraph& flat)
    : flat_(flat),
      now_(flat),
      trial_(flat),
      remembered_(flat),
      is_removed_(at(flat.value_count), 0),
      evicted_(at(flat.value_count), 0),
      relied_(at(flat.value_count), 0) {}

void RunSearch::assign(const std::vector<int32_t>& runs) {
  now_.assign(runs);
  work_ += now_.size();
}

void RunSearch::remember() {
  remembered_ = now_;
  has_removals_ = false;
}

void RunSearch::restart() {
  now_ = remembered_;
  work_ += now_.size();
}

void RunSearch::try_runs(const std::vector<int32_t>& runs) {
  trial_.assign(runs);
  work_ += trial_.size();
}

uint64_t RunSearch::random(uint64_t n) {
  random_state_ += 0x9E3779B97F4A7C15U;
  uint64_t x = random_state_;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return (x ^ (x >> 31U)) % n;
}

void RunSearch::set_target(int64_t target_bytes) {
  target_ = target_bytes;
  over_count_.assign(at(now_.size()) + 1, 0);
  over_sum_.assign(at(now_.size()) + 1, 0);
  for (int32_t p = 0; p < now_.size(); ++p) {
    const bool is_over = now_.moment(p) > target_;
    over_count_[at(p) + 1] = over_count_[at(p)] + (is_over ? 1 : 0);
    over_sum_[at(p) + 1] = over_sum_[at(p)] + (is_over ? static_cast<double>(now_.moment(p) - target_) : 0);
  }
}

double RunSearch::excess_above(const Timeline& timeline, int64_t target_bytes) {
  double sum = 0;
  if (timeline.peak_bytes() <= target_bytes) return sum;
  for (const int64_t moment : timeline.moments())
    sum += moment > target_bytes ? static_cast<double>(moment - target_bytes) : 0;
  return sum;
}

/// Returns an upper bound on the excess that is removed by `bytes` less in [first, last]. It is exact where every
/// moment above the target exceeds it by at least `bytes`.
double RunSearch::excess_freed(int32_t first, int32_t last, int64_t bytes) const {
  if (first > last) return 0;
  const int32_t count = over_count_[at(last) + 1] - over_count_[at(first)];
  if (count == 0) return 0;
  return std::min(static_cast<double>(bytes) * count, over_sum_[at(last) + 1] - over_sum_[at(first)]);
}

/// Returns a lower bound on the excess that is added by `bytes` more in [first, last]. It is 0 only where no excess is
/// added. Whole blocks count by their largest moment. Where the excess is above `most`, returns some number above
/// `most`.
double RunSearch::excess_added(int32_t first, int32_t last, int64_t bytes, double most) const {
  if (first > last || bytes == 0) return 0;
  const int32_t over = over_count_[at(last) + 1] - over_count_[at(first)];
  if (over == 0 && now_.most(first, last) <= target_ - bytes) return 0;
  if (most <= 0) return 1;
  const double least = static_cast<double>(bytes) * over;
  if (least > most) return least;
  double sum = 0;
  const auto added = [&](int64_t moment) {
    const double excess = static_cast<double>(moment - target_) + static_cast<double>(bytes);
    return std::clamp(excess, 0.0, static_cast<double>(bytes));
  };
  for (int32_t p = first; p <= last && sum <= most;) {
    const bool is_whole_block = p % Timeline::kBlock == 0 && p + Timeline::kBlock - 1 <= last;
    sum += is_whole_block ? Timeline::kBlock * added(now_.most_of_block(p)) : added(now_.moment(p));
    p += is_whole_block ? Timeline::kBlock : 1;
  }
  return sum;
}

/// Returns the position at which a copy is last needed if the value is recomputed by `op` before position `before`.
/// That is its last use until then, or the end of the copies that hold it, except of those that `op` rewrites as well.
int32_t RunSearch::last_needed(int32_t value, const Timeline::Copy& copy, int32_t before, int32_t op) const {
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
int32_t RunSearch::maker_for(int32_t value, int32_t position, int32_t reader) const {
  const int32_t best = flat_.maker[at(value)];
  if (best < reader && flat_.has_sure_makers[at(value)] != 0) return best;
  for (const int32_t op : flat_.makers(value))
    if (op < reader && now_.is_ready(op, position)) return op;
  return -1;
}

/// Finds the move with the best gain per time that recomputes `value` right before `position`, over all ops that can
/// write it. Returns whether there is one with a gain.
bool RunSearch::evaluate(int32_t value, int32_t position, bool may_extend, double min_ratio, Move& move,
                         bool& has_choice) {
  if (flat_.has_sure_makers[at(value)] != 0)
    return evaluate_with(flat_.maker[at(value)], value, position, may_extend, min_ratio, move, has_choice);
  bool is_found = false;
  for (const int32_t op : flat_.makers(value)) {
    if (!now_.is_ready(op, position)) continue;
    if (!evaluate_with(op, value, position, may_extend, min_ratio, alternative_, has_choice)) continue;
    if (!is_found || alternative_.ratio > move.ratio) std::swap(move, alternative_);
    is_found = true;
  }
  return is_found;
}

/// Computes the move that recomputes `value` by `maker`, which can run at `position`.
bool RunSearch::evaluate_with(int32_t maker, int32_t value, int32_t position, bool may_extend, double min_ratio,
                              Move& move, bool& has_choice) {
  move.insertions.clear();
  move.erasures.clear();
  move.relied.clear();
  move.extended.clear();
  move.value = value;
  double gain = 0;
  double time = 0;
  double harm = 0;
  int64_t freed_here = 0;
  int64_t extended_here = 0;
  bool has_pulled = false;
  for (const int32_t w : flat_.outputs(maker)) {
    const Timeline::Copy* copy = now_.alive(w, position);
    if (copy == nullptr) continue;
    const int32_t last = last_needed(w, *copy, position, maker);
    gain += excess_freed(last + 1, position - 1, flat_.bytes[at(w)]);
    if (last < position) freed_here += flat_.bytes[at(w)];
  }
  if (gain <= 0) return false;

  const auto is_inserted = [&](int32_t op) {
    return std::ranges::any_of(move.insertions, [&](const Insertion& other) { return other.op == op; });
  };
  open_.assign(1, maker);
  while (!open_.empty()) {
    const int32_t op = open_.back();
    open_.pop_back();
    if (is_inserted(op)) continue;
    if (move.insertions.size() >= most_insertions_) return false;
    move.insertions.push_back({position, op});
    time += static_cast<double>(flat_.time_ns[at(op)]);
    // The time is final only when all insertions are known: the reruns that become unnecessary are subtracted below,
    // one by one.
    if (!has_pulled && (gain - harm) / (time + kMinMoveNs) < min_ratio) return false;
    for (const int32_t u : flat_.inputs(op)) {
      ++work_;
      if (u == value) return false;  // The value would be computed from itself.
      if (now_.alive(u, position) != nullptr) {
        move.relied.push_back(u);
        continue;
      }
      const std::span<const Timeline::Event> events = now_.events(u);
      const int32_t k = now_.events_before(u, position);
      const int64_t bytes = flat_.bytes[at(u)];
      const int32_t again = maker_for(u, position, op);
      work_ += (position - events[at(k - 1)].position) / Timeline::kBlock;
      const double longer =
          excess_added(events[at(k - 1)].position + 1, position - 1, bytes, may_extend ? gain - harm : 0);
      has_choice = has_choice || (longer > 0 && again >= 0);
      if (longer == 0 || again < 0 || (may_extend && harm + longer < gain)) {
        harm += longer;
        if (std::ranges::find(move.extended, u) == move.extended.end()) extended_here += bytes;
        move.extended.push_back(u);
        move.relied.push_back(u);
        continue;
      }
      const bool is_made_later = k < static_cast<int32_t>(events.size()) && now_.run(events[at(k)].position) == again;
      if (is_made_later && excess_added(position, events[at(k)].position - 1, bytes, 0) == 0) {
        move.erasures.push_back(events[at(k)].position);
        time -= static_cast<double>(flat_.time_ns[at(again)]);
        has_pulled = true;
      }
      open_.push_back(again);
    }
  }
  std::ranges::sort(move.insertions, {}, &Insertion::op);
  harm += excess_of_insertions(
      move, static_cast<double>(now_.between(position) - freed_here) + static_cast<double>(extended_here));
  move.gain = gain - harm;
  move.ratio = move.gain / (std::max(time, 0.0) + kMinMoveNs);
  return move.gain > 0;
}

/// Returns the bytes by which the moments of a move's inserted runs exceed the target, with `memory` bytes live before
/// them. An output of an inserted run is live until the last inserted run that reads it, or beyond where it is read
/// later.
double RunSearch::excess_of_insertions(const Move& move, double memory) const {
  double excess = 0;
  const size_t count = move.insertions.size();
  for (size_t i = 0; i < count; ++i) {
    const int32_t op = move.insertions[i].op;
    const double moment = memory + static_cast<double>(flat_.output_bytes[at(op)] + flat_.workspace[at(op)]);
    excess += std::max(moment - static_cast<double>(target_), 0.0);
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

/// Returns an upper bound on the gain per time of recomputing a value before a position, if its copy is not live from
/// `first` on.
double RunSearch::bound_ratio(int32_t value, int32_t first, int32_t position) const {
  const double own_gain = excess_freed(first, position - 1, flat_.bytes[at(value)]);
  const bool is_sure = flat_.has_sure_makers[at(value)] != 0;
  double ratio = 0;
  for (const int32_t maker : is_sure ? flat_.makers(value).first(1) : flat_.makers(value)) {
    // The op's other outputs are evicted too, each from its own last use on.
    double gain = own_gain;
    for (const int32_t w : flat_.outputs(maker)) {
      if (w == value || now_.alive(w, position) == nullptr) continue;
      const int32_t last = now_.events(w)[at(now_.events_before(w, position) - 1)].position;
      gain += excess_freed(last + 1, position - 1, flat_.bytes[at(w)]);
    }
    ratio = std::max(ratio, gain / (static_cast<double>(flat_.time_ns[at(maker)]) + kMinMoveNs));
  }
  return ratio;
}

/// Returns the last position up to which all inputs of the value's recomputation are live, at most `position`.
int32_t RunSearch::last_chance(int32_t value, int32_t position) const {
  int32_t chance = position;
  for (const int32_t u : flat_.inputs(flat_.maker[at(value)])) {
    if (now_.alive(u, position) != nullptr) continue;
    const int32_t k = now_.events_before(u, position);
    if (k == 0) return position;
    chance = std::min(chance, now_.events(u)[at(k - 1)].position + 1);
  }
  return chance;
}

void RunSearch::add_candidate(int32_t value, int32_t first, int32_t position, int noise) {
  Candidate candidate{bound_ratio(value, first, position), 1, value, position};
  best_bound_ = std::max(best_bound_, candidate.bound);
  if (noise > 0) {
    const auto spread = static_cast<uint64_t>(noise);
    candidate.noise = static_cast<double>(100 - spread + random(2 * spread + 1)) / 100;
    candidate.bound *= candidate.noise;
  }
  if (candidate.bound > 0) candidates_.push_back(candidate);
}

void RunSearch::find_candidates(const DescentOptions& options) {
  candidates_.clear();
  best_bound_ = 0;
  const auto none_yet = std::ranges::upper_bound(over_count_, 0);
  const auto all_now = std::ranges::lower_bound(over_count_, over_count_.back());
  const auto first_over = static_cast<int32_t>(none_yet - over_count_.begin()) - 1;
  const auto last_over = static_cast<int32_t>(all_now - over_count_.begin()) - 1;
  for (int32_t v = 0; v < flat_.value_count; ++v) {
    if (flat_.maker[at(v)] < 0) continue;
    const std::span<const Timeline::Event> events = now_.events(v);
    work_ += std::ssize(events);
    if (events.empty() || events.front().position >= last_over) continue;
    if (events.back().position <= first_over && flat_.is_output[at(v)] == 0) continue;
    // The step's outputs are read at its end.
    const size_t reads = events.size() + (flat_.is_output[at(v)] != 0 ? 1 : 0);
    for (size_t k = 1; k < reads; ++k) {
      const int32_t first = events[k - 1].position + 1;
      const int32_t position = k < events.size() ? events[k].position : now_.size();
      if ((k < events.size() && events[k].is_write) || over_count_[at(position)] == over_count_[at(first)]) continue;
      add_candidate(v, first, position, options.noise);
      if (!options.early) continue;
      const int32_t early = last_chance(v, position);
      if (early > first && early < position && over_count_[at(early)] > over_count_[at(first)])
        add_candidate(v, first, early, options.noise);
      if (!options.anywhere || position - first < 2) continue;
      const int32_t anywhere = first + 1 + static_cast<int32_t>(random(at(position - first - 1)));
      if (over_count_[at(anywhere)] > over_count_[at(first)]) add_candidate(v, first, anywhere, options.noise);
    }
  }
}

/// Finds about the `most` best moves. Evaluates candidates from the highest bound down until none of the rest can be
/// better.
bool RunSearch::find_moves(size_t most) {
  const auto less = [](const Candidate& a, const Candidate& b) {
    if (a.bound != b.bound) return a.bound < b.bound;
    return a.value != b.value ? a.value > b.value : a.position > b.position;
  };
  std::ranges::make_heap(candidates_, less);
  move_count_ = 0;
  double best = 0;
  for (int evaluated = 0; !candidates_.empty() && evaluated < kMaxEvaluations; ++evaluated) {
    if (evaluated >= kMaxEvaluationsAfterMove && move_count_ > 0) break;
    const Candidate candidate = candidates_.front();
    if (most == 1 ? best >= candidate.bound : move_count_ >= 2 * most) break;
    std::ranges::pop_heap(candidates_, less);
    candidates_.pop_back();
    if (std::ranges::find(banned_, std::pair(candidate.value, candidate.position)) != banned_.end()) continue;
    if (move_count_ == moves_.size()) moves_.emplace_back();
    bool has_choice = false;
    const double least = most == 1 ? best / candidate.noise : 0;
    bool is_good = evaluate(candidate.value, candidate.position, false, least, moves_[move_count_], has_choice);
    if (has_choice && evaluate(candidate.value, candidate.position, true, least, other_, has_choice) &&
        (!is_good || other_.ratio > moves_[move_count_].ratio)) {
      std::swap(moves_[move_count_], other_);
      is_good = true;
    }
    if (!is_good) continue;
    moves_[move_count_].ratio *= candidate.noise;
    best = std::max(best, moves_[move_count_].ratio);
    ++move_count_;
  }
  return move_count_ > 0;
}

void RunSearch::make_edited(const std::vector<Insertion>& insertions, const std::vector<int32_t>& erasures) {
  edited_.clear();
  const std::vector<int32_t>& runs = now_.runs();
  int32_t copied = 0;
  const auto copy_up_to = [&](int32_t end) {
    edited_.insert(edited_.end(), runs.begin() + copied, runs.begin() + end);
    copied = end;
  };
  auto gone = erasures.begin();
  const auto erase_up_to = [&](int32_t end) {
    for (; gone != erasures.end() && *gone < end; ++gone) {
      if (*gone < copied) continue;  // This position is in the list twice.
      copy_up_to(*gone);
      ++copied;
    }
  };
  for (const Insertion& insertion : insertions) {
    erase_up_to(insertion.before);
    copy_up_to(std::max(copied, insertion.before));
    edited_.push_back(insertion.op);
  }
  erase_up_to(now_.size());
  copy_up_to(now_.size());
}

/// Applies the best moves to edited_, at most `most`, as long as none evicts what another relies on and their total
/// gain stays within a quarter of the excess.
void RunSearch::apply_best(size_t most) {
  const auto begin = moves_.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(move_count_);
  const auto middle = begin + static_cast<std::ptrdiff_t>(std::min(4 * most, move_count_));
  std::partial_sort(begin, middle, end, [](const Move& a, const Move& b) {
    return std::tuple(-a.ratio, a.value, a.insertions[0].before) <
           std::tuple(-b.ratio, b.value, b.insertions[0].before);
  });
  std::vector<Insertion> insertions;
  std::vector<int32_t> erasures;
  std::vector<int32_t> marked;
  double gain = 0;
  size_t taken = 0;
  const double enough = over_sum_.back() / 4;
  for (auto move = begin; move != middle && taken < most; ++move) {
    if (taken > 0 && gain + move->gain > enough) continue;
    const auto is_evicted = [&](int32_t v) { return evicted_[at(v)] != 0; };
    if (relied_[at(move->value)] != 0 || is_evicted(move->value) || std::ranges::any_of(move->relied, is_evicted))
      continue;
    ++taken;
    gain += move->gain;
    evicted_[at(move->value)] = 1;
    marked.push_back(move->value);
    for (const int32_t u : move->relied) {
      relied_[at(u)] = 1;
      marked.push_back(u);
    }
    insertions.insert(insertions.end(), move->insertions.begin(), move->insertions.end());
    erasures.insert(erasures.end(), move->erasures.begin(), move->erasures.end());
  }
  for (const int32_t v : marked) evicted_[at(v)] = relied_[at(v)] = 0;
  const auto by_place = [](const Insertion& a, const Insertion& b) {
    return std::pair(a.before, a.op) < std::pair(b.before, b.op);
  };
  std::ranges::sort(insertions, by_place);
  const auto same = [](const Insertion& a, const Insertion& b) { return a.before == b.before && a.op == b.op; };
  insertions.erase(std::unique(insertions.begin(), insertions.end(), same), insertions.end());
  std::ranges::sort(erasures);
  make_edited(insertions, erasures);
}

bool RunSearch::descend(int64_t target_bytes, const DescentOptions& options) {
  most_insertions_ = options.most_insertions;
  banned_.clear();
  size_t most = std::max<size_t>(1, at(now_.size() / options.runs_per_move));
  const int64_t end = work_ + options.most_work * now_.size();
  const auto most_ns = static_cast<double>(options.most_ns);
  set_target(target_bytes);
  double last_excess = over_sum_.back();
  const int64_t work_per_check = kWorkPerProgressCheck * now_.size();
  int64_t next_check = work_ + work_per_check;
  while (now_.peak_bytes() > target_bytes) {
    if (work_ > end || now_.time_ns() > options.most_ns || banned_.size() > kMaxFailedMoves) return false;
    const double excess = over_sum_.back();
    if (work_ > next_check) {
      if (excess > kStalledFraction * last_excess) return false;
      last_excess = excess;
      next_check = work_ + work_per_check;
    }
    find_candidates(options);
    // Even if every move had the best bound, the plan would be too slow at the target.
    if (static_cast<double>(now_.time_ns()) + excess / best_bound_ > most_ns) return false;
    if (!find_moves(most)) return false;
    apply_best(most);
    const std::pair tried(moves_.front().value, moves_.front().insertions.front().before);
    try_runs(edited_);
    if (excess_above(trial_, target_bytes) < excess) {
      std::swap(now_, trial_);
      set_target(target_bytes);
      banned_.clear();
      continue;
    }
    if (most == 1) banned_.push_back(tried);
    most = 1;
  }
  return now_.time_ns() <= options.most_ns;
}

}  // namespace headroom::internal
