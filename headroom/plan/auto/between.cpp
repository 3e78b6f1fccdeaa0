#include "headroom/plan/auto/between.h"

#include <algorithm>
#include <iterator>

#include "headroom/plan/auto/search/search.h"

namespace headroom::internal {
namespace {

/// Makes plans between two neighbours of a front by bisection.
class Bisection {
 public:
  /// Keeps a reference to the parameters.
  Bisection(const FlatGraph& flat, const JudgedRuns& lowest, const SearchParameters& parameters)
      : search_(flat, parameters), parameters_(parameters), min_bytes_(lowest.peak_bytes) {}

  /// Adds to `found` a plan for each of some ascending budgets, which are at least lower's peak and below upper's.
  /// `lower` is the plan for all budgets from its peak to `least_bytes`.
  void find(const JudgedRuns& lower, int64_t least_bytes, const JudgedRuns& upper, int depth,
            std::span<const int64_t> budgets, std::vector<JudgedRuns>& found) {
    const int64_t target_bytes = least_bytes + (upper.peak_bytes - least_bytes) / 2;
    const bool is_end = depth == parameters_.between.max_bisection_steps || target_bytes <= least_bytes;
    const auto has_plan = [&](int64_t budget_bytes) { return is_end || budget_bytes <= lower.peak_bytes; };
    const auto open = std::ranges::find_if_not(budgets, has_plan);
    found.insert(found.end(), static_cast<size_t>(open - budgets.begin()), lower);
    budgets = budgets.subspan(static_cast<size_t>(open - budgets.begin()));
    if (budgets.empty()) return;
    const JudgedRuns middle = make_middle(lower, target_bytes, upper);
    const auto at_middle = std::ranges::lower_bound(budgets, middle.peak_bytes);
    const auto above = std::ranges::lower_bound(budgets, std::max(target_bytes, middle.peak_bytes));
    const auto part = [&](auto first, auto last) {
      return budgets.subspan(static_cast<size_t>(first - budgets.begin()), static_cast<size_t>(last - first));
    };
    find(lower, least_bytes, middle, depth + 1, part(budgets.begin(), at_middle), found);
    found.insert(found.end(), static_cast<size_t>(above - at_middle), middle);
    find(middle, target_bytes, upper, depth + 1, part(above, budgets.end()), found);
  }

 private:
  /// Returns a plan for a target: the better of `lower`, pruned at the target, and a descent from `upper`. A plan that
  /// is faster than `upper` is not taken. Its peak is at least min_bytes_, the peak of the front's plan, even where
  /// it needs less.
  JudgedRuns make_middle(const JudgedRuns& lower, int64_t target_bytes, const JudgedRuns& upper) {
    JudgedRuns middle = lower;
    const auto keep_better = [&] {
      search_.prune(target_bytes);
      JudgedRuns found = search_.judged();
      found.peak_bytes = std::max(found.peak_bytes, min_bytes_);
      if (is_better(found, middle) && found.time_ns >= upper.time_ns) middle = std::move(found);
    };
    search_.assign(lower.runs);
    keep_better();
    search_.assign(upper.runs);
    if (search_.descend(target_bytes, {.max_ns = slightly_more(middle.time_ns)})) keep_better();
    return middle;
  }

  RunSearch search_;
  const SearchParameters& parameters_;
  int64_t min_bytes_;
};

}  // namespace

std::optional<JudgedRuns> plan_within(const FlatGraph& flat, const Front& front, int64_t budget_bytes,
                                      std::span<const int64_t> targets, const SearchParameters& parameters) {
  const auto above =
      std::ranges::partition_point(front, [&](const JudgedRuns& plan) { return plan.peak_bytes <= budget_bytes; });
  if (above == front.begin()) return std::nullopt;
  const JudgedRuns& lower = *std::prev(above);
  if (above == front.end() || parameters.between.max_bisection_steps == 0) return lower;
  std::vector<int64_t> budgets{budget_bytes};
  std::ranges::copy_if(targets, std::back_inserter(budgets), [&](int64_t target_bytes) {
    return lower.peak_bytes < target_bytes && target_bytes < above->peak_bytes;
  });
  std::ranges::sort(budgets);
  std::vector<JudgedRuns> found{lower};
  Bisection(flat, lower, parameters).find(lower, lower.peak_bytes, *above, 0, budgets, found);
  std::erase_if(found, [&](const JudgedRuns& plan) { return plan.peak_bytes > budget_bytes; });
  return *std::ranges::min_element(found, is_better);
}

}  // namespace headroom::internal
