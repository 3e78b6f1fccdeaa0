#include "headroom/plan/auto/front.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "headroom/core/schedule.h"
#include "headroom/plan/auto/context.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/auto/polish.h"
#include "headroom/plan/auto/refinement.h"
#include "headroom/plan/auto/starts.h"
#include "headroom/plan/bounds/memory_bound.h"

namespace headroom::internal {
namespace {

/// Keeps only the undominated plans, and prunes each of them at its own peak.
void keep_polished(const FlatGraph& flat, const SearchParameters& parameters, std::vector<JudgedRuns>& plans) {
  RunSearch search(flat, parameters);
  plans = undominated(std::move(plans));
  for (JudgedRuns& plan : plans) {
    search.assign(plan.runs);
    search.prune(plan.peak_bytes);
    plan = search.judged();
  }
}

StartPlans make_starts(const FlatGraph& flat, const SearchStarts& given, const SearchParameters& parameters) {
  StartPlans starts;
  std::vector<int32_t> base;
  for (const OpId op : base_ops(flat.graph)) base.push_back(static_cast<int32_t>(op));
  starts.store_all = judge(flat, base);
  const std::vector<int32_t> faster = parameters.start.faster_producers
                                          ? faster_base(flat, base, parameters.start.faster_producer_work)
                                          : std::vector<int32_t>();
  if (!faster.empty()) {
    starts.plans.push_back(std::move(starts.store_all));
    starts.store_all = judge(flat, faster);
    starts.plans.push_back(starts.store_all);
  }
  for (const std::vector<int32_t>& runs : given.plans) starts.plans.push_back(judge(flat, runs));
  starts.are_polished = given.are_polished;
  if (starts.are_polished) keep_polished(flat, parameters, starts.plans);
  return starts;
}

/// Returns plans for targets between level k and the one above it. They are made by pruning the level's plan, and by
/// descending from the plan of the level above.
std::vector<JudgedRuns> plans_between(const SearchContext& context, const JudgedRuns& store_all,
                                      const std::vector<Level>& levels, size_t k, RunSearch& search) {
  const JudgedRuns& below = levels[k].best();
  const JudgedRuns& above = k == 0 ? store_all : levels[k - 1].best();
  const int64_t gap_bytes = (k == 0 ? store_all.peak_bytes : levels[k - 1].target_bytes) - levels[k].target_bytes;
  std::vector<JudgedRuns> plans;
  std::vector<int32_t> higher = above.runs;  // The plan from which the next lower target is reached.
  const int max_count = context.parameters().level.targets_between;
  const int count = context.is_short() ? max_count : std::min(max_count, 1);
  for (int i = count; i > 0 && gap_bytes > count; --i) {
    const int64_t target_bytes = levels[k].target_bytes + gap_bytes / (count + 1) * i;
    search.assign(below.runs);
    search.prune(target_bytes);
    plans.push_back(search.judged());
    if (higher.empty()) continue;
    search.assign(higher);
    higher.clear();
    const int64_t max_ns = context.is_short() ? slightly_more(plans.back().time_ns) : plans.back().time_ns;
    if (!search.descend(target_bytes, {.max_ns = max_ns})) continue;
    search.prune(target_bytes);
    higher = search.timeline().runs();
    plans.push_back(search.judged());
  }
  return plans;
}

/// Returns the front of all plans: the starts, those of the levels, and with `has_between` those between levels.
Front make_front(const SearchContext& context, const StartPlans& starts, const std::vector<Level>& levels,
                 bool has_between) {
  std::vector<JudgedRuns> all = starts.plans;
  all.push_back(starts.store_all);
  std::vector<std::vector<JudgedRuns>> between(levels.size());
  if (has_between)
    context.for_each(levels.size(), [&](RunSearch& search, size_t k) {
      between[k] = plans_between(context, starts.store_all, levels, k, search);
    });
  for (std::vector<JudgedRuns>& plans : between) std::ranges::move(plans, std::back_inserter(all));
  for (const Level& level : levels) all.push_back(level.best());
  return undominated(std::move(all));
}

}  // namespace

std::vector<Front> search_fronts(const FlatGraph& flat, const SearchStarts& given, const PlanLimits& limits,
                                 const SearchParameters& parameters) {
  StartPlans starts = make_starts(flat, given, parameters);
  const SearchContext context(flat, limits, parameters, std::ssize(starts.store_all.runs));
  MemoryBoundParameters bound_parameters = parameters.bound;
  bound_parameters.keep_order = true;
  const MemoryBounds bounds(flat.graph, bound_parameters);
  std::vector<Level> levels = LevelFinder(context, bounds, starts).find();
  const int rounds = starts.are_polished ? 0 : context.rounds();
  std::vector<Front> fronts;
  for (int round = 0; round < rounds; ++round) {
    polish_levels(context, round, context.work_of_round(rounds, std::ssize(levels)), levels);
    if (round > 0 || context.is_high_effort()) continue;
    // The plans so far are the front of low effort.
    fronts.push_back(make_front(context, starts, levels, false));
    if (context.is_low_effort()) return fronts;
  }
  if (context.is_tiny()) refine(context, bounds, rounds, starts, levels);
  fronts.push_back(make_front(context, starts, levels, !starts.are_polished));
  const bool has_lowest = parameters.polish.lowest_level && context.is_short() && !context.is_tiny();
  if (starts.are_polished || !has_lowest || levels.empty()) return fronts;
  std::vector<JudgedRuns> plans = fronts.back();
  plans.push_back(polish_lowest(context, bounds, starts.plans, rounds, levels));
  fronts.push_back(undominated(std::move(plans)));
  return fronts;
}

}  // namespace headroom::internal
