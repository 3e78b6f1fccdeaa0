#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "headroom/runtime/network/network.h"

namespace headroom::internal {

/// The batches of training: a sample again and again, or random pieces of a text, one token per byte.
class Batches {
 public:
  /// `sample` has tokens and targets if there is a text, which must be longer than a sequence.
  Batches(Tensors sample, std::optional<std::string> text, uint64_t seed);

  /// Returns a batch with the shapes of all others, for measuring.
  const Tensors& sample() const { return sample_; }

  Tensors next();

 private:
  Tensors sample_;
  std::optional<std::string> text_;
  std::mt19937_64 random_;
};

}  // namespace headroom::internal
