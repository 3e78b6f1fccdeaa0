#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "headroom/runtime/network/network.h"

namespace headroom::internal {

/// The options of a network of the zoo. An option without a value is as published.
struct ZooOptions {
  std::optional<int64_t> classes = std::nullopt;  ///< number of classes of an image network
  std::optional<double> dropout = std::nullopt;   ///< in [0, 1); a network without dropout takes only 0
  bool inplace_relu = true;  ///< ReLUs on a block's own values overwrite them; DARTS and GPT have none

  // Options of the GPTs.
  std::optional<int64_t> layers = std::nullopt;
  std::optional<int64_t> width = std::nullopt;  ///< a multiple of `heads`
  std::optional<int64_t> heads = std::nullopt;
  std::optional<int64_t> tokens = std::nullopt;  ///< maximum length of a sequence
  std::optional<int64_t> vocabulary = std::nullopt;
};

/// Returns the names that the functions below accept.
std::span<const std::string_view> zoo_names();

/// Builds a published network with weights drawn from torch's default generator, which torch::manual_seed seeds. Its
/// inputs are `images` and `labels`, or `tokens` and `targets`. Its only output, that of the last node, is the mean cross
/// entropy. Auxiliary heads and DARTS' drop path are omitted. The nodes are the stages that papers on checkpointing use:
///
///   alexnet vgg11 vgg13 vgg16 vgg19                  chain  conv + ReLU, pool, linear (+ ReLU + dropout)
///   resnet18 resnet34 resnet50 resnet101 resnet152   chain  stem, pool, a node per residual block, head
///   resnet1001                                       chain  the same without pool: pre-activation, for 32x32 images
///   densenet121 densenet161 densenet169 densenet201  chain  stem, pool, a node per dense layer and transition, head
///   inception-v3                                     chain  a node per convolution, pool and inception block, head
///   darts                                            DAG    stem, a node per cell, which reads the two before it, head
///   unet                                             DAG    a node per encoder and decoder block, head
///   gpt2 gpt2-medium gpt-tiny                        chain  embedding, a node per block, final norm with the tied head
///
/// and the loss at the end. Throws InvalidInput for a name not in zoo_names() or an option that does not apply.
Network make_zoo_network(std::string_view name, const ZooOptions& options = {});

/// Returns random inputs for make_zoo_network(name, options), in the order of its inputs. `size` is the side of the square
/// images or the number of tokens in a sequence; 0 is the published size. The inputs are the same on every device, and
/// torch's default generators do not change. Throws InvalidInput, also for a batch or size that the network cannot take.
/// The one exception: torch refuses a norm over a single value, as in a batch of one whose images shrink to a pixel.
Tensors zoo_sample(std::string_view name, const ZooOptions& options, int64_t batch, int64_t size = 0,
                   torch::Device device = torch::kCPU, uint64_t seed = 0);

}  // namespace headroom::internal
