#include "headroom/plan/auto/levels.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "headroom/core/simulate.h"
#include "headroom/plan/auto/starts.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

/// Returns the best of some plans within a target.
std::optional<JudgedRuns> best_within(const std::vector<JudgedRuns>& plans, int64_t target_bytes) {
  const JudgedRuns* best = nullptr;
  for (const JudgedRuns& plan : plans)
    if (plan.peak_bytes <= target_bytes && (best == nullptr || is_better(plan, *best))) best = &plan;
  return best == nullptr ? std::nullopt : std::optional(*best);
}

}  // namespace

std::vector<Level> LevelFinder::find() {
  const int64_t least_bytes = peak_lower_bound_bytes(context_.flat());
  const int64_t most_bytes = starts_.store_all.peak_bytes;
  const Graph& graph = context_.flat().graph;
  int64_t failed_bytes = least_bytes - 1;
  bool is_odd = false;
  for (const int64_t target_bytes :
       level_targets(simulate(graph, store_all(graph)).peak_bytes, least_bytes, parameters_.level)) {
    is_odd = !is_odd;
    if (target_bytes >= most_bytes || (is_odd && !context_.is_short())) continue;
    if (add_level(target_bytes)) continue;
    failed_bytes = target_bytes;
    break;
  }
  runs_per_move_ = parameters_.descent.careful_runs_per_move;
  // Bisect between the last level that has a plan and the largest target without one.
  for (int i = 0; i < parameters_.level.bisection_steps; ++i) {
    const int64_t reached_bytes = levels_.empty() ? most_bytes : levels_.back().best().peak_bytes;
    const bool is_open = failed_bytes < least_bytes;
    const int64_t target_bytes = is_open ? least_bytes : failed_bytes + (reached_bytes - failed_bytes) / 2;
    if (target_bytes >= reached_bytes) break;
    if (!add_level(target_bytes)) failed_bytes = target_bytes;
  }
  return std::move(levels_);
}

bool LevelFinder::add_level(int64_t target_bytes) {
  const int max_cuts = context_.is_short() ? parameters_.bound.max_cuts : parameters_.max_cuts_if_not_short;
  const MemoryBound bound = bounds_.within(target_bytes, max_cuts);
  if (!bound.is_feasible) return false;
  std::vector<JudgedRuns> plans = find_starts(target_bytes, bound);
  const bool found = !plans.empty();
  if (found) levels_.push_back({.target_bytes = target_bytes, .bound_ns = bound.time_ns, .plans = std::move(plans)});
  return found;
}

/// Returns up to two plans within a target, the better one first: one from the given starts and the cut, and one from
/// store-all or the level above.
std::vector<JudgedRuns> LevelFinder::find_starts(int64_t target_bytes, const MemoryBound& bound) {
  std::optional<JudgedRuns> one = start_from_plans(target_bytes, bound);
  if (starts_.are_polished && one && is_close(*one, bound.time_ns)) return {std::move(*one)};
  std::optional<JudgedRuns> other = start_from_store_all(target_bytes, one.has_value());
  if (context_.is_at_most_medium() && !one && !other) start_at_random(target_bytes, other);
  std::vector<JudgedRuns> plans;
  if (other) plans.push_back(std::move(*other));
  if (one) plans.push_back(std::move(*one));
  if (plans.size() == 2 && is_better(plans[1], plans[0])) std::swap(plans[0], plans[1]);
  if (plans.size() == 2 && !parameters_.polish.second_plan) plans.pop_back();
  return plans;
}

/// Returns the best plan of the given starts and of the cut of the memory bound, or none.
std::optional<JudgedRuns> LevelFinder::start_from_plans(int64_t target_bytes, const MemoryBound& bound) {
  const StartParameters& start = parameters_.start;
  std::optional<JudgedRuns> best = best_within(starts_.plans, target_bytes);
  if (starts_.are_polished && best && is_close(*best, bound.time_ns)) return best;
  if (best) descend_from(std::vector(best->runs), target_bytes, {.max_insertions = start.few_insertions}, best);
  if (!start.cut) return best;
  const std::vector<int32_t> runs = runs_around_cut(context_.flat(), starts_.store_all.runs, bound);
  if (runs.empty()) return best;
  descend_from(runs, target_bytes, {.max_insertions = start.few_insertions}, best);
  if (context_.is_short() || (!best && !starts_.are_polished))
    descend_from(runs, target_bytes, {.max_insertions = start.many_insertions}, best);
  return best;
}

/// Returns the best plan from store-all and from the level above, or none. `has_plan` says whether the level has a plan
/// from another start.
std::optional<JudgedRuns> LevelFinder::start_from_store_all(int64_t target_bytes, bool has_plan) {
  const DescentOptions few{.max_insertions = parameters_.start.few_insertions};
  const DescentOptions many{.max_insertions = parameters_.start.many_insertions};
  const auto from_store_all = [&](const DescentOptions& options, std::optional<JudgedRuns>& best) {
    if (parameters_.start.store_all) descend_from(starts_.store_all.runs, target_bytes, options, best);
  };
  std::optional<JudgedRuns> best;
  if (starts_.are_polished) {
    start_from_above(target_bytes, best);
  } else if (context_.is_short() || context_.is_long()) {
    if (context_.is_short()) from_store_all(few, best);
    if (context_.is_short() || !has_plan) from_store_all(many, best);
    start_from_above(target_bytes, best);
  } else {
    // A failed descent from store-all is the most expensive start; do not retry it for smaller budgets.
    if (!store_all_fails_) from_store_all(few, best);
    store_all_fails_ = store_all_fails_ || !best;
    start_from_above(target_bytes, best);
    if (!best && !has_plan) from_store_all(many, best);
  }
  return best;
}

void LevelFinder::start_from_above(int64_t target_bytes, std::optional<JudgedRuns>& best) {
  if (parameters_.start.level_above && !levels_.empty())
    descend_from(levels_.back().best().runs, target_bytes, {.max_insertions = parameters_.start.few_insertions}, best);
}

/// Descends with random choices, alternately from the level above and from store-all, until one plan reaches the
/// target.
void LevelFinder::start_at_random(int64_t target_bytes, std::optional<JudgedRuns>& best) {
  const PerturbationParameters& perturbation = parameters_.perturbation;
  const int64_t work_per_run = context_.work_per_run();
  const int64_t end = search_.work() + std::max(work_per_run / 100 * context_.run_count(), 8 * work_per_run);
  for (int i = 0; !best && i < parameters_.start.max_random_starts && search_.work() < end; ++i) {
    const bool from_above = i % 2 == 1 && !levels_.empty();
    const size_t count = perturbation.max_insertions.size();
    descend_from(from_above ? levels_.back().best().runs : starts_.store_all.runs, target_bytes,
                 {.max_insertions = perturbation.max_insertions[count - 1 - at(i / 2) % count],
                  .noise = i < 2 ? 0 : perturbation.noise_percent,
                  .early = i % 4 >= 2},
                 best);
  }
}

/// Descends from `runs` to a target, and stores the result in `best` if it is better.
void LevelFinder::descend_from(const std::vector<int32_t>& runs, int64_t target_bytes, DescentOptions options,
                               std::optional<JudgedRuns>& best) {
  if (options.max_insertions == 0) return;
  const StartParameters& start = parameters_.start;
  options.max_ns = best ? best->time_ns : max_start_ns();
  options.max_work_per_run = std::clamp<int64_t>(start.descent_work / std::max<int64_t>(context_.run_count(), 1),
                                                 start.min_descent_work_per_run, start.max_descent_work_per_run);
  options.runs_per_move = runs_per_move_;
  search_.assign(runs);
  if (!search_.descend(target_bytes, options)) return;
  search_.prune(target_bytes);
  JudgedRuns found = search_.judged();
  if (!best || is_better(found, *best)) best = std::move(found);
}

/// Returns whether a plan of a folded graph is so close to the bound that the whole graph is not searched.
bool LevelFinder::is_close(const JudgedRuns& plan, int64_t bound_ns) const {
  return plan.time_ns - bound_ns <= (context_.is_short() ? 0 : bound_ns / parameters_.polish.polished_close_fraction);
}

/// Returns the time that a descent from a start may reach.
int64_t LevelFinder::max_start_ns() const {
  const int64_t store_all_ns = starts_.store_all.time_ns;
  const int64_t slowdown = parameters_.start.max_slowdown;
  const int64_t most_ns = std::numeric_limits<int64_t>::max() / slowdown;
  if (context_.is_short() || levels_.empty()) return store_all_ns > most_ns ? store_all_ns : slowdown * store_all_ns;
  // A start that is much slower than the level above rarely ends in a good plan and costs much work.
  const int64_t above_ns = levels_.back().best().time_ns;
  return above_ns > most_ns ? above_ns : above_ns / 2 * 3;
}

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

std::vector<int64_t> level_targets(int64_t most_bytes, int64_t least_bytes, const LevelParameters& parameters) {
  std::vector<int64_t> targets;
  const int64_t count = parameters.count;
  for (int64_t k = count - 1; k > 0; --k) {
    const int64_t target_bytes = most_bytes / count * k + most_bytes % count * k / count;
    if (target_bytes <= least_bytes) break;
    targets.push_back(target_bytes);
  }
  return targets;
}

}  // namespace headroom::internal
