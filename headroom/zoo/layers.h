#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headroom/runtime/network/network.h"

namespace headroom::internal {

/// A layer of the zoo's blocks: a function of one tensor, and the module that owns its parameters and buffers, or null if
/// it has none. The function takes ownership of its input, so that the block can free it early.
struct Layer {
  std::function<torch::Tensor(torch::Tensor)> forward;
  std::shared_ptr<torch::nn::Module> module;
};

template <typename Holder>
Layer layer_of(Holder holder) {
  std::shared_ptr<torch::nn::Module> module = holder.ptr();
  return {[holder = std::move(holder)](torch::Tensor x) mutable { return holder->forward(std::move(x)); },
          std::move(module)};
}

struct ConvShape {
  std::array<int64_t, 2> kernel = {1, 1};
  int64_t stride = 1;
  std::array<int64_t, 2> padding = {0, 0};
  int64_t dilation = 1;
  int64_t groups = 1;
  bool bias = false;
};

/// Returns a square kernel whose padding preserves the image size at stride 1.
ConvShape same_size(int64_t kernel, int64_t stride = 1);

/// Returns a convolution with the initialization of He et al. 2015, by the fan-out.
Layer conv(int64_t in, int64_t out, const ConvShape& shape = {});
Layer batch_norm(int64_t channels, double epsilon = 1e-5);
Layer linear(int64_t in, int64_t out);
Layer dropout(double probability);

/// Returns a ReLU. In place, it may only follow a layer of the same block, whose output it overwrites.
Layer relu(bool inplace);
Layer max_pool(int64_t kernel, int64_t stride, int64_t padding = 0);
Layer average_pool(int64_t kernel, int64_t stride, int64_t padding = 0);

/// Returns an adaptive average pool to `side` x `side`, flattened.
Layer average_to(int64_t side);
Layer identity();

/// Returns the composition of the layers, first to last.
Layer row(std::vector<Layer> layers);

/// Returns the branches applied to the same input, with their outputs concatenated along the channels.
Layer concat(std::vector<Layer> branches);

/// Returns body(x) + shortcut(x), added in place into the output of `body`.
Layer residual(Layer body, Layer shortcut);

/// Adds the composition of the layers as one node.
Wire add_block(Network& network, std::string name, Wire input, std::vector<Layer> layers);

/// Adds the mean cross entropy of (batch, classes, ...) against (batch, ...) as the last node and output of the network.
void add_loss(Network& network, Wire logits, Wire labels);

}  // namespace headroom::internal
