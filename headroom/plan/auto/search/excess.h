#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/auto/search/timeline.h"

namespace headroom::internal {

/// Returns the excess of a sequence: the bytes above a target, summed over the moments.
double excess_above(const Timeline& timeline, int64_t target_bytes);

/// The excess of a sequence, and how it changes with the bytes that are live between two positions.
class Excess {
 public:
  /// Computes the sums of a sequence in O(runs). Keeps a reference to it; it must not change before the next call.
  void assign(const Timeline& timeline, int64_t target_bytes);

  int64_t target_bytes() const { return target_bytes_; }
  double total() const { return sums_.back(); }

  /// Returns whether a moment in [first, end) is above the target.
  bool is_over_between(int32_t first, int32_t end) const {
    return counts_[static_cast<size_t>(end)] != counts_[static_cast<size_t>(first)];
  }
  /// Returns the first and the last position with a moment above the target, of which there must be one.
  int32_t first_over() const;
  int32_t last_over() const;

  /// Returns an upper bound on the excess that is removed by `bytes` less in [first, last]. It is exact where every
  /// moment above the target exceeds it by at least `bytes`.
  double freed(int32_t first, int32_t last, int64_t bytes) const;

  /// Returns a lower bound on the excess that is added by `bytes` more in [first, last]. It is 0 only where no excess
  /// is added. Whole blocks count by their largest moment. Where the excess is above `most`, returns some number above
  /// `most`.
  double added(int32_t first, int32_t last, int64_t bytes, double most) const;

 private:
  const Timeline* timeline_ = nullptr;
  int64_t target_bytes_ = 0;
  std::vector<int32_t> counts_;  ///< By position p: number of moments before p that are above the target.
  std::vector<double> sums_;     ///< By position p: bytes by which these moments exceed the target, in total.
};

}  // namespace headroom::internal
