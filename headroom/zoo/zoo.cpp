#include "headroom/zoo/zoo.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <string>
#include <variant>

#include "headroom/core/quote.h"
#include "headroom/zoo/families.h"

namespace headroom::internal {
namespace {

/// A network on square images as published, and the images that it can take.
struct ImageEntry {
  std::string_view name;
  Network (*make)(const ImageConfig&);
  int64_t classes;
  std::optional<double> dropout;  ///< none if it has no dropout layer
  int64_t channels;
  int64_t image;
  int64_t smallest_image;
  int64_t image_multiple;  ///< the side must be a multiple of this
  bool pixel_labels;       ///< whether every pixel has a label, instead of the image
};

template <int kLayers>
Network vgg(const ImageConfig& config) {
  return make_vgg(config, kLayers);
}

template <int kLayers>
Network resnet(const ImageConfig& config) {
  return make_resnet(config, kLayers);
}

template <int kLayers>
Network densenet(const ImageConfig& config) {
  return make_densenet(config, kLayers);
}

constexpr std::optional<double> kNone;

// U-Net was published on 572x572 pixels; with padding the side must be a multiple of 16, and 576 is the next.
constexpr std::array<ImageEntry, 18> kImageNetworks = {{
    {"alexnet", make_alexnet, 1000, 0.5, 3, 224, 63, 1, false},
    {"vgg11", vgg<11>, 1000, 0.5, 3, 224, 32, 1, false},
    {"vgg13", vgg<13>, 1000, 0.5, 3, 224, 32, 1, false},
    {"vgg16", vgg<16>, 1000, 0.5, 3, 224, 32, 1, false},
    {"vgg19", vgg<19>, 1000, 0.5, 3, 224, 32, 1, false},
    {"resnet18", resnet<18>, 1000, kNone, 3, 224, 32, 1, false},
    {"resnet34", resnet<34>, 1000, kNone, 3, 224, 32, 1, false},
    {"resnet50", resnet<50>, 1000, kNone, 3, 224, 32, 1, false},
    {"resnet101", resnet<101>, 1000, kNone, 3, 224, 32, 1, false},
    {"resnet152", resnet<152>, 1000, kNone, 3, 224, 32, 1, false},
    {"resnet1001", make_resnet1001, 10, kNone, 3, 32, 4, 1, false},
    {"densenet121", densenet<121>, 1000, 0.0, 3, 224, 32, 1, false},
    {"densenet161", densenet<161>, 1000, 0.0, 3, 224, 32, 1, false},
    {"densenet169", densenet<169>, 1000, 0.0, 3, 224, 32, 1, false},
    {"densenet201", densenet<201>, 1000, 0.0, 3, 224, 32, 1, false},
    {"inception-v3", make_inception_v3, 1000, 0.5, 3, 299, 75, 1, false},
    {"darts", make_darts, 10, kNone, 3, 32, 8, 4, false},
    {"unet", make_unet, 2, kNone, 1, 576, 16, 16, true},
}};

struct GptEntry {
  std::string_view name;
  int64_t layers, width, heads, tokens, vocabulary;
};

constexpr double kGptDropout = 0.1;

// gpt-tiny is unpublished, for tests and demonstrations. Its tokens are bytes.
constexpr std::array<GptEntry, 3> kGptNetworks = {{
    {"gpt2", 12, 768, 12, 1024, 50257},
    {"gpt2-medium", 24, 1024, 16, 1024, 50257},
    {"gpt-tiny", 2, 64, 4, 64, 256},
}};

constexpr auto kNames = [] {
  std::array<std::string_view, kImageNetworks.size() + kGptNetworks.size()> names;
  std::ranges::transform(kImageNetworks, names.begin(), &ImageEntry::name);
  std::ranges::transform(kGptNetworks, names.begin() + kImageNetworks.size(), &GptEntry::name);
  return names;
}();

using Entry = std::variant<ImageEntry, GptEntry>;

Entry get_entry(std::string_view name) {
  for (const ImageEntry& entry : kImageNetworks)
    if (entry.name == name) return entry;
  for (const GptEntry& entry : kGptNetworks)
    if (entry.name == name) return entry;
  std::string known;
  for (const std::string_view other : kNames) known += (known.empty() ? "" : ", ") + std::string(other);
  throw InvalidInput("there is no network " + quote(name) + "; there are " + known);
}

int64_t at_least_one(std::string_view network, const std::string& option, int64_t value) {
  if (value < 1)
    throw InvalidInput("network " + quote(network) + ": " + option + " must be at least 1, found " +
                       std::to_string(value));
  return value;
}

double dropout_of(std::string_view network, const ZooOptions& options, std::optional<double> published) {
  const double dropout = options.dropout.value_or(published.value_or(0));
  if (!(dropout >= 0 && dropout < 1))
    throw InvalidInput("network " + quote(network) + ": dropout must be in [0, 1), found " + std::to_string(dropout));
  if (!published && dropout != 0) throw InvalidInput("network " + quote(network) + " has no dropout to set");
  return dropout;
}

ImageConfig configure(const ImageEntry& entry, const ZooOptions& options) {
  if (options.layers || options.width || options.heads || options.tokens || options.vocabulary)
    throw InvalidInput("network " + quote(entry.name) +
                       ": layers, width, heads, tokens and vocabulary are options of the GPTs");
  return {std::string(entry.name), at_least_one(entry.name, "classes", options.classes.value_or(entry.classes)),
          dropout_of(entry.name, options, entry.dropout), options.inplace_relu};
}

GptConfig configure(const GptEntry& entry, const ZooOptions& options) {
  if (options.classes)
    throw InvalidInput("network " + quote(entry.name) + " has no classes to set; its vocabulary is an option");
  GptConfig config;
  config.name = entry.name;
  config.layers = at_least_one(entry.name, "layers", options.layers.value_or(entry.layers));
  config.width = at_least_one(entry.name, "width", options.width.value_or(entry.width));
  config.heads = at_least_one(entry.name, "heads", options.heads.value_or(entry.heads));
  config.tokens = at_least_one(entry.name, "tokens", options.tokens.value_or(entry.tokens));
  config.vocabulary = at_least_one(entry.name, "vocabulary", options.vocabulary.value_or(entry.vocabulary));
  config.dropout = dropout_of(entry.name, options, kGptDropout);
  if (config.width % config.heads != 0)
    throw InvalidInput("network " + quote(entry.name) + ": width must be a multiple of heads, found " +
                       std::to_string(config.width) + " and " + std::to_string(config.heads));
  return config;
}

Network make(const ImageEntry& entry, const ZooOptions& options) { return entry.make(configure(entry, options)); }

Network make(const GptEntry& entry, const ZooOptions& options) { return make_gpt(configure(entry, options)); }

Tensors sample(const ImageEntry& entry, const ZooOptions& options, int64_t batch, int64_t size, at::Generator random) {
  const ImageConfig config = configure(entry, options);
  const int64_t side = size == 0 ? entry.image : size;
  if (side < entry.smallest_image || side % entry.image_multiple != 0)
    throw InvalidInput("network " + quote(entry.name) + " takes images with a side of at least " +
                       std::to_string(entry.smallest_image) +
                       (entry.image_multiple > 1 ? ", a multiple of " + std::to_string(entry.image_multiple) : "") +
                       ", found " + std::to_string(side));
  const torch::Tensor images = torch::randn({batch, entry.channels, side, side}, random);
  const std::vector<int64_t> shape = entry.pixel_labels ? std::vector<int64_t>{batch, side, side} : std::vector{batch};
  return {images, torch::randint(config.classes, shape, random, torch::kLong)};
}

Tensors sample(const GptEntry& entry, const ZooOptions& options, int64_t batch, int64_t size, at::Generator random) {
  const GptConfig config = configure(entry, options);
  const int64_t tokens = size == 0 ? config.tokens : size;
  if (tokens < 1 || tokens > config.tokens)
    throw InvalidInput("network " + quote(entry.name) + " takes 1 to " + std::to_string(config.tokens) +
                       " tokens, found " + std::to_string(tokens));
  // One more token, because the target of each token is the next one.
  const torch::Tensor text = torch::randint(config.vocabulary, {batch, tokens + 1}, random, torch::kLong);
  return {text.slice(1, 0, tokens).contiguous(), text.slice(1, 1).contiguous()};
}

}  // namespace

std::span<const std::string_view> zoo_names() { return kNames; }

Network make_zoo_network(std::string_view name, const ZooOptions& options) {
  return std::visit([&](const auto& entry) { return make(entry, options); }, get_entry(name));
}

Tensors zoo_sample(std::string_view name, const ZooOptions& options, int64_t batch, int64_t size, torch::Device device,
                   uint64_t seed) {
  const Entry entry = get_entry(name);
  at_least_one(name, "the batch", batch);
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  Tensors inputs = std::visit([&](const auto& of) { return sample(of, options, batch, size, random); }, entry);
  for (torch::Tensor& input : inputs) input = input.to(device);
  return inputs;
}

}  // namespace headroom::internal
