#pragma once

#include <cstdint>

#include "headroom/core/chain.h"

namespace headroom::internal {

/// Returns a chain whose seeded sizes fall and rise like those of a network.
inline Chain uneven_chain(int64_t length) {
  Chain chain{"uneven", 1000, 1000, 0, {}};
  uint64_t seed = 1;
  for (int64_t i = 0; i < length; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const auto output = static_cast<int64_t>(1000 + (seed >> 40U) % 9000);
    chain.stages.push_back(Stage{"s", output, 2 * output, output, output + 500, 0, 100, 10});
  }
  return chain;
}

}  // namespace headroom::internal
