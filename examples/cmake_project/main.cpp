// train_my_network [BUDGET]: trains a custom network within a budget (6MB).
#include <headroom/io/size.h>
#include <headroom/runtime/meter.h>
#include <headroom/runtime/train.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <exception>
#include <iostream>

namespace {

constexpr int64_t kBatch = 512;
constexpr int64_t kWidth = 64;
constexpr int64_t kClasses = 10;

struct ResidualImpl : torch::nn::Module {
  ResidualImpl()
      : layers(
            register_module("layers", torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})),
                                                            torch::nn::Linear(kWidth, 4 * kWidth), torch::nn::GELU(),
                                                            torch::nn::Linear(4 * kWidth, kWidth)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Residual);

int train(int64_t budget_bytes) {
  headroom::Meter meter(torch::kCPU);  // Created before the first tensor, because it counts only tensors created later.

  torch::nn::Sequential layers;
  for (int i = 0; i < 12; ++i) layers->push_back(Residual());
  layers->push_back(torch::nn::Linear(kWidth, kClasses));
  headroom::Network network("mine");
  const headroom::Wire input = network.add_input("input");
  const headroom::Wire labels = network.add_input("labels");
  const headroom::Wire scores = network.add_sequential("", layers, input);
  network.set_outputs({network.add(
      "loss", [](const headroom::Tensors& of) { return torch::cross_entropy_loss(of[0], of[1]); }, {scores, labels})});

  const headroom::Tensors batch = {torch::randn({kBatch, kWidth}), torch::randint(kClasses, {kBatch}, torch::kLong)};
  const headroom::TrainingStep step = headroom::train_within(network, batch, budget_bytes);
  torch::optim::SGD optimizer(network.parameters(), 0.05);
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad();
    meter.reset_peak();
    const torch::Tensor loss = step(batch);
    loss.backward();
    optimizer.step();
    std::cout << "loss " << loss.item<float>() << ", peak " << headroom::format_bytes(meter.peak_bytes()) << " of "
              << headroom::format_bytes(budget_bytes) << "\n";
    if (meter.peak_bytes() > budget_bytes) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(headroom::parse_bytes(argc > 1 ? argv[1] : "6MB"));
  } catch (const std::exception& error) {
    std::cerr << "train_my_network: " << error.what() << "\n";
    return 1;
  }
}
