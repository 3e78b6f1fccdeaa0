#include <array>
#include <string>

#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

ConvShape with_bias(ConvShape shape) {
  shape.bias = true;
  return shape;
}

}  // namespace

/// Krizhevsky 2014, the one-tower version that torchvision has: dropout before the linear layers.
Network make_alexnet(const ImageConfig& config) {
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  const auto convolve = [&](const std::string& name, int64_t in, int64_t out, const ConvShape& shape) {
    x = add_block(network, name, x, {conv(in, out, with_bias(shape)), relu(config.inplace_relu)});
  };
  const auto pool = [&](const std::string& name) { x = add_block(network, name, x, {max_pool(3, 2)}); };
  ConvShape first = same_size(11, 4);
  first.padding = {2, 2};
  convolve("conv1", 3, 64, first);
  pool("pool1");
  convolve("conv2", 64, 192, same_size(5));
  pool("pool2");
  convolve("conv3", 192, 384, same_size(3));
  convolve("conv4", 384, 256, same_size(3));
  convolve("conv5", 256, 256, same_size(3));
  pool("pool5");
  x = add_block(network, "fc6", x,
                {average_to(6), dropout(config.dropout), linear(256 * 6 * 6, 4096), relu(config.inplace_relu)});
  x = add_block(network, "fc7", x, {dropout(config.dropout), linear(4096, 4096), relu(config.inplace_relu)});
  x = add_block(network, "fc8", x, {linear(4096, config.classes)});
  add_loss(network, x, labels);
  return network;
}

/// Simonyan and Zisserman 2015: configurations A (11), B (13), D (16) and E (19), without batch norm.
Network make_vgg(const ImageConfig& config, int weight_layers) {
  constexpr std::array<int64_t, 5> kChannels = {64, 128, 256, 512, 512};
  // 3 linear layers and 1 or 2 convolutions in each of the first two groups; the last three groups share the rest.
  const int early = weight_layers == 11 ? 1 : 2;
  const int late = (weight_layers - 3 - 2 * early) / 3;
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  int64_t channels = 3;
  for (size_t group = 0; group < kChannels.size(); ++group) {
    const std::string number = std::to_string(group + 1);
    const int convolutions = group < 2 ? early : late;
    for (int i = 1; i <= convolutions; ++i) {
      x = add_block(network, "conv" + number + "_" + std::to_string(i), x,
                    {conv(channels, kChannels[group], with_bias(same_size(3))), relu(config.inplace_relu)});
      channels = kChannels[group];
    }
    x = add_block(network, "pool" + number, x, {max_pool(2, 2)});
  }
  x = add_block(network, "fc1", x,
                {average_to(7), linear(512 * 7 * 7, 4096), relu(config.inplace_relu), dropout(config.dropout)});
  x = add_block(network, "fc2", x, {linear(4096, 4096), relu(config.inplace_relu), dropout(config.dropout)});
  x = add_block(network, "fc3", x, {linear(4096, config.classes)});
  add_loss(network, x, labels);
  return network;
}

}  // namespace headroom::internal
