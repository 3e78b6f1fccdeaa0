#include "tests/support/networks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headroom::internal::testing {
namespace {

/// The number of convolutions in each of the five blocks.
std::vector<int> blocks(int depth) {
  switch (depth) {
    case 11:
      return {1, 1, 2, 2, 2};
    case 13:
      return {2, 2, 2, 2, 2};
    case 16:
      return {2, 2, 3, 3, 3};
    case 19:
      return {2, 2, 4, 4, 4};
    default:
      throw std::invalid_argument("no VGG-" + std::to_string(depth));
  }
}

bool is_pool(const Stage& stage) { return stage.name.starts_with("pool"); }
bool is_conv(const Stage& stage) { return stage.name.starts_with("conv"); }

}  // namespace

Chain vgg_elements(int depth) {
  Chain chain{"vgg" + std::to_string(depth), 0, int64_t{3} * 224 * 224, 0, {}};
  const auto add = [&](const std::string& name, int64_t elements) {
    Stage stage;
    stage.name = name + std::to_string(chain.stages.size() + 1);
    stage.output_bytes = stage.tape_bytes = elements;
    stage.forward_ns = stage.backward_ns = elements;
    chain.stages.push_back(stage);
  };
  int64_t side = 224;
  int64_t channels = 64;
  for (const int convolutions : blocks(depth)) {
    for (int i = 0; i < convolutions; ++i) add("conv", channels * side * side);
    side /= 2;
    add("pool", channels * side * side);
    channels = std::min<int64_t>(2 * channels, 512);
  }
  for (const int64_t features : {4096, 4096, 1000}) add("linear", features);
  return chain;
}

Chain vgg_bytes(int depth, int64_t batch) {
  Chain chain = vgg_elements(depth);
  chain.input_bytes *= 4 * batch;
  int64_t input_gradient_bytes = 0;
  for (Stage& stage : chain.stages) {
    stage.output_bytes *= 4 * batch;
    stage.tape_bytes = is_pool(stage) ? 3 * stage.output_bytes : stage.output_bytes;
    // Both gradients of ReLU are live before the convolution computes the gradient of its input.
    if (is_conv(stage))
      stage.backward_workspace_bytes = std::max<int64_t>(0, stage.output_bytes - input_gradient_bytes);
    input_gradient_bytes = stage.output_bytes;
  }
  chain.stages.push_back(Stage{.name = "loss"});
  return chain;
}

}  // namespace headroom::internal::testing
