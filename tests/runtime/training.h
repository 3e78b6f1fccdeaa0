/// A small network, its training and the comparison of results, for tests of training steps.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <string>

#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/measure.h"
#include "headroom/runtime/network/network.h"

namespace headroom::internal {

namespace nn = torch::nn;

inline const MeasureOptions kQuick{.warmups = 1, .least_repeats = 1, .most_repeats = 1, .node_ns = 0, .progress = {}};

/// Runs on one thread, because threads would mostly wait for each other on small tensors.
class TrainingStepTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

struct BlockImpl : nn::Module {
  BlockImpl(int64_t from, int64_t to)
      : convolution(register_module("convolution", nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(to))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(torch::relu(norm(convolution(x))), 0.2, is_training());
  }
  nn::Conv2d convolution;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(Block);

struct HeadImpl : nn::Module {
  HeadImpl() : linear(register_module("linear", nn::Linear(16, 10))) {}
  torch::Tensor forward(const torch::Tensor& x) { return linear(x.mean({2, 3})); }
  nn::Linear linear;
};
TORCH_MODULE(Head);

inline torch::Tensor cross_entropy(const Tensors& inputs) { return torch::cross_entropy_loss(inputs[0], inputs[1]); }
inline torch::Tensor add(const Tensors& inputs) { return inputs[0] + inputs[1]; }

/// Returns convolutions with batch norm and dropout, a linear layer and the loss: a chain, or with residual connections a
/// DAG. With `tied`, the third and fourth blocks share one module.
inline Network make_cnn(bool residual, bool tied = false) {
  torch::manual_seed(1);
  Network network("cnn");
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  Block shared(16, 16);
  for (int i = 1; i <= 5; ++i) {
    const Wire before = x;
    const std::string name = "block" + std::to_string(i);
    x = network.add_module(name, tied && i >= 3 && i <= 4 ? shared : Block(i == 1 ? 3 : 16, 16), {x});
    if (residual && i > 1) x = network.add(name + ".add", add, {x, before});
  }
  x = network.add_module("head", Head(), {x});
  network.set_outputs({network.add("loss", cross_entropy, {x, labels})});
  return network;
}

inline Tensors sample() {
  torch::manual_seed(7);
  return {torch::randn({4, 3, 16, 16}), torch::randint(10, {4})};
}

struct Outcome {
  Tensors losses;
  Tensors gradients;  ///< gradients of the last step
  Tensors parameters;
  Tensors buffers;
  int64_t peak_bytes = 0;  ///< peak of the last step, less the memory in use before it
};

/// Runs three optimizer steps.
template <typename Step>
Outcome train(const Network& network, const Tensors& inputs, const Step& step) {
  torch::manual_seed(3);
  Meter meter(torch::kCPU);
  torch::optim::SGD optimizer(network.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Outcome outcome;
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    const int64_t before = meter.current_bytes();
    meter.reset_peak();
    torch::Tensor loss = step(inputs);
    loss.backward();
    outcome.peak_bytes = meter.peak_bytes() - before;
    outcome.losses.push_back(loss.detach());
    outcome.gradients.clear();
    for (const torch::Tensor& parameter : network.parameters()) outcome.gradients.push_back(parameter.grad().clone());
    optimizer.step();
  }
  for (const torch::Tensor& parameter : network.parameters()) outcome.parameters.push_back(parameter.detach());
  outcome.buffers = network.buffers();
  return outcome;
}

inline Outcome train_plainly(const Network& network, const Tensors& inputs) {
  return train(network, inputs, [&](const Tensors& batch) { return network.forward(batch)[0]; });
}

inline void expect_same_bits(const Tensors& one, const Tensors& other, const std::string& what) {
  ASSERT_EQ(one.size(), other.size()) << what;
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << what << " " << i;
}

inline void expect_same(const Outcome& one, const Outcome& other, const std::string& where) {
  expect_same_bits(one.losses, other.losses, where + ": loss");
  expect_same_bits(one.gradients, other.gradients, where + ": gradient");
  expect_same_bits(one.parameters, other.parameters, where + ": parameter");
  expect_same_bits(one.buffers, other.buffers, where + ": buffer");
}

}  // namespace headroom::internal
