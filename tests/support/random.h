#pragma once

#include <cstdint>
#include <random>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"

namespace headroom::internal::testing {

/// Seeded random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// Returns a number in [min, max].
  int64_t number(int64_t min, int64_t max) {
    return min + static_cast<int64_t>(engine_() % static_cast<uint64_t>(max - min + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

struct RandomGraphOptions {
  int forward_ops = 4;
  int most_bytes = 9;
  bool special =
      true;  ///< whether to add more producers, tapes that hold, in-place ops, ops that run once, and workspaces
};

/// Returns a small training step that passes lint(): a forward DAG and, in reverse, a backward op for each forward op that
/// reads gradients and activations.
GraphSpec random_graph(Random& random, const RandomGraphOptions& options);

/// Returns a chain of `length` stages with sizes 0..9 and workspaces from -2 to 4. Some stages have another workspace when
/// they record.
Chain random_chain(Random& random, int length);

}  // namespace headroom::internal::testing
