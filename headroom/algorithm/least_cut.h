#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace headroom::internal {

/// A subset of the positions of a path 0, 1, …, n, whose two ends are always kept and cost nothing. A *segment* (i, j)
/// lies between two neighbouring kept positions; the bytes strictly inside it are
///
///     inner(i, j) = size_{i+1} + … + size_{j-1} + link_{i+1} + … + link_j
///
/// where link_j, if links are given, is the size of what lies between position j-1 and position j.
struct Cut {
  std::vector<int> kept;      ///< Positions 1..n-1, ascending.
  int64_t kept_sum = 0;       ///< Sum of their sizes.
  int64_t largest_inner = 0;  ///< Largest inner sum of a segment.
  bool operator==(const Cut&) const = default;
};

/// Returns the positions that minimise  sum of the kept sizes + largest inner sum,  where sizes[j-1] is the size of
/// position j (that of position n does not count) and there are no links. Ties: fewest positions, then the
/// lexicographically smallest list. This is Theorem 1 of Hong et al. 2025 (arXiv 2502.12499) and the chain case of Feng
/// & Huang 2021.
///
/// One bound on the inner sum takes O(n), by a sliding-window minimum. Of the O(n^2) bounds, only those are tried that
/// least_over_bounds() cannot rule out: O(n^3) up to its logarithm in the worst case, and tens of bounds for chains in
/// practice (10,000 stages take milliseconds). Takes O(n) memory.
///
/// Throws InvalidInput where a size is negative or the sum of the sizes does not fit int64.
std::vector<int> least_cut(std::span<const int64_t> sizes);

/// Returns the cut with the smallest kept sum among the cuts in which every segment has an inner sum of at most
/// `bound`; ties as above. `links` is empty (no links) or as long as `sizes`, links[j-1] being link_j. No link is above
/// `bound`, which is at least 0; otherwise throws InternalError. Sizes and links are not negative, and their sum fits
/// int64. Takes O(n).
Cut least_cut_within(std::span<const int64_t> sizes, std::span<const int64_t> links, int64_t bound);

/// Returns the cut with the smallest kept_sum + largest_inner among all cuts within(bound), 0 <= bound < whole, and the
/// cut that keeps nothing, whose largest inner sum is `whole`; ties as above. `within` must return the smallest kept
/// sum possible at its bound, so that a larger bound never keeps more, and break ties alike at every bound. Ranges of
/// bounds are bisected. A range is skipped where the kept sum at its upper end is already too large to beat the best
/// cut so far, or equals that at its lower end. Takes at most 64 calls for every kept sum that occurs.
Cut least_over_bounds(int64_t whole, const std::function<Cut(int64_t bound)>& within);

}  // namespace headroom::internal
