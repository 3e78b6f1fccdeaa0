#include <string>
#include <vector>

#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

ConvShape kernel(int64_t height, int64_t width, int64_t stride = 1) {
  ConvShape shape;
  shape.kernel = {height, width};
  shape.padding = {height / 2, width / 2};
  shape.stride = stride;
  return shape;
}

ConvShape unpadded(int64_t side, int64_t stride = 1) {
  ConvShape shape = kernel(side, side, stride);
  shape.padding = {0, 0};
  return shape;
}

/// The blocks, named as torchvision names them after the figures of Szegedy et al.
class Blocks {
 public:
  explicit Blocks(bool inplace) : inplace_(inplace) {}

  /// Convolution, norm and ReLU.
  Layer conv(int64_t in, int64_t out, const ConvShape& shape = {}) const {
    return row({internal::conv(in, out, shape), batch_norm(out, 1e-3), relu(inplace_)});
  }

  /// 5x5 and double 3x3 branches, and a pooling branch of `pooled` channels.
  Layer a(int64_t in, int64_t pooled) const {
    return concat({conv(in, 64), row({conv(in, 48), conv(48, 64, same_size(5))}),
                   row({conv(in, 64), conv(64, 96, same_size(3)), conv(96, 96, same_size(3))}),
                   row({average_pool(3, 1, 1), conv(in, pooled)})});
  }

  /// Halves the image, by 3x3 branches.
  Layer b(int64_t in) const {
    return concat({conv(in, 384, unpadded(3, 2)),
                   row({conv(in, 64), conv(64, 96, same_size(3)), conv(96, 96, unpadded(3, 2))}), max_pool(3, 2)});
  }

  /// 7x7 branches of `width` channels, each 7x7 as 1x7 and 7x1.
  Layer c(int64_t in, int64_t width) const {
    return concat({conv(in, 192),
                   row({conv(in, width), conv(width, width, kernel(1, 7)), conv(width, 192, kernel(7, 1))}),
                   row({conv(in, width), conv(width, width, kernel(7, 1)), conv(width, width, kernel(1, 7)),
                        conv(width, width, kernel(7, 1)), conv(width, 192, kernel(1, 7))}),
                   row({average_pool(3, 1, 1), conv(in, 192)})});
  }

  /// Halves the image, by 3x3 and 7x7 branches.
  Layer d(int64_t in) const {
    return concat({row({conv(in, 192), conv(192, 320, unpadded(3, 2))}),
                   row({conv(in, 192), conv(192, 192, kernel(1, 7)), conv(192, 192, kernel(7, 1)),
                        conv(192, 192, unpadded(3, 2))}),
                   max_pool(3, 2)});
  }

  /// Branches that end in parallel 1x3 and 3x1 convolutions.
  Layer e(int64_t in) const {
    return concat({conv(in, 320), row({conv(in, 384), widen()}),
                   row({conv(in, 448), conv(448, 384, same_size(3)), widen()}),
                   row({average_pool(3, 1, 1), conv(in, 192)})});
  }

 private:
  Layer widen() const { return concat({conv(384, 384, kernel(1, 3)), conv(384, 384, kernel(3, 1))}); }

  bool inplace_;
};

}  // namespace

/// Szegedy et al. 2016, as torchvision has it, without the auxiliary head: 27,161,264 - 3,326,696 parameters.
Network make_inception_v3(const ImageConfig& config) {
  const Blocks blocks(config.inplace_relu);
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  const auto add = [&](const std::string& name, std::vector<Layer> layers) {
    x = add_block(network, name, x, std::move(layers));
  };
  add("conv1a", {blocks.conv(3, 32, unpadded(3, 2))});
  add("conv2a", {blocks.conv(32, 32, unpadded(3))});
  add("conv2b", {blocks.conv(32, 64, same_size(3))});
  add("pool1", {max_pool(3, 2)});
  add("conv3b", {blocks.conv(64, 80)});
  add("conv4a", {blocks.conv(80, 192, unpadded(3))});
  add("pool2", {max_pool(3, 2)});
  add("mixed5b", {blocks.a(192, 32)});
  add("mixed5c", {blocks.a(256, 64)});
  add("mixed5d", {blocks.a(288, 64)});
  add("mixed6a", {blocks.b(288)});
  add("mixed6b", {blocks.c(768, 128)});
  add("mixed6c", {blocks.c(768, 160)});
  add("mixed6d", {blocks.c(768, 160)});
  add("mixed6e", {blocks.c(768, 192)});
  add("mixed7a", {blocks.d(768)});
  add("mixed7b", {blocks.e(1280)});
  add("mixed7c", {blocks.e(2048)});
  add("head", {average_to(1), dropout(config.dropout), linear(2048, config.classes)});
  add_loss(network, x, labels);
  return network;
}

}  // namespace headroom::internal
