#pragma once

#include "headroom/core/chain.h"

namespace headroom::testing {

/// VGG-11, 13, 16 or 19 on one 224x224 image: conv+ReLU a stage, pools and linear layers a stage each, no loss. Sizes
/// are numbers of output elements.
Chain vgg_elements(int depth);

/// The same at a batch, in bytes of fp32 as PyTorch trains it, weights and their gradients left out, with a loss of no
/// size: max-pool saves int64 indices; ReLU is in place and its backward allocates a second gradient; the images get no
/// gradient.
Chain vgg_bytes(int depth, int64_t batch);

}  // namespace headroom::testing
