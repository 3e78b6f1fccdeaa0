#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "headroom/core/chain.h"

namespace headroom::internal::testing {

/// Returns all numbers of a chain, for messages.
inline std::string text_of(const Chain& chain) {
  std::string text = "resident " + std::to_string(chain.resident_bytes) + " input " +
                     std::to_string(chain.input_bytes) + " input gradient " +
                     std::to_string(chain.input_gradient_bytes) + "\n";
  for (const Stage& stage : chain.stages)
    text += stage.name + ": forward " + std::to_string(stage.forward_ns) + " backward " +
            std::to_string(stage.backward_ns) + " output " + std::to_string(stage.output_bytes) + " tape " +
            std::to_string(stage.tape_bytes) + " workspaces " + std::to_string(stage.forward_workspace_bytes) + " " +
            std::to_string(stage.effective_record_workspace_bytes()) + " " +
            std::to_string(stage.backward_workspace_bytes) + " gradient " + std::to_string(stage.gradient_bytes) + "\n";
  return text;
}

/// Seeded random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t min, int64_t max) {
    return min + static_cast<int64_t>(engine_() % static_cast<uint64_t>(max - min + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

/// Returns a chain of sizes 0..9 times `unit`. Three of four chains have workspaces, some of them negative, and half have
/// gradients.
inline Chain random_chain(Random& random, int length, int64_t unit = 1) {
  const int kind = static_cast<int>(random.between(0, 3));
  const int64_t min_workspace = kind == 1 ? -4 : kind == 2 ? -40 : 0;
  const int64_t max_workspace = kind == 0 ? 0 : 9;
  const bool has_gradients = random.chance(50);
  const bool has_zeros = random.chance(30);
  const bool records_apart = random.chance(30);
  const int64_t max_bytes = random.chance(10) ? 1 : 9;
  const auto size = [&] { return has_zeros && random.chance(40) ? 0 : unit * random.between(0, max_bytes); };
  Chain chain;
  chain.name = "random";
  chain.resident_bytes = size();
  chain.input_bytes = size();
  chain.input_gradient_bytes = random.chance(30) ? 0 : chain.input_bytes;
  for (int i = 1; i <= length; ++i) {
    Stage stage;
    stage.name = "s" + std::to_string(i);
    stage.forward_ns = random.between(0, 9);
    stage.backward_ns = random.between(0, 9);
    stage.output_bytes = size();
    stage.tape_bytes = stage.output_bytes + size();
    stage.forward_workspace_bytes = unit * random.between(min_workspace, max_workspace);
    stage.backward_workspace_bytes = unit * random.between(min_workspace, max_workspace);
    stage.gradient_bytes = has_gradients ? size() : 0;
    if (records_apart && random.chance(60)) stage.record_workspace_bytes = unit * random.between(-9, 9);
    chain.stages.push_back(stage);
  }
  return chain;
}

/// Returns a chain shaped like a deep residual network: sizes halve and times vary.
inline Chain deep_chain(int length) {
  Random random(1);
  Chain chain;
  chain.name = "deep";
  chain.resident_bytes = 1'000'000;
  chain.input_bytes = 600'000;
  chain.input_gradient_bytes = 0;
  for (int i = 1; i <= length; ++i) {
    Stage stage;
    stage.name = "s" + std::to_string(i);
    stage.forward_ns = random.between(100'000, 400'000);
    stage.backward_ns = 2 * stage.forward_ns;
    stage.output_bytes = i == length ? 4 : 4'000'000 >> (3 * i / length);
    stage.tape_bytes = stage.output_bytes * (i == length ? 1 : random.between(2, 5));
    stage.forward_workspace_bytes = random.between(0, 1'000'000);
    stage.backward_workspace_bytes = random.between(0, 1'000'000);
    stage.gradient_bytes = random.between(0, 20'000);
    chain.stages.push_back(stage);
  }
  return chain;
}

}  // namespace headroom::internal::testing
