#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headroom/runtime/network.h"

namespace headroom {

/// What the zoo's blocks are made of: a function of one tensor, and the module that owns its parameters and buffers
/// (null where there are none). The function takes its input over, so that a block lets go of it as soon as it can.
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

/// A square kernel whose padding keeps the size of the image at stride 1.
ConvShape same_size(int64_t kernel, int64_t stride = 1);

/// Weights drawn as He et al. 2015 do, from the fan out.
Layer conv(int64_t in, int64_t out, const ConvShape& shape = {});
Layer batch_norm(int64_t channels, double epsilon = 1e-5);
Layer linear(int64_t in, int64_t out);
Layer dropout(double probability);

/// In place it overwrites what it is given: only for values that the layer before it in the same block has made.
Layer relu(bool inplace);
Layer max_pool(int64_t kernel, int64_t stride, int64_t padding = 0);
Layer average_pool(int64_t kernel, int64_t stride, int64_t padding = 0);

/// Averages down (or repeats up) to `side` x `side` and makes a row of it.
Layer average_to(int64_t side);
Layer identity();

/// One after the other.
Layer row(std::vector<Layer> layers);

/// Side by side on the same input, their outputs joined along the channels.
Layer concat(std::vector<Layer> branches);

/// body(x) + shortcut(x), added into what `body` made.
Layer residual(Layer body, Layer shortcut);

/// The layers, one after the other, as one node.
Wire add_block(Network& network, std::string name, Wire input, std::vector<Layer> layers);

/// The mean cross entropy of (batch, classes, ...) against (batch, ...) as the last node and the network's output.
void add_loss(Network& network, Wire logits, Wire labels);

}  // namespace headroom
