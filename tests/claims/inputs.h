#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "headroom/core/chain.h"
#include "headroom/core/graph.h"

namespace headroom::internal::testing {

/// A training step to test claims on: a chain, or a graph if there is no chain.
struct Input {
  GraphSpec graph;
  std::optional<Chain> chain;
};

/// Returns the input of a seed, of one of three kinds: wild graphs of 2 to 8 ops (all features of a graph in any
/// combination, with ops that nothing needs), training steps of 3 to 6 forward ops with added producers, and chains of 1 to
/// 3 stages. One in 64 is larger, so that searches reach their limits: steps of 7 to 9 forward ops, chains of 4 to 6.
Input random_input(uint64_t seed);

/// Returns the input in the short text form. A chain that the form cannot express is written as its graph.
std::string to_text(const Input& input);

/// Removes ops, stages, values, features and bytes one at a time as long as `breaks` stays true, and returns the smallest
/// input.
Input shrink(Input input, const std::function<bool(const Input&)>& breaks);

}  // namespace headroom::internal::testing
