#pragma once

#include <cstdint>
#include <string>

#include "headroom/runtime/network/network.h"

namespace headroom::internal {

/// A network on images, with everything decided.
struct ImageConfig {
  std::string name;
  int64_t classes = 0;
  double dropout = 0;
  bool inplace_relu = true;
};

struct GptConfig {
  std::string name;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t vocabulary = 0;
  double dropout = 0;
};

Network make_alexnet(const ImageConfig& config);
Network make_vgg(const ImageConfig& config, int weight_layers);
Network make_resnet(const ImageConfig& config, int weight_layers);
Network make_resnet1001(const ImageConfig& config);
Network make_densenet(const ImageConfig& config, int weight_layers);
Network make_inception_v3(const ImageConfig& config);
Network make_darts(const ImageConfig& config);
Network make_unet(const ImageConfig& config);
Network make_gpt(const GptConfig& config);

}  // namespace headroom::internal
