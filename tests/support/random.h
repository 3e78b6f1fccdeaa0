#pragma once

#include <cstdint>
#include <random>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"

namespace headroom::testing {

/// Seeded numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// From `least` to `most`, both included.
  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

struct RandomGraphOptions {
  int forward_ops = 4;
  int most_bytes = 9;
  bool special = true;  ///< several producers, tapes that hold, ops in place, ops that run once, workspaces
};

/// A small training step: a forward DAG, and a backward op for each forward op in reverse that reads gradients and
/// activations. Always passes lint().
GraphSpec random_graph(Random& random, const RandomGraphOptions& options);

/// A chain of `length` stages with sizes 0..9, workspaces from -2 to 4, those of recording sometimes their own.
Chain random_chain(Random& random, int length);

}  // namespace headroom::testing
