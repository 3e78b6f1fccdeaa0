#include "headroom/plan/auto/any_order.h"

#include <algorithm>
#include <iterator>
#include <limits>
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
        base_(runs_of(store_all(flat.graph))),
        store_all_(judge(flat, base_)),
        base_bytes_(store_all_.peak_bytes),
        context_(flat, limits, parameters_, std::ssize(base_)),
        bounds_(flat.graph, parameters_.bound),
        front_(front) {
    int i = 0;
    const int stride = context_.is_short() ? 1 : context_.is_long() ? 4 : 2;
    for (const int64_t target_bytes : level_targets(store_all_.peak_bytes, 0, parameters_.level))
      if (i++ % stride == 0) add_level(target_bytes);
    add_level(front.front().peak_bytes);
  }

  /// Moves runs of store-all and of every level's plan, and looks for smaller peaks.
  void start() {
    store_all_ = reordered(judge(flat_, base_));
    for (const bool backwards : {false, true}) {
      if (!parameters_.order.list_orders || flat_.has_alternatives) continue;
      JudgedRuns listed = reordered(judge(flat_, greedy_order(flat_, base_, backwards)));
      if (listed.peak_bytes < store_all_.peak_bytes) store_all_ = std::move(listed);
    }
    found_.push_back(store_all_);
    std::vector<JudgedRuns> moved(levels_.size());
    context_.for_each(levels_.size(), [&](RunSearch& search, size_t k) {
      Level& level = levels_[k];
      const int64_t end = search.work() + work(parameters_.order.level_work_percent) / std::ssize(levels_);
      if (is_order_better()) descend_from(store_all_.runs, level.target_bytes, end, search, level.plans.front());
      moved[k] = reordered(level.best());
    });
    std::ranges::move(moved, std::back_inserter(found_));
    find_smaller_peaks();
  }

  void polish(int first_round) {
    if (levels_.empty() || parameters_.order.rounds == 0) return;
    const OrderParameters& order = parameters_.order;
    const int64_t level_work = work(order.polish_work_percent) / (order.rounds * std::ssize(levels_));
    for (int i = 0; i < order.rounds; ++i) polish_levels(context_, first_round + i, level_work, levels_);
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

  /// Returns a plan with the same runs in an order with a smaller peak, as far as moves find one.
  JudgedRuns reordered(JudgedRuns best) const {
    RunSearch search(flat_, parameters_);
    search.assign(best.runs);
    for (;;) {
      search.reorder(best.peak_bytes - std::max<int64_t>(best.peak_bytes / parameters_.order.peak_step_fraction, 1));
      if (search.timeline().peak_bytes() >= best.peak_bytes) return best;
      best = search.judged();
    }
  }

  /// Returns a share of the work that polish at the effort of the search has.
  int64_t work(int64_t percent) const { return context_.work_per_run() * context_.run_count() / 100 * percent; }

  /// Returns whether another order of store-all needs clearly less memory than base order.
  bool is_order_better() const {
    return base_bytes_ - store_all_.peak_bytes > base_bytes_ / parameters_.order.large_step_fraction;
  }

  /// Adds levels below the smallest peak: by large steps where another order needs clearly less memory than base order,
  /// then by small ones.
  void find_smaller_peaks() {
    const OrderParameters& order = parameters_.order;
    RunSearch search(flat_, parameters_);
    const int64_t smallest_bytes = front().front().peak_bytes;
    if (is_order_better()) step_down(smallest_bytes / order.large_step_fraction, order.large_step_work_percent, search);
    step_down(smallest_bytes / order.small_step_fraction, order.small_step_work_percent, search);
  }

  /// Looks for smaller and smaller peaks. A step that finds a plan doubles the next one, and one that fails makes it much
  /// smaller.
  void step_down(int64_t step_bytes, int64_t work_percent, RunSearch& search) {
    const OrderParameters& order = parameters_.order;
    JudgedRuns smallest = front().front();
    const int64_t least_bytes = peak_lower_bound_bytes(flat_);
    const int64_t most_work = work(work_percent);
    const int64_t end = search.work() + most_work;
    while (search.work() < end && step_bytes > 0 && smallest.peak_bytes > least_bytes) {
      const int64_t target_bytes = std::max(smallest.peak_bytes - step_bytes, least_bytes);
      const MemoryBound bound = bounds_.within(target_bytes, parameters_.max_cuts_if_not_short);
      JudgedRuns found = smallest;
      found.time_ns = slowest_ns();
      const auto try_from = [&](const std::vector<int32_t>& runs) {
        const int64_t try_end = std::min(end, search.work() + most_work / order.tries);
        if (bound.is_feasible && found.peak_bytes > target_bytes)
          descend_from(runs, target_bytes, try_end, search, found);
      };
      try_from(smallest.runs);
      try_from(store_all_.runs);
      try_from(cut_start(flat_, store_all_.runs, bound));
      if (found.peak_bytes > target_bytes) {
        step_bytes /= order.step_divisor;
        continue;
      }
      if (step_bytes < smallest.peak_bytes / 4) step_bytes *= 2;
      smallest = std::move(found);
      levels_.push_back({.target_bytes = target_bytes, .bound_ns = bound.time_ns, .plans = {smallest}});
    }
  }

  /// Returns the time that a plan for a smaller peak may take.
  int64_t slowest_ns() const {
    const int64_t base_ns = judge(flat_, base_).time_ns;
    const int64_t slowdown = parameters_.start.max_slowdown;
    return base_ns > std::numeric_limits<int64_t>::max() / 2 / slowdown ? base_ns : slowdown * base_ns;
  }

  /// Descends from runs to a target, and stores the result in `best` if it is better. Gives up when the work of the search
  /// is `end`.
  void descend_from(const std::vector<int32_t>& runs, int64_t target_bytes, int64_t end, RunSearch& search,
                    JudgedRuns& best) const {
    if (runs.empty() || search.work() >= end) return;
    search.assign(runs);
    const int64_t most_per_run = std::max<int64_t>((end - search.work()) / std::ssize(runs), 1);
    const DescentOptions options{.max_insertions = parameters_.start.few_insertions,
                                 .max_ns = slightly_more(best.time_ns),
                                 .max_work_per_run = std::min(parameters_.descent.max_work_per_run, most_per_run)};
    if (!search.descend(target_bytes, options)) return;
    search.prune(target_bytes);
    if (JudgedRuns found = search.judged(); is_better(found, best)) best = std::move(found);
  }

  const FlatGraph& flat_;
  const SearchParameters parameters_;
  const std::vector<int32_t> base_;  ///< Store-all in base order.
  JudgedRuns store_all_;             ///< Store-all in the order with the smallest peak that is known.
  int64_t base_bytes_;               ///< Peak of store-all in base order.
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
