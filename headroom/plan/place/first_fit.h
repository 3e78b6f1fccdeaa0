#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headroom/plan/place/problem.h"

namespace headroom::internal {

/// Places blocks in a given order, each at the smallest offset that is free during its lifetime, holes between blocks
/// included. Takes O(n) for each block.
class FirstFit {
 public:
  explicit FirstFit(const Sections& sections) : sections_(sections) {}

  /// Places all blocks. `order` is a permutation of them.
  void place(std::span<const int32_t> order);

  const std::vector<int64_t>& offsets() const { return offsets_; }  ///< By block.
  int64_t arena_bytes() const { return arena_bytes_; }              ///< The largest end of a block.
  int64_t end_bytes(int32_t block) const {
    return offsets_[static_cast<size_t>(block)] + sections_.bytes[static_cast<size_t>(block)];
  }
  int64_t work() const { return work_; }  ///< Number of pairs of blocks looked at, in all calls.

 private:
  struct Placed {
    int64_t begin;
    int64_t end;  ///< With padding.
    int32_t first;
    int32_t last;
  };

  const Sections& sections_;
  std::vector<Placed> placed_;  ///< In ascending order of `begin`.
  std::vector<int64_t> offsets_;
  int64_t arena_bytes_ = 0;
  int64_t work_ = 0;
};

}  // namespace headroom::internal
