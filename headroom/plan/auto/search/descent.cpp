#include "headroom/plan/auto/search/descent.h"

#include <algorithm>
#include <tuple>

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

const std::vector<int32_t>& MoveCombiner::combine(RunEditor& editor, std::span<Move> moves, size_t max_moves,
                                                  double max_gain) {
  const auto middle = moves.begin() + static_cast<std::ptrdiff_t>(std::min(4 * max_moves, moves.size()));
  std::partial_sort(moves.begin(), middle, moves.end(), [](const Move& a, const Move& b) {
    return std::tuple(-a.ratio, a.value, a.insertions[0].before) <
           std::tuple(-b.ratio, b.value, b.insertions[0].before);
  });
  std::vector<Insertion> insertions;
  std::vector<int32_t> erasures;
  std::vector<int32_t> marked;
  double gain = 0;
  size_t taken = 0;
  for (auto move = moves.begin(); move != middle && taken < max_moves; ++move) {
    if (taken > 0 && gain + move->gain > max_gain) continue;
    const auto is_evicted = [&](int32_t v) { return is_evicted_[at(v)] != 0; };
    if (is_relied_[at(move->value)] != 0 || is_evicted(move->value) || std::ranges::any_of(move->relied, is_evicted))
      continue;
    ++taken;
    gain += move->gain;
    is_evicted_[at(move->value)] = 1;
    marked.push_back(move->value);
    for (const int32_t u : move->relied) {
      is_relied_[at(u)] = 1;
      marked.push_back(u);
    }
    insertions.insert(insertions.end(), move->insertions.begin(), move->insertions.end());
    erasures.insert(erasures.end(), move->erasures.begin(), move->erasures.end());
  }
  for (const int32_t v : marked) is_evicted_[at(v)] = is_relied_[at(v)] = 0;
  const auto by_place = [](const Insertion& a, const Insertion& b) {
    return std::pair(a.before, a.op) < std::pair(b.before, b.op);
  };
  std::ranges::sort(insertions, by_place);
  const auto same = [](const Insertion& a, const Insertion& b) { return a.before == b.before && a.op == b.op; };
  insertions.erase(std::unique(insertions.begin(), insertions.end(), same), insertions.end());
  std::ranges::sort(erasures);
  return editor.edited(insertions, erasures);
}

/// Finds the better of the moves that recompute inputs of the candidate's op and that keep them longer. Returns whether
/// there is one.
bool Descent::find_move(const Candidate& candidate, double min_ratio, Move& move) {
  MoveOptions options{.may_extend = false, .min_ratio = min_ratio};
  bool has_choice = false;
  const bool is_good = evaluator_.evaluate(candidate.value, candidate.position, options, move, has_choice);
  if (!has_choice || !parameters_.extends_inputs) return is_good;
  options.may_extend = true;
  if (!evaluator_.evaluate(candidate.value, candidate.position, options, extending_, has_choice)) return is_good;
  if (is_good && extending_.ratio <= move.ratio) return true;
  std::swap(move, extending_);
  return true;
}

/// Finds about the `max_moves` best moves. Evaluates candidates from the highest bound down until none of the rest can
/// be better.
bool Descent::find_moves(size_t max_moves) {
  move_count_ = 0;
  double best = 0;
  for (int evaluated = 0; !candidates_.empty() && evaluated < parameters_.max_evaluations; ++evaluated) {
    if (evaluated >= parameters_.max_evaluations_after_move && move_count_ > 0) break;
    const Candidate candidate = candidates_.top();
    if (max_moves == 1 ? best >= candidate.bound : move_count_ >= 2 * max_moves) break;
    candidates_.pop();
    if (std::ranges::find(banned_, std::pair(candidate.value, candidate.position)) != banned_.end()) continue;
    if (move_count_ == moves_.size()) moves_.emplace_back();
    Move& move = moves_[move_count_];
    if (!find_move(candidate, max_moves == 1 ? best / candidate.noise : 0, move)) continue;
    move.ratio *= candidate.noise;
    best = std::max(best, move.ratio);
    ++move_count_;
  }
  return move_count_ > 0;
}

size_t Descent::max_moves(const DescentOptions& options) const {
  const int32_t runs_per_move = options.runs_per_move > 0 ? options.runs_per_move : parameters_.runs_per_move;
  return std::max<size_t>(1, at(editor_.now().size() / runs_per_move));
}

int64_t Descent::max_work(const DescentOptions& options) const {
  return (options.max_work_per_run > 0 ? options.max_work_per_run : parameters_.max_work_per_run) *
         editor_.now().size();
}

bool Descent::run(int64_t target_bytes, const DescentOptions& options) {
  const Timeline& now = editor_.now();
  evaluator_.set_max_insertions(options.max_insertions);
  banned_.clear();
  size_t moves_at_a_time = max_moves(options);
  const int64_t end = editor_.work() + max_work(options);
  const auto max_ns = static_cast<double>(options.max_ns);
  if (parameters_.moves_runs) reordering_.run(target_bytes);
  excess_.assign(now, target_bytes);
  while (now.peak_bytes() > target_bytes) {
    if (editor_.work() > end || now.time_ns() > options.max_ns || banned_.size() > parameters_.max_failed_moves)
      return false;
    const double excess = excess_.total();
    candidates_.find(options);
    // Even if every move had the best bound, the plan would be too slow at the target.
    if (static_cast<double>(now.time_ns()) + excess / candidates_.best_bound() > max_ns) return false;
    if (!find_moves(moves_at_a_time)) return false;
    const std::span<Move> moves = std::span(moves_).first(move_count_);
    editor_.try_runs(combiner_.combine(editor_, moves, moves_at_a_time, excess / 4));
    if (excess_above(editor_.trial(), target_bytes) < excess) {
      editor_.accept();
      excess_.assign(now, target_bytes);
      banned_.clear();
      continue;
    }
    if (moves_at_a_time == 1) banned_.emplace_back(moves.front().value, moves.front().insertions.front().before);
    moves_at_a_time = 1;
  }
  return now.time_ns() <= options.max_ns;
}

}  // namespace headroom::internal
