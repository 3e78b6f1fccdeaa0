#include "headroom/plan/auto/refinement.h"

#include <algorithm>
#include <utility>

#include "headroom/plan/auto/polish.h"

namespace headroom::internal {
namespace {

/// Inserts plans of smaller and smaller peaks at the front of `plans`, a front.
void lower_peak(const SearchContext& context, int pass, Front& plans) {
  const RefinementParameters& parameters = context.parameters().refinement;
  const PerturbationParameters& perturbation = context.parameters().perturbation;
  if (perturbation.max_ruined == 0) return;
  const int64_t least_bytes = peak_lower_bound_bytes(context.flat());
  RunSearch search(context.flat(), context.parameters());
  search.seed(static_cast<uint64_t>(pass) + 1);
  const int64_t end = context.work_per_run() * context.run_count() / parameters.lowering_work_fraction;
  while (search.work() < end && plans.front().peak_bytes > least_bytes) {
    const int64_t target_bytes = plans.front().peak_bytes - 1;
    search.assign(plans[search.random(std::min(plans.size(), parameters.lowered_plans))].runs);
    search.remember();
    search.ruin();
    if (perturbation.max_inserted > 0) search.insert_any(parameters.max_inserted);
    DescentOptions options;
    options.max_insertions = search.random_max_insertions();
    options.noise = perturbation.noise_percent;
    options.early = perturbation.early_one_in > 0 && search.random(2) == 0;
    options.anywhere = options.early && perturbation.anywhere;
    if (!search.descend(target_bytes, options)) continue;
    search.prune(target_bytes);
    plans.insert(plans.begin(), search.judged());
  }
}

}  // namespace

void refine(const SearchContext& context, const MemoryBounds& bounds, int round, StartPlans& starts,
            std::vector<Level>& levels) {
  const RefinementParameters& parameters = context.parameters().refinement;
  for (int pass = 0, idle = 0; pass < parameters.max_passes && idle < parameters.max_idle_passes; ++pass) {
    for (Level& level : levels) starts.plans.push_back(std::move(level.plans.front()));
    starts.plans.push_back(starts.store_all);
    starts.plans = undominated(std::move(starts.plans));
    if (parameters.lowers_peak) lower_peak(context, pass, starts.plans);
    levels.clear();
    for (size_t i = starts.plans.size() - 1; i-- > 0;) {
      const int64_t target_bytes = starts.plans[i + 1].peak_bytes - 1;
      levels.push_back(
          {.target_bytes = target_bytes, .bound_ns = bounds.within(target_bytes).time_ns, .plans = {starts.plans[i]}});
    }
    polish_levels(context, round + pass, context.work_of_round(2, std::ssize(levels)), levels);
    idle = std::ranges::any_of(levels, &Level::is_faster) ? 0 : idle + 1;
  }
}

}  // namespace headroom::internal
