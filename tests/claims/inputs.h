#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"

namespace headroom::testing {

/// A training step to test claims on: a chain where there is one, else the graph.
struct Input {
  GraphSpec graph;
  std::optional<Chain> chain;
};

/// The input of a seed, of one of three kinds: wild graphs of 2 to 8 ops (every feature of a graph, in any combination,
/// ops that nothing needs too), training steps of 3 to 6 forward ops with more producers added, chains of 1 to 3 stages.
/// One in 64 is larger, so that searches reach their limits: steps of 7 to 9 forward ops, chains of 4 to 6 stages.
Input random_input(uint64_t seed);

/// In the short text form; a chain that has none as the graph that it is.
std::string to_text(const Input& input);

/// The smallest input found by taking away ops, stages, values, features and sizes one at a time as long as `breaks`
/// stays true.
Input shrink(Input input, const std::function<bool(const Input&)>& breaks);

}  // namespace headroom::testing
