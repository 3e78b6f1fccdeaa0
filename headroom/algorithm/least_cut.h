#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace headroom {

/// Positions kept of a path 0, 1, …, n, whose ends are kept anyway and cost nothing. A *segment* (i, j) lies between
/// two kept neighbours; what is strictly inside it is
///
///     inner(i, j) = size_{i+1} + … + size_{j-1} + link_{i+1} + … + link_j
///
/// where link_j, if links are given, is what lies between position j-1 and position j.
struct Cut {
  std::vector<int> kept;      ///< positions 1..n-1, ascending
  int64_t kept_sum = 0;       ///< sum of their sizes
  int64_t largest_inner = 0;  ///< largest inner sum of a segment
  bool operator==(const Cut&) const = default;
};

/// The positions that minimise  sum of the kept sizes + largest inner sum,  where sizes[j-1] is the size of position j
/// (that of position n counts nowhere) and there are no links. Ties: fewest positions, then the lexicographically
/// smallest list. This is Theorem 1 of Hong et al. 2025 (arXiv 2502.12499) and the chain case of Feng & Huang 2021.
///
/// One bound on the inner sum takes O(n), by a sliding-window minimum; of the O(n^2) bounds only those are tried that
/// least_over_bounds() cannot rule out: O(n^3) up to its logarithm in the worst case, tens of bounds for chains in
/// practice (10,000 stages: milliseconds). Memory O(n).
///
/// Throws InvalidInput where a size is negative or their sum does not fit int64.
std::vector<int> least_cut(std::span<const int64_t> sizes);

/// Among the cuts whose segments all have inner sums of at most `bound`, the one with the least kept sum; ties as
/// above. `links` is empty (no links) or as long as `sizes`, links[j-1] being link_j, none above `bound` (which is at
/// least 0). O(n). Sizes and links are not negative and their sum fits int64; InternalError where a link is above the
/// bound.
Cut least_cut_within(std::span<const int64_t> sizes, std::span<const int64_t> links, int64_t bound);

/// The least of all cuts  within(bound), 0 <= bound < whole, and of keeping nothing, whose largest inner sum is
/// `whole`, by kept_sum + largest_inner and the ties above. Assumed of `within`: it has the least kept sum possible at
/// its bound, so that a larger bound never keeps more, and picks among equals alike at every bound. Bounds are halved
/// into ranges; a range is left out where even the kept sum at its upper end is too much for the best cut yet, or no
/// less than at its lower end. At most 64 calls for every kept sum that occurs.
Cut least_over_bounds(int64_t whole, const std::function<Cut(int64_t bound)>& within);

}  // namespace headroom
