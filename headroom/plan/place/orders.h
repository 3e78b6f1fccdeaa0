#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headroom/plan/place/problem.h"

namespace headroom::internal {

/// What blocks are sorted by, the largest first.
enum class BlockKey : uint8_t {
  kTotal,   ///< The largest total of a section that it is live in.
  kSize,    ///< Its padded size.
  kArea,    ///< Its padded size times its length.
  kLength,  ///< Its number of sections.
};

/// The first key by which blocks are sorted, and those that decide between equal blocks.
using BlockKeys = std::array<BlockKey, 3>;

/// Pseudo-random numbers that are the same on every machine (SplitMix64).
class PlaceRandom {
 public:
  explicit PlaceRandom(uint64_t seed) : state_(seed) {}
  /// Returns a number in [min, max].
  int64_t number(int64_t min, int64_t max);

 private:
  uint64_t state_;
};

/// Makes orders of the blocks of a problem.
class BlockOrders {
 public:
  explicit BlockOrders(const Sections& sections);

  /// Returns the blocks, sorted. Every key of every block is first changed by a random part of at most
  /// `noise_percent` percent.
  std::vector<int32_t> sorted(const BlockKeys& keys, int64_t noise_percent, PlaceRandom& random) const;

 private:
  const std::vector<int64_t>& key(BlockKey key) const { return keys_[static_cast<size_t>(key)]; }

  std::array<std::vector<int64_t>, 4> keys_;  ///< By key and block; at most kLargestKey.
};

/// Returns the position of each block in an order.
std::vector<int32_t> ranks_of(const std::vector<int32_t>& order);

}  // namespace headroom::internal
