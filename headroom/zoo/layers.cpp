#include "headroom/zoo/layers.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

namespace headroom::internal {
namespace {

/// Owns the modules of several layers.
struct GroupImpl : torch::nn::Module {
  explicit GroupImpl(std::vector<Layer> of) : layers(std::move(of)) {
    for (size_t i = 0; i < layers.size(); ++i)
      if (layers[i].module) register_module(std::to_string(i), layers[i].module);
  }

  std::vector<Layer> layers;
};

struct RowImpl : GroupImpl {
  using GroupImpl::GroupImpl;

  torch::Tensor forward(torch::Tensor x) {
    for (const Layer& layer : layers) x = layer.forward(std::move(x));
    return x;
  }
};
TORCH_MODULE(Row);

struct ConcatImpl : GroupImpl {
  using GroupImpl::GroupImpl;

  torch::Tensor forward(const torch::Tensor& x) {
    Tensors parts;
    for (const Layer& layer : layers) parts.push_back(layer.forward(x));
    return torch::cat(parts, 1);
  }
};
TORCH_MODULE(Concat);

struct ResidualImpl : GroupImpl {
  using GroupImpl::GroupImpl;

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = layers[0].forward(x);
    sum += layers[1].forward(x);
    return sum;
  }
};
TORCH_MODULE(Residual);

}  // namespace

ConvShape same_size(int64_t kernel, int64_t stride) {
  ConvShape shape;
  shape.kernel = {kernel, kernel};
  shape.stride = stride;
  shape.padding = {kernel / 2, kernel / 2};
  return shape;
}

Layer conv(int64_t in, int64_t out, const ConvShape& shape) {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(in, out, {shape.kernel[0], shape.kernel[1]})
                              .stride(shape.stride)
                              .padding({shape.padding[0], shape.padding[1]})
                              .dilation(shape.dilation)
                              .groups(shape.groups)
                              .bias(shape.bias));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  if (shape.bias) torch::nn::init::zeros_(layer->bias);
  return layer_of(std::move(layer));
}

Layer batch_norm(int64_t channels, double epsilon) {
  return layer_of(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(channels).eps(epsilon)));
}

Layer linear(int64_t in, int64_t out) { return layer_of(torch::nn::Linear(in, out)); }

Layer dropout(double probability) { return layer_of(torch::nn::Dropout(probability)); }

Layer relu(bool inplace) {
  return {[inplace](torch::Tensor x) { return inplace ? torch::relu_(x) : torch::relu(x); }, nullptr};
}

Layer max_pool(int64_t kernel, int64_t stride, int64_t padding) {
  return {[=](const torch::Tensor& x) { return torch::max_pool2d(x, kernel, stride, padding); }, nullptr};
}

Layer average_pool(int64_t kernel, int64_t stride, int64_t padding) {
  return {[=](const torch::Tensor& x) { return torch::avg_pool2d(x, kernel, stride, padding); }, nullptr};
}

Layer average_to(int64_t side) {
  return {[side](const torch::Tensor& x) { return torch::adaptive_avg_pool2d(x, {side, side}).flatten(1); }, nullptr};
}

Layer identity() {
  return {[](const torch::Tensor& x) { return x; }, nullptr};
}

Layer row(std::vector<Layer> layers) { return layer_of(Row(std::move(layers))); }

Layer concat(std::vector<Layer> branches) { return layer_of(Concat(std::move(branches))); }

Layer residual(Layer body, Layer shortcut) {
  return layer_of(Residual(std::vector<Layer>{std::move(body), std::move(shortcut)}));
}

Wire add_block(Network& network, std::string name, Wire input, std::vector<Layer> layers) {
  return network.add_module(std::move(name), Row(std::move(layers)), {input});
}

void add_loss(Network& network, Wire logits, Wire labels) {
  const auto loss = [](const Tensors& inputs) { return torch::cross_entropy_loss(inputs[0], inputs[1]); };
  network.set_outputs({network.add("loss", loss, {logits, labels})});
}

}  // namespace headroom::internal
