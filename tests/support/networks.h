#pragma once

#include "headroom/core/chain.h"

namespace headroom::internal::testing {

/// Returns VGG-11, 13, 16 or 19 on one 224x224 image, with a stage for each conv+ReLU, pool and linear layer and without a
/// loss. Sizes are numbers of output elements.
Chain vgg_elements(int depth);

/// Returns the same network with a batch, in bytes of fp32 as PyTorch trains it, without weights and their gradients, and
/// with a loss of size 0. Max-pool saves int64 indices, ReLU is in place and its backward allocates a second gradient, and
/// the images get no gradient.
Chain vgg_bytes(int depth, int64_t batch);

}  // namespace headroom::internal::testing
