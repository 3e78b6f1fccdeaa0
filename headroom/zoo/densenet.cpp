#include <array>
#include <string>

#include "headroom/core/error.h"
#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

struct Shape {
  int64_t growth;
  int64_t stem;
  std::array<int, 4> layers;
};

Shape shape_of(int weight_layers) {
  switch (weight_layers) {
    case 121:
      return {32, 64, {6, 12, 24, 16}};
    case 161:
      return {48, 96, {6, 12, 36, 24}};
    case 169:
      return {32, 64, {6, 12, 32, 32}};
    default:
      HEADROOM_ASSERT(weight_layers == 201);
      return {32, 64, {6, 12, 48, 32}};
  }
}

}  // namespace

/// Huang et al. 2017, DenseNet-BC as in torchvision. A dense layer hands on its input joined with its new features.
/// These are the concatenations that torchvision's layers make of the list of all features before them, so the same
/// tensors are saved for backward; only the list, which it holds until the end of a dense block, is not needed here.
Network make_densenet(const ImageConfig& config, int weight_layers) {
  constexpr int64_t kBottleneck = 4;  // channels of the 1x1 convolution, in units of the growth
  const Shape shape = shape_of(weight_layers);
  const bool inplace = config.inplace_relu;
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  x = add_block(network, "stem", x, {conv(3, shape.stem, same_size(7, 2)), batch_norm(shape.stem), relu(inplace)});
  x = add_block(network, "pool", x, {max_pool(3, 2, 1)});
  int64_t channels = shape.stem;
  for (size_t block = 0; block < shape.layers.size(); ++block) {
    const std::string number = std::to_string(block + 1);
    for (int i = 1; i <= shape.layers[block]; ++i) {
      const int64_t width = kBottleneck * shape.growth;
      Layer features = row({batch_norm(channels), relu(inplace), conv(channels, width), batch_norm(width),
                            relu(inplace), conv(width, shape.growth, same_size(3)), dropout(config.dropout)});
      x = add_block(network, "dense" + number + "_" + std::to_string(i), x,
                    {concat({identity(), std::move(features)})});
      channels += shape.growth;
    }
    if (block + 1 == shape.layers.size()) break;
    x = add_block(network, "transition" + number, x,
                  {batch_norm(channels), relu(inplace), conv(channels, channels / 2), average_pool(2, 2)});
    channels /= 2;
  }
  x = add_block(network, "head", x,
                {batch_norm(channels), relu(inplace), average_to(1), linear(channels, config.classes)});
  add_loss(network, x, labels);
  return network;
}

}  // namespace headroom::internal
