#pragma once

#include <cstdint>

#include "headroom/plan/place/problem.h"

namespace headroom::internal {

/// What the solver may do. Work counts pairs of blocks, and blocks and sections of a search, that are looked at; 300,000 of
/// them take about a millisecond.
struct PlaceParams {
  /// Work for every block of the problem, on top of the next one.
  int64_t work_per_block = 8'000;
  /// Work for a problem of any size: a small one can be hard.
  int64_t least_work = 1'500'000;
  /// An arena of this size need not be made smaller.
  int64_t enough_bytes = 0;
  /// First-fit placements of a round, each with the promotions of the one before.
  int promotions_per_round = 10;
  /// Work of searches for one unit of work of promotions.
  int64_t searches_per_promotion = 3;
  /// Work of one of the first searches, in the work to place all blocks once without a dead end,
  int64_t descents_per_search = 2;
  /// and on top of that.
  int64_t least_search_work = 20'000;
  /// The most by which the keys of a search's order are changed.
  int64_t most_noise_percent = 60;
};

/// Places blocks in a small arena. Returns a valid placement, whatever the work, and whether it is proved that no arena
/// is smaller.
///
/// 1. *Orders.* First-fit by total, size, area and length.
/// 2. *Promotions.* In the order of a first-fit placement, the blocks that end above the target move forward, the
///    further the higher they end, and first-fit places all blocks again ("squeaky wheel" optimisation, Joslin and
///    Clements, 1999). The target is a little below the best arena so far.
/// 3. *Searches.* SectionSearch with the smallest arena that is not excluded, and with larger ones below the best so
///    far. Every search has an order of its own, with noise, and jumps. One that ends without a placement before its
///    limit of work is repeated without jumps, as a proof. Limits follow the sequence of Luby, Sinclair and Zuckerman
///    (1993): every second time twice the first one, every fourth time four times as much, and so on.
///
/// Steps 2 and 3 alternate until the arena is as small as its lower bound, or as params.enough_bytes, or the work is
/// spent. The lower bound is that of Sections, and above it where a search proves that an arena is too small. The result
/// is the same on every machine.
PlaceSolution solve_placement(const PlaceProblem& problem, const PlaceParams& params = {});

}  // namespace headroom::internal
