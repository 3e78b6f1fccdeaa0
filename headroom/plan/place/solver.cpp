#include "headroom/plan/place/solver.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <optional>

#include "headroom/plan/place/first_fit.h"
#include "headroom/plan/place/orders.h"
#include "headroom/plan/place/section_search.h"

namespace headroom::internal {
namespace {

/// The orders of first-fit.
constexpr std::array<BlockKeys, 4> kFirstFitKeys = {{
    {BlockKey::kSize, BlockKey::kSize, BlockKey::kSize},  // Equal sizes stay in order of time.
    {BlockKey::kTotal, BlockKey::kLength, BlockKey::kSize},
    {BlockKey::kArea, BlockKey::kSize, BlockKey::kTotal},
    {BlockKey::kLength, BlockKey::kArea, BlockKey::kTotal},
}};
/// The order of which promotions change first: it is the best start on most training steps.
constexpr int kFirstPromoted = 1;
/// The orders of searches. The first three are those of MiniMalloc.
constexpr std::array<BlockKeys, 8> kSearchKeys = {{
    {BlockKey::kTotal, BlockKey::kLength, BlockKey::kArea},
    {BlockKey::kTotal, BlockKey::kArea, BlockKey::kLength},
    {BlockKey::kLength, BlockKey::kArea, BlockKey::kTotal},
    {BlockKey::kArea, BlockKey::kLength, BlockKey::kTotal},
    {BlockKey::kLength, BlockKey::kTotal, BlockKey::kArea},
    {BlockKey::kArea, BlockKey::kTotal, BlockKey::kLength},
    {BlockKey::kTotal, BlockKey::kSize, BlockKey::kArea},
    {BlockKey::kSize, BlockKey::kTotal, BlockKey::kArea},
}};
/// Where searches look in turn, as divisors of the gap between the smallest arena that is not excluded and the best one;
/// 0 is the smallest arena. A wide gap is first made narrow.
using GapDivisors = std::array<int64_t, 4>;
constexpr GapDivisors kWideGapDivisors = {2, 2, 4, 2};
constexpr GapDivisors kNarrowGapDivisors = {0, 2, 0, 0};
constexpr GapDivisors kLateGapDivisors = {8, 0, 0, 0};
/// A gap is wide above this part of the arena.
constexpr int64_t kWideGapParts = 64;
/// The number of times that every order was tried from which on there are no more promotions, and searches look at the
/// smallest arena for the most part.
constexpr size_t kLateCycle = 4;
/// By how many percent the noise grows with every time that every order is tried, up to the most, from where it starts
/// again.
constexpr size_t kNoiseStep = 11;
/// Searches with noise get at most 2^4 times the work of the first ones, and from kLateCycle on at least 2^2 times.
constexpr int kMostDoublings = 4;
constexpr int kLateDoublings = 2;
/// The part of the gap, in percent, by which the target of promotions is below the best arena.
constexpr int64_t kTargetPercent = 30;
/// Number of pairs of a block and its section above which there are no searches, because their lists take too much memory.
constexpr int64_t kMaxSearchPairs = 30'000'000;

class Solver {
 public:
  Solver(const PlaceProblem& problem, const PlaceParams& params)
      : params_(params),
        sections_(problem),
        orders_(sections_),
        first_fit_(sections_),
        lower_bytes_(sections_.lower_bound_bytes),
        most_work_(params.least_work + params.work_per_block * sections_.block_count()) {
    for (size_t b = 0; b < sections_.bytes.size(); ++b) pair_count_ += sections_.last[b] - sections_.first[b] + 1;
  }

  PlaceSolution solve() {
    for (size_t i = 0; i < kFirstFitKeys.size() && !is_done(); ++i) {
      first_fit_orders_[i] = orders_.sorted(kFirstFitKeys[i], 0, random_);
      place_first_fit(first_fit_orders_[i]);
    }
    for (int promotions = kFirstPromoted, searches = 0; !is_done();) {
      const bool may_search = pair_count_ <= kMaxSearchPairs;
      const bool is_late = static_cast<size_t>(searches) >= kLateCycle * kSearchKeys.size();
      if (may_search && (is_late || search_work_ <= params_.searches_per_promotion * promotion_work_))
        search(searches++);
      else
        promote(first_fit_orders_[static_cast<size_t>(promotions++) % kFirstFitKeys.size()]);
    }
    PlaceSolution solution;
    solution.offsets.resize(offsets_.size());
    for (size_t b = 0; b < offsets_.size(); ++b) solution.offsets[sections_.source[b]] = offsets_[b];
    solution.arena_bytes = arena_bytes_;
    solution.lower_bound_bytes = lower_bytes_;
    return solution;
  }

 private:
  int64_t goal_bytes() const { return std::max(lower_bytes_, params_.enough_bytes); }
  int64_t work() const { return first_fit_.work() + search_work_; }
  bool is_done() const {
    if (offsets_.size() != sections_.bytes.size()) return false;  // At least one placement is made.
    return arena_bytes_ <= goal_bytes() || work() >= most_work_;
  }

  void keep(const std::vector<int64_t>& offsets, int64_t arena_bytes) {
    if (arena_bytes >= arena_bytes_) return;
    offsets_ = offsets;
    arena_bytes_ = arena_bytes;
  }

  void place_first_fit(const std::vector<int32_t>& order) {
    first_fit_.place(order);
    keep(first_fit_.offsets(), first_fit_.arena_bytes());
  }

  /// Places the blocks by first-fit several times, each time with the blocks that ended above the target moved forward.
  void promote(std::vector<int32_t>& order) {
    constexpr int64_t kScale = 1 << 20;
    const int64_t work_before = first_fit_.work();
    for (int i = 0; i < params_.promotions_per_round && !is_done(); ++i) {
      place_first_fit(order);
      const int64_t gap_bytes = arena_bytes_ - goal_bytes();
      const int64_t target_bytes = std::max(goal_bytes(), arena_bytes_ - 1 - gap_bytes / 100 * kTargetPercent);
      const int64_t excess_bytes = first_fit_.arena_bytes() - target_bytes;
      std::vector<int64_t> position(order.size());
      for (size_t k = 0; k < order.size(); ++k) {
        const auto b = static_cast<size_t>(order[k]);
        position[b] = static_cast<int64_t>(k) * kScale;
        const int64_t above_bytes = first_fit_.end_bytes(order[k]) - target_bytes;
        if (above_bytes <= 0 || excess_bytes <= 0) continue;
        // The highest block moves forward by a quarter to three quarters of its position.
        const int64_t share = share_of(above_bytes, excess_bytes, random_.number(kScale / 4, kScale * 3 / 4));
        position[b] = static_cast<int64_t>(k) * (kScale - share);
      }
      std::ranges::stable_sort(order, {}, [&](int32_t b) { return position[static_cast<size_t>(b)]; });
    }
    promotion_work_ += first_fit_.work() - work_before;
  }

  /// Returns about factor * part / whole, for 0 < part <= whole and a factor of at most 2^20.
  static int64_t share_of(int64_t part, int64_t whole, int64_t factor) {
    while (whole > (int64_t{1} << 40)) {
      whole /= 2;
      part /= 2;
    }
    return factor * part / whole;
  }

  /// Returns the arena that a search looks for: at least the goal, and below the best one.
  int64_t aim_of(size_t turn, size_t cycle) const {
    const int64_t gap_bytes = arena_bytes_ - 1 - goal_bytes();
    const bool is_wide = gap_bytes > goal_bytes() / kWideGapParts;
    const GapDivisors& divisors = cycle >= kLateCycle ? kLateGapDivisors
                                  : is_wide           ? kWideGapDivisors
                                                      : kNarrowGapDivisors;
    const int64_t divisor = divisors[turn % divisors.size()];
    return goal_bytes() + (divisor == 0 ? 0 : gap_bytes / divisor);
  }

  int64_t search_work_limit(size_t cycle) const {
    const int64_t block_count = sections_.block_count();
    const int64_t descent_work = block_count * (block_count + sections_.section_count());
    const int64_t first_work = params_.least_search_work + params_.descents_per_search * descent_work;
    // Every second time twice the first work, every fourth time four times as much, and so on.
    int doublings = std::countr_zero(cycle + 1);
    if (!std::has_single_bit(cycle + 1))
      doublings = std::min(doublings + (cycle >= kLateCycle ? kLateDoublings : 0), kMostDoublings);
    const int64_t work_left = most_work_ - work();
    return (work_left >> doublings) > first_work ? first_work << doublings : work_left;
  }

  void search(int round) {
    if (!search_) search_.emplace(sections_);
    const auto r = static_cast<size_t>(round);
    const size_t cycle = r / kSearchKeys.size();
    const bool has_noise = !std::has_single_bit(cycle + 1);
    const int64_t noise_percent =
        has_noise ? 2 + static_cast<int64_t>(kNoiseStep * cycle) % params_.most_noise_percent : 0;
    const std::vector<int32_t> order = orders_.sorted(kSearchKeys[r % kSearchKeys.size()], noise_percent, random_);
    const int64_t aim_bytes = aim_of(r + cycle, cycle);
    const int64_t block_count = sections_.block_count();
    const int64_t most_work = search_work_limit(cycle);
    const std::vector<int32_t> ranks = ranks_of(order);
    SectionSearch::Outcome outcome = search_->run(aim_bytes, ranks, most_work, has_noise);
    if (has_noise && outcome == SectionSearch::Outcome::kNotFound && search_->work() <= most_work) {
      // It has ended before the limit, with jumps: without them it may be a proof.
      search_work_ += search_->work();
      outcome = search_->run(aim_bytes, ranks, most_work, false);
    }
    search_work_ += search_->work() + block_count;
    if (outcome == SectionSearch::Outcome::kFits) {
      int64_t arena_bytes = 0;
      for (size_t b = 0; b < sections_.bytes.size(); ++b)
        arena_bytes = std::max(arena_bytes, search_->offsets()[b] + sections_.bytes[b]);
      keep(search_->offsets(), arena_bytes);
    } else if (outcome == SectionSearch::Outcome::kDoesNotFit) {
      lower_bytes_ = std::max(lower_bytes_, aim_bytes + 1);
    }
  }

  const PlaceParams& params_;
  Sections sections_;
  BlockOrders orders_;
  FirstFit first_fit_;
  std::optional<SectionSearch> search_;
  std::array<std::vector<int32_t>, kFirstFitKeys.size()> first_fit_orders_;
  PlaceRandom random_{1};
  int64_t lower_bytes_;
  int64_t most_work_;
  int64_t search_work_ = 0;
  int64_t promotion_work_ = 0;
  int64_t pair_count_ = 0;
  std::vector<int64_t> offsets_;  ///< Of the best placement, by block.
  int64_t arena_bytes_ = std::numeric_limits<int64_t>::max();
};

}  // namespace

PlaceSolution solve_placement(const PlaceProblem& problem, const PlaceParams& params) {
  return Solver(problem, params).solve();
}

}  // namespace headroom::internal
