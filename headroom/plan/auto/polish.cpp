#include "headroom/plan/auto/polish.h"

#include <algorithm>
#include <utility>

namespace headroom::internal {
namespace {

/// Polishes one level. Reads the other levels, but changes none.
class LevelPolish {
 public:
  /// Keeps references to all of these.
  LevelPolish(const SearchContext& context, const std::vector<Level>& levels, size_t k, RunSearch& search)
      : context_(context), levels_(levels), k_(k), target_bytes_(levels[k].target_bytes), search_(search) {}

  /// Returns the level's plans after one round.
  std::vector<JudgedRuns> run(int round, int64_t work) {
    search_.seed(static_cast<uint64_t>(round) * 1000 + k_);
    std::vector<JudgedRuns> plans = levels_[k_].plans;
    if (context_.parameters().polish.neighbours) try_neighbours(plans.front());
    for (JudgedRuns& best : plans) perturb(search_.work() + work / std::ssize(plans), best);
    if (plans.size() > 1 && is_better(plans[1], plans[0])) std::swap(plans[0], plans[1]);
    if (round > 0) plans.resize(1);
    return plans;
  }

 private:
  void try_neighbours(JudgedRuns& best) {
    if (k_ + 1 < levels_.size() && levels_[k_ + 1].is_new) {
      search_.assign(levels_[k_ + 1].best().runs);
      keep_better(best);
    }
    if (k_ > 0 && levels_[k_ - 1].is_new) {
      search_.assign(levels_[k_ - 1].best().runs);
      if (search_.descend(target_bytes_, {.max_ns = best.time_ns})) keep_better(best);
    }
  }

  /// Makes other plans out of the best one until the work of the search is `end`.
  void perturb(int64_t end, JudgedRuns& best) {
    const PerturbationParameters& parameters = context_.parameters().perturbation;
    const bool inserts_any = context_.is_tiny() && parameters.max_inserted > 0;
    if (parameters.max_ruined == 0) return;
    search_.assign(best.runs);
    search_.remember();
    while (search_.work() < end && best.time_ns > levels_[k_].bound_ns) {
      const bool is_ruined = search_.ruin();
      if (inserts_any) {
        search_.insert_any(parameters.max_inserted);
      } else if (!is_ruined) {
        break;
      }
      DescentOptions options;
      options.max_insertions = search_.random_max_insertions();
      options.noise = parameters.noise_percent;
      options.early = parameters.early_one_in > 0 && search_.random(parameters.early_one_in) == 0;
      options.anywhere = options.early && parameters.anywhere && (context_.is_tiny() || search_.random(2) == 0);
      options.max_ns = slightly_more(best.time_ns);
      options.runs_per_move = context_.parameters().descent.careful_runs_per_move;
      if (search_.descend(target_bytes_, options)) keep_better(best);
    }
  }

  /// Prunes the current sequence, and stores it in `best` if it is no slower.
  void keep_better(JudgedRuns& best) {
    search_.prune(target_bytes_);
    if (search_.timeline().time_ns() > best.time_ns) return;
    best = search_.judged();
    search_.remember();
  }

  const SearchContext& context_;
  const std::vector<Level>& levels_;
  size_t k_;
  int64_t target_bytes_;
  RunSearch& search_;
};

}  // namespace

void polish_levels(const SearchContext& context, int round, int64_t work, std::vector<Level>& levels) {
  std::vector<std::vector<JudgedRuns>> polished(levels.size());
  context.for_each(levels.size(), [&](RunSearch& search, size_t k) {
    polished[k] = LevelPolish(context, levels, k, search).run(round, work);
  });
  for (size_t k = 0; k < levels.size(); ++k) {
    levels[k].is_new = polished[k].front().runs != levels[k].best().runs;
    levels[k].is_faster = polished[k].front().time_ns < levels[k].best().time_ns;
    levels[k].plans = std::move(polished[k]);
  }
}

JudgedRuns polish_lowest(const SearchContext& context, const MemoryBounds& bounds,
                         const std::vector<JudgedRuns>& starts, int round, std::vector<Level>& levels) {
  const PolishParameters& parameters = context.parameters().polish;
  const int64_t least_bytes = levels.back().best().peak_bytes;
  const int64_t target_bytes = least_bytes + least_bytes / parameters.lowest_gap_fraction;
  const auto below = std::ranges::find_if(levels, [&](const Level& l) { return l.target_bytes < target_bytes; });
  Level level{
      .target_bytes = target_bytes, .bound_ns = bounds.within(target_bytes).time_ns, .plans = {levels.back().best()}};
  const auto take_better = [&](const JudgedRuns& plan) {
    if (plan.peak_bytes <= target_bytes && is_better(plan, level.best())) level.plans = {plan};
  };
  for (const Level& other : levels) take_better(other.best());
  for (const JudgedRuns& start : starts) take_better(start);
  const auto k = static_cast<size_t>(below - levels.begin());
  levels.insert(below, std::move(level));
  const int64_t work = context.work_per_run() * context.run_count() / parameters.lowest_work_fraction;
  RunSearch search(context.flat(), context.parameters());
  for (int i = 0; i < parameters.lowest_rounds; ++i)
    levels[k].plans = LevelPolish(context, levels, k, search).run(round + i, work / parameters.lowest_rounds);
  return levels[k].best();
}

}  // namespace headroom::internal
