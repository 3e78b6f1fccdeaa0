#include <array>
#include <string>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

struct Groups {
  std::array<int, 4> blocks;
  bool bottleneck;
};

Groups groups_of(int weight_layers) {
  switch (weight_layers) {
    case 18:
      return {{2, 2, 2, 2}, false};
    case 34:
      return {{3, 4, 6, 3}, false};
    case 50:
      return {{3, 4, 6, 3}, true};
    case 101:
      return {{3, 4, 23, 3}, true};
    default:
      HEADROOM_ASSERT(weight_layers == 152);
      return {{3, 8, 36, 3}, true};
  }
}

/// A bottleneck strides in its 3x3 convolution, as torchvision does; He et al. stride in the first 1x1.
Layer block(int64_t in, int64_t width, int64_t out, int64_t stride, bool inplace) {
  std::vector<Layer> body;
  if (out == width)
    body = {conv(in, width, same_size(3, stride)), batch_norm(width), relu(inplace), conv(width, width, same_size(3)),
            batch_norm(width)};
  else
    body = {conv(in, width),   batch_norm(width), relu(inplace),    conv(width, width, same_size(3, stride)),
            batch_norm(width), relu(inplace),     conv(width, out), batch_norm(out)};
  Layer shortcut = identity();
  if (in != out || stride != 1) shortcut = row({conv(in, out, same_size(1, stride)), batch_norm(out)});
  return residual(row(std::move(body)), std::move(shortcut));
}

/// He et al. 2016, "Identity mappings": norm and ReLU come before each convolution, the first 1x1 strides, and where
/// the shape changes the shortcut's convolution shares the first norm and ReLU.
std::vector<Layer> pre_activation_block(int64_t in, int64_t out, int64_t stride, bool inplace) {
  const int64_t width = out / 4;
  std::vector<Layer> before = {batch_norm(in), relu(inplace)};
  Layer convolutions = row({conv(in, width, same_size(1, stride)), batch_norm(width), relu(inplace),
                            conv(width, width, same_size(3)), batch_norm(width), relu(inplace), conv(width, out)});
  if (in == out) return {residual(row({before[0], before[1], std::move(convolutions)}), identity())};
  return {before[0], before[1], residual(std::move(convolutions), conv(in, out, same_size(1, stride)))};
}

}  // namespace

/// He et al. 2015, as torchvision has it.
Network make_resnet(const ImageConfig& config, int weight_layers) {
  const Groups groups = groups_of(weight_layers);
  const bool inplace = config.inplace_relu;
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  x = add_block(network, "stem", x, {conv(3, 64, same_size(7, 2)), batch_norm(64), relu(inplace)});
  x = add_block(network, "pool", x, {max_pool(3, 2, 1)});
  int64_t channels = 64;
  for (size_t group = 0; group < groups.blocks.size(); ++group) {
    const int64_t width = int64_t{64} << group;
    const int64_t out = groups.bottleneck ? 4 * width : width;
    for (int i = 1; i <= groups.blocks[group]; ++i) {
      const int64_t stride = group > 0 && i == 1 ? 2 : 1;
      x = add_block(network, "block" + std::to_string(group + 1) + "_" + std::to_string(i), x,
                    {block(channels, width, out, stride, inplace), relu(inplace)});
      channels = out;
    }
  }
  x = add_block(network, "head", x, {average_to(1), linear(channels, config.classes)});
  add_loss(network, x, labels);
  return network;
}

/// The CIFAR network of He et al. 2016: three groups of 111 bottlenecks, 3 * 333 + 2 = 1001 layers with weights.
/// Parameters with C classes; a norm of c channels has 2c, a 3x3 convolution 9 * in * out:
///   stem                                                  432
///   a block that keeps (in = out = 4w):  w(17w) + 2(4w + 2w) = 17w^2 + 12w:  w = 16: 4544,  32: 17792,  64: 70400
///   the first of a group (in -> 4w):  in w + 9w^2 + 4w^2 + 4 in w + 2 in + 4w
///     16 -> 64: 4704,  64 -> 128: 23808,  128 -> 256: 94720
///   head                                                  512 + 256 C + C
/// 432 + 110 * (4544 + 17792 + 70400) + 4704 + 23808 + 94720 + 512 + 2570 = 10,327,706 with 10 classes.
Network make_resnet1001(const ImageConfig& config) {
  constexpr std::array<int64_t, 3> kChannels = {64, 128, 256};
  constexpr int kBlocks = 111;
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  x = add_block(network, "stem", x, {conv(3, 16, same_size(3))});
  int64_t channels = 16;
  for (size_t group = 0; group < kChannels.size(); ++group)
    for (int i = 1; i <= kBlocks; ++i) {
      const int64_t stride = group > 0 && i == 1 ? 2 : 1;
      x = add_block(network, "block" + std::to_string(group + 1) + "_" + std::to_string(i), x,
                    pre_activation_block(channels, kChannels[group], stride, config.inplace_relu));
      channels = kChannels[group];
    }
  x = add_block(network, "head", x,
                {batch_norm(channels), relu(config.inplace_relu), average_to(1), linear(channels, config.classes)});
  add_loss(network, x, labels);
  return network;
}

}  // namespace headroom::internal
