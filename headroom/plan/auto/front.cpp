#include "headroom/plan/auto/front.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "headroom/algorithm/workers.h"
#include "headroom/core/simulate.h"
#include "headroom/plan/auto/starts.h"
#include "headroom/plan/bounds/memory_bound.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal {
namespace {

constexpr int kLevels = 40;               ///< Number of evenly spaced levels up to store-all's peak.
constexpr int kTargetsBetweenLevels = 3;  ///< Number of targets between two levels of a short graph.
/// DescentOptions::runs_per_move for polish and near the smallest budget.
constexpr int32_t kCarefulRunsPerMove = 100;
constexpr int kBisectionSteps = 5;  ///< Number of bisection steps below the last level that has a plan.
/// Largest number of runs in the base order of a *short* graph. Longer graphs have half as many levels and fewer starts
/// for each level.
constexpr int64_t kMaxShortRuns = 200;
/// Largest number of runs in the base order of a *tiny* graph, where every plan of the front finally becomes a level of
/// its own.
constexpr int64_t kMaxTinyRuns = 40;
constexpr int kRefinementPasses = 12;  ///< Maximum number of refinement passes over the front of a tiny graph.
/// Number of refinement passes in a row without a faster plan after which refinement ends.
constexpr int kMaxIdlePasses = 3;
/// Largest number of runs for which a level without a plan is tried from random starts, and for which polish takes the
/// full number of rounds.
constexpr int64_t kMaxRunsForRandomStarts = 300;
/// Number of runs above which a graph is *long*: fewer starts are tried for its levels, and polish does less work per
/// run.
constexpr int64_t kMaxMediumRuns = 1000;
/// Work of the descent from one start, divided by the number of runs to give DescentOptions::most_work.
constexpr int64_t kWorkPerStart = 700'000;
/// Work of polish at normal effort, divided by the number of runs to give the work per run.
constexpr int64_t kPolishWork = 800'000;
constexpr int kMaxRandomStarts = 40;  ///< Maximum number of random starts at a level that no other start reaches.
/// The lowest level lies this fraction (1/50) of the smallest peak above that peak.
constexpr int64_t kLowestLevelGapFraction = 50;
/// The lowest level has work of its own, this fraction (1/6) of the work per run times the number of runs.
constexpr int64_t kLowestLevelWorkFraction = 6;
constexpr int kLowestLevelRounds = 2;  ///< Number of rounds into which the lowest level's work is divided.
/// A plan that is within this fraction (1/10,000) of the bound is not polished further.
constexpr int64_t kCloseFraction = 10000;
/// The same fraction for starts that were already polished as plans of a smaller graph.
constexpr int64_t kPolishedCloseFraction = 100;
constexpr int64_t kMaxStartSlowdown = 8;  ///< A start may take at most this many times the time of the base order.

size_t at(int32_t i) { return static_cast<size_t>(i); }

struct Level {
  int64_t target_bytes;
  int64_t bound_ns;  ///< Lower bound on the time of every plan within target_bytes, in nanoseconds.
  /// The best plan first, and in the first rounds a second plan from another start, because the better start is not
  /// always the one that polish improves further.
  std::vector<JudgedRuns> plans;
  /// Whether the last round changed the best plan; only new plans are tried at the neighbouring levels.
  bool is_new = true;
  bool is_faster = false;  ///< Whether the last round made the best plan faster.
  const JudgedRuns& best() const { return plans.front(); }
};

class FrontBuilder {
 public:
  FrontBuilder(const FlatGraph& flat, const PlanLimits& limits)
      : flat_(flat), limits_(limits), bounds_(flat.graph), search_(flat) {
    for (const OpId op : base_ops(flat.graph)) base_.push_back(static_cast<int32_t>(op));
  }

  std::vector<Front> build(const SearchStarts& starts) {
    are_polished_ = starts.are_polished;
    search_.assign(base_);
    store_all_ = search_.judged();
    if (std::vector<int32_t> faster = faster_base(flat_, base_); !faster.empty()) {
      starts_.push_back(std::exchange(store_all_, {}));
      base_ = std::move(faster);
      search_.assign(base_);
      store_all_ = search_.judged();
      starts_.push_back(store_all_);
    }
    for (const std::vector<int32_t>& runs : starts.plans) {
      search_.assign(runs);
      starts_.push_back(search_.judged());
    }
    for (const std::vector<int32_t>& runs : starts.coarse) {
      search_.assign(runs);
      coarse_.push_back(search_.judged());
    }
    if (are_polished_) keep_polished();
    make_levels();
    // Graphs of up to kMaxRunsForRandomStarts runs that have half as many levels get more rounds: a better plan takes
    // longer to reach all of them.
    const int rounds = are_polished_                                 ? 0
                       : is_short() || is_long()                     ? 4
                       : std::ssize(base_) > kMaxRunsForRandomStarts ? 3
                                                                     : 8;
    std::vector<Front> fronts;
    for (int round = 0; round < rounds; ++round) {
      improve_all(round, work_of_round(rounds));
      if (round > 0 || limits_.effort == Effort::kHigh) continue;
      // The plans so far are the front of low effort.
      fronts.push_back(front(false));
      if (limits_.effort == Effort::kLow) return fronts;
    }
    if (is_tiny()) refine(rounds);
    fronts.push_back(front(!are_polished_));
    if (are_polished_ || is_tiny() || !is_short() || levels_.empty()) return fronts;
    std::vector<JudgedRuns> plans = fronts.back();
    plans.push_back(polish_lowest(rounds));
    fronts.push_back(undominated(std::move(plans)));
    return fronts;
  }

 private:
  /// Keeps only the undominated starts, and prunes each of them at its own peak.
  void keep_polished() {
    starts_ = undominated(std::move(starts_));
    for (JudgedRuns& start : starts_) {
      search_.assign(start.runs);
      search_.prune(start.peak_bytes);
      start = search_.judged();
    }
  }

  /// Returns the work for one level in one round. All rounds and levels together get the work per run times the number
  /// of runs, about as much as finding the levels took.
  int64_t work_of_round(int rounds) const {
    return work_per_run() * std::ssize(base_) / (rounds * std::max<int64_t>(1, std::ssize(levels_)));
  }

  int64_t work_per_run() const {
    if (limits_.effort == Effort::kHigh) return 100'000;
    return is_long() ? 3'000 : std::clamp<int64_t>(kPolishWork / std::max<int64_t>(std::ssize(base_), 1), 2'000, 8'000);
  }

  /// Returns the work for random starts at a level that no other start reaches.
  int64_t start_work() const { return std::max<int64_t>(work_per_run() / 100 * std::ssize(base_), 8 * work_per_run()); }

  bool is_tiny() const { return std::ssize(base_) <= kMaxTinyRuns; }
  bool is_short() const { return std::ssize(base_) <= kMaxShortRuns; }
  bool is_long() const { return std::ssize(base_) > kMaxMediumRuns; }

  int64_t max_start_ns() const {
    const int64_t most_ns = std::numeric_limits<int64_t>::max() / kMaxStartSlowdown;
    if (is_short() || levels_.empty())
      return store_all_.time_ns > most_ns ? store_all_.time_ns : kMaxStartSlowdown * store_all_.time_ns;
    // A start that is much slower than the level above rarely ends in a good plan and costs much work.
    const int64_t above_ns = levels_.back().best().time_ns;
    return above_ns > most_ns ? above_ns : above_ns / 2 * 3;
  }

  /// Descends from `runs` to a target, and stores the result in `best` if it is better.
  void try_start(const std::vector<int32_t>& runs, int64_t target_bytes, std::optional<JudgedRuns>& best,
                 DescentOptions options) {
    options.most_ns = best ? best->time_ns : max_start_ns();
    options.most_work = std::clamp<int64_t>(kWorkPerStart / std::max<int64_t>(std::ssize(base_), 1), 1'500, 4'000);
    options.runs_per_move = runs_per_move_;
    search_.assign(runs);
    if (!search_.descend(target_bytes, options)) return;
    search_.prune(target_bytes);
    JudgedRuns found = search_.judged();
    if (!best || is_better(found, *best)) best = std::move(found);
  }

  /// Returns up to two plans within a target, the better one first: one from the given starts and the cut, and one from
  /// store-all or the level above.
  std::vector<JudgedRuns> find_starts(int64_t target_bytes, const MemoryBound& bound) {
    std::optional<JudgedRuns> cut;
    for (const JudgedRuns& start : starts_)
      if (start.peak_bytes <= target_bytes && (!cut || is_better(start, *cut))) cut = start;
    if (are_polished_ && cut && is_close(*cut, bound.time_ns)) return {std::move(*cut)};
    if (cut) try_start(std::vector(cut->runs), target_bytes, cut, {});
    if (const std::vector<int32_t> runs = runs_around_cut(flat_, base_, bound); !runs.empty()) {
      try_start(runs, target_bytes, cut, {6});
      if (is_short() || (!cut && !are_polished_)) try_start(runs, target_bytes, cut, {16});
    }
    std::optional<JudgedRuns> best;
    const auto descend_from_above = [&] {
      if (!levels_.empty()) try_start(levels_.back().best().runs, target_bytes, best, {6});
    };
    if (are_polished_) {
      descend_from_above();
    } else if (is_short() || is_long()) {
      if (is_short()) try_start(base_, target_bytes, best, {6});
      if (is_short() || !cut) try_start(base_, target_bytes, best, {16});
      descend_from_above();
    } else {
      // A failed descent from store-all is the most expensive start; do not retry it for smaller budgets.
      if (!store_all_fails_) try_start(base_, target_bytes, best, {6});
      store_all_fails_ = store_all_fails_ || !best;
      descend_from_above();
      if (!best && !cut) try_start(base_, target_bytes, best, {16});
    }
    // Descend with random choices, alternately from the level above and from store-all, until one plan reaches the
    // target.
    const int64_t end = search_.work() + start_work();
    for (int i = 0;
         std::ssize(base_) <= kMaxRunsForRandomStarts && !best && !cut && i < kMaxRandomStarts && search_.work() < end;
         ++i) {
      const bool from_above = i % 2 == 1 && !levels_.empty();
      const size_t most_insertions = RandomChanges::kMostInsertions[RandomChanges::kMostInsertions.size() - 1 -
                                                                    at(i / 2) % RandomChanges::kMostInsertions.size()];
      try_start(from_above ? levels_.back().best().runs : base_, target_bytes, best,
                {most_insertions, i < 2 ? 0 : RandomChanges::kNoise, i % 4 >= 2});
    }
    std::vector<JudgedRuns> plans;
    if (best) plans.push_back(std::move(*best));
    if (cut) plans.push_back(std::move(*cut));
    if (plans.size() == 2 && is_better(plans[1], plans[0])) std::swap(plans[0], plans[1]);
    return plans;
  }

  /// Returns the best coarse start within a target, pruned, or none.
  std::optional<JudgedRuns> find_coarse(int64_t target_bytes) {
    std::optional<JudgedRuns> best;
    for (const JudgedRuns& plan : coarse_)
      if (plan.peak_bytes <= target_bytes && (!best || is_better(plan, *best))) best = plan;
    if (!best) return best;
    search_.assign(best->runs);
    search_.prune(target_bytes);
    return search_.judged();
  }

  bool add_level(int64_t target_bytes) {
    const MemoryBound bound = bounds_.within(target_bytes, is_short() ? 3 : 1);
    if (!bound.is_feasible) return false;
    std::vector<JudgedRuns> plans = find_starts(target_bytes, bound);
    // A coarse start must be clearly faster to be taken: the levels below start from this one, and descents from a
    // coarse start end slower.
    if (std::optional<JudgedRuns> plan = find_coarse(target_bytes);
        plan && (plans.empty() || slightly_more(plan->time_ns) < plans[0].time_ns))
      plans.insert(plans.begin(), std::move(*plan));
    const bool found = !plans.empty();
    if (found) levels_.push_back({target_bytes, bound.time_ns, std::move(plans)});
    return found;
  }

  void make_levels() {
    const int64_t least_bytes = peak_lower_bound_bytes(flat_);
    const int64_t most_bytes = store_all_.peak_bytes;
    int64_t failed_bytes = least_bytes - 1;
    bool is_odd = false;
    for (const int64_t target_bytes :
         level_targets(simulate(flat_.graph, store_all(flat_.graph)).peak_bytes, least_bytes)) {
      is_odd = !is_odd;
      if (target_bytes >= most_bytes || (is_odd && !is_short())) continue;
      if (add_level(target_bytes)) continue;
      failed_bytes = target_bytes;
      break;
    }
    runs_per_move_ = kCarefulRunsPerMove;
    // Bisect between the last level that has a plan and the largest target without one.
    for (int i = 0; i < kBisectionSteps; ++i) {
      const int64_t reached_bytes = levels_.empty() ? most_bytes : levels_.back().best().peak_bytes;
      const bool is_open = failed_bytes < least_bytes;
      const int64_t target_bytes = is_open ? least_bytes : failed_bytes + (reached_bytes - failed_bytes) / 2;
      if (target_bytes >= reached_bytes) break;
      if (!add_level(target_bytes)) failed_bytes = target_bytes;
    }
  }

  /// Returns whether a plan is so close to the bound that work is better spent on other levels.
  bool is_close(const JudgedRuns& plan, int64_t bound_ns) const {
    const int64_t part = are_polished_ ? kPolishedCloseFraction : kCloseFraction;
    return plan.time_ns - bound_ns <= (limits_.effort == Effort::kHigh || is_short() ? 0 : bound_ns / part);
  }

  /// Returns the plans of one level after one round of polish, which reads the plans that all levels had before the
  /// round.
  std::vector<JudgedRuns> improve(RunSearch& search, size_t k, int round, int64_t work) const {
    const int64_t target_bytes = levels_[k].target_bytes;
    search.seed(static_cast<uint64_t>(round) * 1000 + k);
    std::vector<JudgedRuns> plans = levels_[k].plans;
    const auto keep_better = [&](JudgedRuns& best) {
      search.prune(target_bytes);
      if (search.timeline().time_ns() > best.time_ns) return;
      best = search.judged();
      search.remember();
    };
    if (k + 1 < levels_.size() && levels_[k + 1].is_new) {
      search.assign(levels_[k + 1].best().runs);
      keep_better(plans.front());
    }
    if (k > 0 && levels_[k - 1].is_new) {
      search.assign(levels_[k - 1].best().runs);
      if (search.descend(target_bytes, {.most_ns = plans.front().time_ns})) keep_better(plans.front());
    }
    for (JudgedRuns& best : plans) {
      const int64_t end = search.work() + work / std::ssize(plans);
      search.assign(best.runs);
      search.remember();
      while (search.work() < end && !is_close(best, levels_[k].bound_ns)) {
        const bool is_ruined = search.ruin(1 + static_cast<int>(search.random(RandomChanges::kMostRuined)));
        if (is_tiny()) {
          search.insert_any(static_cast<int>(search.random(4)));
        } else if (!is_ruined) {
          break;
        }
        DescentOptions options;
        options.most_insertions = RandomChanges::kMostInsertions[search.random(RandomChanges::kMostInsertions.size())];
        options.noise = RandomChanges::kNoise;
        options.early = search.random(3) == 0;
        options.anywhere = options.early && (is_tiny() || search.random(2) == 0);
        options.most_ns = slightly_more(best.time_ns);
        options.runs_per_move = kCarefulRunsPerMove;
        if (search.descend(target_bytes, options)) keep_better(best);
      }
    }
    if (plans.size() > 1 && is_better(plans[1], plans[0])) std::swap(plans[0], plans[1]);
    if (round > 0) plans.resize(1);
    return plans;
  }

  /// Calls `task(search, k)` for every level k on several threads. Each call must write to a place of its own.
  template <typename Task>
  void for_each_level(const Task& task) const {
    std::atomic<size_t> next = 0;
    const auto take_levels = [&](int) {
      RunSearch search(flat_);
      for (size_t k = next++; k < levels_.size(); k = next++) task(search, k);
    };
    run_workers(std::min(thread_count(limits_.threads), static_cast<int>(levels_.size())), take_levels);
  }

  void improve_all(int round, int64_t work) {
    std::vector<std::vector<JudgedRuns>> improved(levels_.size());
    for_each_level([&](RunSearch& search, size_t k) { improved[k] = improve(search, k, round, work); });
    for (size_t k = 0; k < levels_.size(); ++k) {
      levels_[k].is_new = improved[k].front().runs != levels_[k].best().runs;
      levels_[k].is_faster = improved[k].front().time_ns < levels_[k].best().time_ns;
      levels_[k].plans = std::move(improved[k]);
    }
  }

  /// Inserts a level just above the smallest peak, where a few more bytes save the most time, polishes it alone, and
  /// returns its best plan.
  JudgedRuns polish_lowest(int round) {
    const int64_t least_bytes = levels_.back().best().peak_bytes;
    const int64_t target_bytes = least_bytes + least_bytes / kLowestLevelGapFraction;
    const auto below = std::ranges::find_if(levels_, [&](const Level& l) { return l.target_bytes < target_bytes; });
    Level level{target_bytes, bounds_.within(target_bytes).time_ns, {levels_.back().best()}};
    for (const Level& other : levels_)
      if (other.best().peak_bytes <= target_bytes && is_better(other.best(), level.best()))
        level.plans = {other.best()};
    for (const JudgedRuns& start : starts_)
      if (start.peak_bytes <= target_bytes && is_better(start, level.best())) level.plans = {start};
    const auto k = static_cast<size_t>(below - levels_.begin());
    levels_.insert(below, std::move(level));
    const int64_t work = work_per_run() * std::ssize(base_) / kLowestLevelWorkFraction;
    for (int i = 0; i < kLowestLevelRounds; ++i)
      levels_[k].plans = improve(search_, k, round + i, work / kLowestLevelRounds);
    return levels_[k].best();
  }

  /// Makes every plan of the front a level just below the peak of the next plan and looks for a faster plan there, in
  /// several passes. Each pass first looks for smaller peaks.
  void refine(int round) {
    for (int pass = 0, idle = 0; pass < kRefinementPasses && idle < kMaxIdlePasses; ++pass) {
      for (Level& level : levels_) starts_.push_back(std::move(level.plans.front()));
      starts_.push_back(store_all_);
      starts_ = undominated(std::move(starts_));
      find_lower(pass);
      levels_.clear();
      for (size_t i = starts_.size() - 1; i-- > 0;) {
        const int64_t target_bytes = starts_[i + 1].peak_bytes - 1;
        const int64_t bound_ns = bounds_.within(target_bytes).time_ns;
        levels_.push_back({target_bytes, bound_ns, {starts_[i]}});
      }
      improve_all(round + pass, work_of_round(2));
      idle = std::ranges::any_of(levels_, &Level::is_faster) ? 0 : idle + 1;
    }
  }

  /// Inserts plans of smaller and smaller peaks at the front of starts_.
  void find_lower(int pass) {
    const int64_t least_bytes = peak_lower_bound_bytes(flat_);
    search_.seed(static_cast<uint64_t>(pass) + 1);
    int64_t end = search_.work() + work_per_run() * std::ssize(base_) / 4;
    while (search_.work() < end && starts_.front().peak_bytes > least_bytes) {
      const int64_t target_bytes = starts_.front().peak_bytes - 1;
      search_.assign(starts_[search_.random(std::min<size_t>(starts_.size(), 3))].runs);
      search_.remember();
      search_.ruin(1 + static_cast<int>(search_.random(RandomChanges::kMostRuined)));
      search_.insert_any(static_cast<int>(search_.random(5)));
      DescentOptions options{RandomChanges::kMostInsertions[search_.random(RandomChanges::kMostInsertions.size())],
                             RandomChanges::kNoise, search_.random(2) == 0};
      options.anywhere = options.early;
      if (!search_.descend(target_bytes, options)) continue;
      search_.prune(target_bytes);
      starts_.insert(starts_.begin(), search_.judged());
    }
  }

  /// Returns plans for targets between a level and the one above it. They are made by pruning the level's plan, and by
  /// descending from the plan of the level above.
  std::vector<JudgedRuns> plans_between(RunSearch& search, size_t k) const {
    const JudgedRuns& below = levels_[k].best();
    const JudgedRuns& above = k == 0 ? store_all_ : levels_[k - 1].best();
    const int64_t gap_bytes = (k == 0 ? store_all_.peak_bytes : levels_[k - 1].target_bytes) - levels_[k].target_bytes;
    std::vector<JudgedRuns> plans;
    std::vector<int32_t> higher = above.runs;  // The plan from which the next lower target is reached.
    const int count = is_short() ? kTargetsBetweenLevels : 1;
    for (int i = count; i > 0 && gap_bytes > count; --i) {
      const int64_t target_bytes = levels_[k].target_bytes + gap_bytes / (count + 1) * i;
      search.assign(below.runs);
      search.prune(target_bytes);
      plans.push_back(search.judged());
      if (higher.empty()) continue;
      search.assign(higher);
      higher.clear();
      const int64_t most_ns = is_short() ? slightly_more(plans.back().time_ns) : plans.back().time_ns;
      if (!search.descend(target_bytes, {.most_ns = most_ns})) continue;
      search.prune(target_bytes);
      higher = search.timeline().runs();
      plans.push_back(search.judged());
    }
    return plans;
  }

  Front front(bool with_plans_between) const {
    std::vector<JudgedRuns> all = starts_;
    std::ranges::copy(coarse_, std::back_inserter(all));
    all.push_back(store_all_);
    std::vector<std::vector<JudgedRuns>> between(levels_.size());
    if (with_plans_between) for_each_level([&](RunSearch& search, size_t k) { between[k] = plans_between(search, k); });
    for (std::vector<JudgedRuns>& plans : between) std::ranges::move(plans, std::back_inserter(all));
    for (const Level& level : levels_) all.push_back(level.best());
    return undominated(std::move(all));
  }

  const FlatGraph& flat_;
  PlanLimits limits_;
  MemoryBounds bounds_;
  RunSearch search_;
  std::vector<int32_t> base_;
  JudgedRuns store_all_;
  bool store_all_fails_ = false;  ///< Whether a descent from store-all with few insertions at a time has failed.
  int32_t runs_per_move_ = DescentOptions{}.runs_per_move;
  /// Whether the starts are near the best plans for their peaks (SearchStarts::are_polished).
  bool are_polished_ = false;
  std::vector<JudgedRuns> starts_;
  std::vector<JudgedRuns> coarse_;
  std::vector<Level> levels_;
};

}  // namespace

int64_t peak_lower_bound_bytes(const FlatGraph& flat) {
  // The step's outputs are live during the moment of the last run, which is smaller only where its workspace is
  // negative.
  int64_t min_workspace = 0;
  for (const int64_t workspace : flat.workspace) min_workspace = std::min(min_workspace, workspace);
  int64_t output_bytes = 0;
  for (const ValueId id : flat.graph.outputs())
    if (!flat.graph.value(id).resident) output_bytes += flat.graph.value(id).bytes;
  int64_t most_bytes = std::max<int64_t>(output_bytes + min_workspace, 0);
  const auto needs_bytes = [&](OpId id) {
    const auto op = static_cast<int32_t>(id);
    int64_t bytes = flat.output_bytes[at(op)] + flat.workspace[at(op)];
    for (const int32_t v : flat.inputs(op)) bytes += flat.bytes[at(v)];
    int64_t in_place = 0;
    for (const int32_t v : flat.overwrites(op)) in_place = std::max(in_place, flat.bytes[at(v)]);
    return bytes - in_place;
  };
  // One op of each needed group runs. The bound assumes the one with the smallest moment.
  const NeededGroups groups = find_needed_groups(flat.graph);
  for (size_t g = 0; g < groups.ops.size(); ++g) {
    if (groups.needed[g] == 0) continue;
    int64_t least_bytes = std::numeric_limits<int64_t>::max();
    for (const OpId id : groups.ops[g]) least_bytes = std::min(least_bytes, needs_bytes(id));
    most_bytes = std::max(most_bytes, least_bytes);
  }
  return flat.graph.resident_bytes() + most_bytes;
}

std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes) {
  std::vector<int64_t> targets;
  for (int k = kLevels - 1; k > 0; --k) {
    const int64_t target_bytes = most_bytes / kLevels * k + most_bytes % kLevels * k / kLevels;
    if (target_bytes <= least_bytes) break;
    targets.push_back(target_bytes);
  }
  return targets;
}

std::vector<Front> search_fronts(const FlatGraph& flat, const SearchStarts& starts, const PlanLimits& limits) {
  return FrontBuilder(flat, limits).build(starts);
}

}  // namespace headroom::internal
