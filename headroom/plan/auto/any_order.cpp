#include "headroom/plan/auto/any_order.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "headroom/core/simulate.h"
#include "headroom/plan/auto/context.h"
#include "headroom/plan/auto/levels.h"
#include "headroom/plan/auto/polish.h"
#include "headroom/plan/auto/starts.h"
#include "headroom/plan/bounds/time_bound.h"

namespace headroom::internal {
namespace {

SearchParameters with_moves(SearchParameters parameters) {
  parameters.descent.moves_runs = true;
  return parameters;
}

/// The search for plans in any order that starts from a front.
class AnyOrder {
 public:
  AnyOrder(const FlatGraph& flat, const Front& front, const PlanLimits& limits, const SearchParameters& parameters)
      : flat_(flat),
        parameters_(with_moves(parameters)),
        store_all_(judge(flat, runs_of(store_all(flat.graph)))),
        context_(flat, limits, parameters_, std::ssize(store_all_.runs)),
        bounds_(flat.graph, parameters_.bound),
        front_(front) {
    int i = 0;
    const int stride = context_.is_short() ? 1 : 2;
    for (const int64_t target_bytes : level_targets(store_all_.peak_bytes, 0, parameters_.level))
      if (i++ % stride == 0) add_level(target_bytes);
    add_level(front.front().peak_bytes);
  }

  /// Starts from other plans at every level, and looks for smaller peaks.
  void start() {
    StartPlans starts{.store_all = reordered(store_all_), .plans = {}, .coarse = {}};
    found_.push_back(starts.store_all);
    context_.for_each(levels_.size(), [&](RunSearch& search, size_t k) { start_level(starts, search, levels_[k]); });
    levels_ = LevelFinder(context_, bounds_, starts).find_below(std::move(levels_), parameters_.order.bisection_steps);
  }

  void polish(int first_round) {
    const OrderParameters& order = parameters_.order;
    const int64_t work = context_.work_of_round(order.rounds, std::ssize(levels_)) / order.work_fraction;
    for (int i = 0; i < order.rounds; ++i) polish_levels(context_, first_round + i, work, levels_);
  }

  Front front() const {
    std::vector<JudgedRuns> plans = front_;
    plans.insert(plans.end(), found_.begin(), found_.end());
    for (const Level& level : levels_) plans.push_back(level.best());
    return undominated(std::move(plans));
  }

 private:
  void add_level(int64_t target_bytes) {
    const auto plan = find_within(front_, target_bytes);
    if (plan == front_.end() || plan + 1 == front_.end()) return;
    levels_.push_back({.target_bytes = target_bytes,
                       .bound_ns = bounds_.within(target_bytes, parameters_.max_cuts_if_not_short).time_ns,
                       .plans = {*plan}});
  }

  /// Returns a plan without more runs in an order with a smaller peak, as far as moves find one.
  JudgedRuns reordered(const JudgedRuns& plan) const {
    constexpr int64_t kStepFraction = 64;  // Each step asks for this fraction of the peak less.
    RunSearch search(flat_, parameters_);
    search.assign(plan.runs);
    JudgedRuns best = plan;
    for (;;) {
      search.reorder(best.peak_bytes - std::max<int64_t>(best.peak_bytes / kStepFraction, 1));
      if (search.timeline().peak_bytes() >= best.peak_bytes) return best;
      best = search.judged();
    }
  }

  void start_level(const StartPlans& starts, RunSearch& search, Level& level) const {
    if (level.best().time_ns - level.bound_ns <= level.bound_ns / parameters_.order.close_fraction) return;
    const int max_cuts = context_.is_short() ? parameters_.bound.max_cuts : parameters_.max_cuts_if_not_short;
    const MemoryBound bound = bounds_.within(level.target_bytes, max_cuts);
    if (parameters_.order.cut) {
      descend_from(cut_start(flat_, store_all_.runs, bound), search, level);
      descend_from(cut_start(flat_, starts.store_all.runs, bound), search, level);
    }
    if (parameters_.order.store_all) descend_from(starts.store_all.runs, search, level);
    descend_from(level.best().runs, search, level);
  }

  /// Descends from runs to a level's target, and stores the result in the level if it is better.
  void descend_from(std::vector<int32_t> runs, RunSearch& search, Level& level) const {
    if (runs.empty()) return;
    JudgedRuns& best = level.plans.front();
    search.assign(runs);
    const DescentOptions options{.max_insertions = parameters_.start.few_insertions,
                                 .max_ns = slightly_more(best.time_ns)};
    if (!search.descend(level.target_bytes, options)) return;
    search.prune(level.target_bytes);
    if (JudgedRuns found = search.judged(); is_better(found, best)) best = std::move(found);
  }

  const FlatGraph& flat_;
  const SearchParameters parameters_;
  JudgedRuns store_all_;
  SearchContext context_;
  MemoryBounds bounds_;
  const Front& front_;
  std::vector<Level> levels_;
  std::vector<JudgedRuns> found_;
};

}  // namespace

bool has_order_freedom(const Graph& graph) {
  const NeededGroups groups = find_needed_groups(graph);
  const std::vector<OpId>* before = nullptr;
  for (size_t g = 0; g < groups.ops.size(); ++g) {
    if (groups.needed[g] == 0) continue;
    const auto is_read_by_all = [&](ValueId id) {
      return std::ranges::all_of(groups.ops[g], [&](OpId op) {
        return std::ranges::find(graph.op(op).inputs, id) != graph.op(op).inputs.end();
      });
    };
    const auto leads_here = [&](OpId op) { return std::ranges::any_of(graph.op(op).outputs, is_read_by_all); };
    if (before != nullptr && std::ranges::none_of(*before, leads_here)) return true;
    before = &groups.ops[g];
  }
  return false;
}

Front search_any_order(const FlatGraph& flat, const Front& kept, const PlanLimits& limits,
                       const SearchParameters& parameters) {
  AnyOrder search(flat, kept, limits, parameters);
  search.start();
  return search.front();
}

Front polish_any_order(const FlatGraph& flat, const Front& front, const PlanLimits& limits,
                       const SearchParameters& parameters) {
  AnyOrder search(flat, front, limits, parameters);
  search.polish(1);
  return search.front();
}

}  // namespace headroom::internal
