#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <string>

#include "headroom/zoo/families.h"

namespace headroom::internal {
namespace {

constexpr double kWeightDeviation = 0.02;

torch::nn::Linear make_linear(int64_t in, int64_t out, double deviation = kWeightDeviation) {
  torch::nn::Linear layer(in, out);
  torch::nn::init::normal_(layer->weight, 0, deviation);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

torch::nn::Embedding make_embedding(int64_t count, int64_t width) {
  const torch::Tensor weight = torch::empty({count, width});
  return torch::nn::Embedding(
      torch::nn::EmbeddingOptions(count, width)._weight(torch::nn::init::normal_(weight, 0, kWeightDeviation)));
}

torch::nn::LayerNorm make_norm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

struct GptEmbeddingImpl : torch::nn::Module {
  GptEmbeddingImpl(const GptConfig& config, torch::nn::Embedding of_words)
      : words(register_module("words", std::move(of_words))),
        positions(register_module("positions", make_embedding(config.tokens, config.width))),
        dropout(register_module("dropout", torch::nn::Dropout(config.dropout))) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor places = torch::arange(tokens.size(1), tokens.options());
    torch::Tensor x = words->forward(tokens);
    x = x + positions->forward(places);
    return dropout->forward(x);
  }

  torch::nn::Embedding words;
  torch::nn::Embedding positions;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(GptEmbedding);

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptConfig& config)
      : heads(config.heads),
        attention_dropout(config.dropout),
        attention_norm(register_module("attention_norm", make_norm(config.width))),
        qkv(register_module("qkv", make_linear(config.width, 3 * config.width))),
        attention_out(register_module("attention_out", make_linear(config.width, config.width, deviation_of(config)))),
        mlp_norm(register_module("mlp_norm", make_norm(config.width))),
        mlp_in(register_module("mlp_in", make_linear(config.width, 4 * config.width))),
        mlp_out(register_module("mlp_out", make_linear(4 * config.width, config.width, deviation_of(config)))),
        dropout(register_module("dropout", torch::nn::Dropout(config.dropout))) {}

  /// Reassigns `y` after every layer, so that an intermediate is freed before the next layer runs.
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = attention_norm->forward(x);
    y = qkv->forward(y);
    y = attend(y);
    y = attention_out->forward(y);
    y = dropout->forward(y);
    const torch::Tensor middle = x + y;
    y = mlp_norm->forward(middle);
    y = mlp_in->forward(y);
    y = torch::gelu(y, "tanh");
    y = mlp_out->forward(y);
    y = dropout->forward(y);
    return middle + y;
  }

  /// Maps concatenated queries, keys and values of shape (batch, tokens, 3 width) to (batch, tokens, width).
  torch::Tensor attend(const torch::Tensor& joined) {
    const int64_t batch = joined.size(0);
    const int64_t tokens = joined.size(1);
    const int64_t width = joined.size(2) / 3;
    const Tensors parts = joined.view({batch, tokens, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], /*attn_mask=*/{}, is_training() ? attention_dropout : 0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape({batch, tokens, width});
  }

  /// Returns the smaller initial deviation of layers that add to the residual stream, so that the sum over all layers
  /// keeps its scale.
  static double deviation_of(const GptConfig& config) {
    return kWeightDeviation / std::sqrt(2 * static_cast<double>(config.layers));
  }

  int64_t heads;
  double attention_dropout;
  torch::nn::LayerNorm attention_norm;
  torch::nn::Linear qkv;
  torch::nn::Linear attention_out;
  torch::nn::LayerNorm mlp_norm;
  torch::nn::Linear mlp_in;
  torch::nn::Linear mlp_out;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(GptBlock);

/// Shares the token embedding with the embedding node: its weight is a parameter of both.
struct GptHeadImpl : torch::nn::Module {
  GptHeadImpl(const GptConfig& config, torch::nn::Embedding of_words)
      : norm(register_module("norm", make_norm(config.width))), words(register_module("words", std::move(of_words))) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(norm->forward(x), words->weight); }

  torch::nn::LayerNorm norm;
  torch::nn::Embedding words;
};
TORCH_MODULE(GptHead);

}  // namespace

/// Radford et al. 2019. Parameters, with width W, V words and T positions: V W + T W + layers (12 W^2 + 13 W) + 2 W.
Network make_gpt(const GptConfig& config) {
  Network network(config.name);
  const Wire tokens = network.add_input("tokens");
  const Wire targets = network.add_input("targets");
  const torch::nn::Embedding words = make_embedding(config.vocabulary, config.width);
  Wire x = network.add_module("embedding", GptEmbedding(config, words), {tokens});
  for (int64_t i = 0; i < config.layers; ++i)
    x = network.add_module("block" + std::to_string(i), GptBlock(config), {x});
  x = network.add_module("head", GptHead(config, words), {x});
  const auto loss = [](const Tensors& inputs) {
    return torch::cross_entropy_loss(inputs[0].flatten(0, 1), inputs[1].flatten());
  };
  network.set_outputs({network.add("loss", loss, {x, targets})});
  return network;
}

}  // namespace headroom::internal
