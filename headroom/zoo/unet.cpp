#include <torch/nn/modules/conv.h>

#include <array>
#include <string>

#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

Layer double_conv(int64_t in, int64_t out, bool inplace) {
  return row({conv(in, out, same_size(3)), batch_norm(out), relu(inplace), conv(out, out, same_size(3)),
              batch_norm(out), relu(inplace)});
}

/// Upsamples the input from below, concatenates the skip of the encoder, and convolves.
struct DecoderImpl : torch::nn::Module {
  DecoderImpl(int64_t channels, bool inplace)
      : up(torch::nn::ConvTranspose2dOptions(2 * channels, channels, 2).stride(2)),
        convolutions(double_conv(2 * channels, channels, inplace)) {
    register_module("up", up);
    register_module("convolutions", convolutions.module);
  }

  torch::Tensor forward(const torch::Tensor& below, const torch::Tensor& skip) {
    torch::Tensor joined = torch::cat({skip, up->forward(below)}, 1);
    return convolutions.forward(std::move(joined));
  }

  torch::nn::ConvTranspose2d up;
  Layer convolutions;
};
TORCH_MODULE(Decoder);

}  // namespace

/// Ronneberger et al. 2015, with what became usual since: padded convolutions, so that images keep their size and skips
/// need no crop, and batch norm after each, whose shift stands for the convolution's bias. One channel in; every pixel
/// has a label. Parameters, a double convolution from i to o having 9 i o + 9 o^2 + 4 o:
///   encoder  1 -> 64: 37,696   64 -> 128: 221,696   128 -> 256: 885,760   256 -> 512: 3,540,992
///   bottom   512 -> 1024: 14,159,872
///   decoder  up from 2c to c, 8 c^2 + c, and 2c -> c:
///            c = 512: 9,177,600   256: 2,295,040   128: 574,080   64: 143,680
///   head     64 C + C for C classes
/// 31,036,416 + 130 = 31,036,546 with 2 classes.
Network make_unet(const ImageConfig& config) {
  constexpr std::array<int64_t, 4> kChannels = {64, 128, 256, 512};
  const bool inplace = config.inplace_relu;
  Network network(config.name);
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  std::array<Wire, kChannels.size()> skips = {};
  x = skips[0] = add_block(network, "encode1", x, {double_conv(1, kChannels[0], inplace)});
  for (size_t i = 1; i < kChannels.size(); ++i)
    x = skips[i] = add_block(network, "encode" + std::to_string(i + 1), x,
                             {max_pool(2, 2), double_conv(kChannels[i - 1], kChannels[i], inplace)});
  x = add_block(network, "bottom", x, {max_pool(2, 2), double_conv(kChannels.back(), 2 * kChannels.back(), inplace)});
  for (size_t i = kChannels.size(); i-- > 0;)
    x = network.add_module("decode" + std::to_string(i + 1), Decoder(kChannels[i], inplace), {x, skips[i]});
  // LibTorch's own initial weights: He's would make logits of the order of 10 from so small a fan out.
  torch::nn::Conv2d head(torch::nn::Conv2dOptions(kChannels[0], config.classes, 1));
  x = add_block(network, "head", x, {layer_of(std::move(head))});
  add_loss(network, x, labels);
  return network;
}

}  // namespace headroom::internal
