#include <torch/nn/pimpl.h>

#include <array>
#include <string>

#include "headroom/zoo/families.h"
#include "headroom/zoo/layers.h"

namespace headroom::internal {
namespace {

enum class Op { kSeparable, kDilated, kSkip, kMaxPool };

/// An edge of a cell: an operation on an earlier state. States 0 and 1 are the inputs of the cell.
struct Edge {
  Op op;
  size_t state;
};

/// Each state is the sum of two edges. The output of the cell is the concatenation of the four states.
using Genotype = std::array<Edge, 8>;

/// The second-order cells of Liu et al. 2019 (DARTS_V2).
constexpr Genotype kNormal = {{{Op::kSeparable, 0},
                               {Op::kSeparable, 1},
                               {Op::kSeparable, 0},
                               {Op::kSeparable, 1},
                               {Op::kSeparable, 1},
                               {Op::kSkip, 0},
                               {Op::kSkip, 0},
                               {Op::kDilated, 2}}};
constexpr Genotype kReduction = {{{Op::kMaxPool, 0},
                                  {Op::kMaxPool, 1},
                                  {Op::kSkip, 2},
                                  {Op::kMaxPool, 1},
                                  {Op::kMaxPool, 0},
                                  {Op::kSkip, 2},
                                  {Op::kSkip, 2},
                                  {Op::kMaxPool, 1}}};

// Several edges read the same state, so no ReLU of a cell is in place.
constexpr bool kInplace = false;

/// A depthwise convolution followed by a pointwise one.
Layer separable(int64_t channels, int64_t stride, int64_t dilation) {
  ConvShape shape = same_size(3, stride);
  shape.padding = {dilation, dilation};
  shape.dilation = dilation;
  shape.groups = channels;
  return row({relu(kInplace), conv(channels, channels, shape), conv(channels, channels), batch_norm(channels)});
}

/// Halves the image: half of the channels from the even pixels, half from the odd ones.
Layer factorized_reduce(int64_t in, int64_t out) {
  const Layer odd = {[](const torch::Tensor& x) { return x.slice(2, 1).slice(3, 1); }, nullptr};
  Layer halves = concat({conv(in, out / 2, same_size(1, 2)), row({odd, conv(in, out / 2, same_size(1, 2))})});
  return row({relu(kInplace), std::move(halves), batch_norm(out)});
}

Layer preprocess(int64_t in, int64_t out) { return row({relu(kInplace), conv(in, out), batch_norm(out)}); }

Layer make_op(Op op, int64_t channels, int64_t stride) {
  switch (op) {
    case Op::kSeparable:
      return row({separable(channels, stride, 1), separable(channels, 1, 1)});
    case Op::kDilated:
      return separable(channels, stride, 2);
    case Op::kSkip:
      return stride == 1 ? identity() : factorized_reduce(channels, channels);
    case Op::kMaxPool:
      return max_pool(3, stride, 1);
  }
  return {};
}

struct CellShape {
  int64_t before_channels;  ///< output channels of the cell before the previous one
  int64_t previous_channels;
  int64_t channels;  ///< channels of each state
  bool reduction;
  bool previous_reduction;
};

struct CellImpl : torch::nn::Module {
  explicit CellImpl(const CellShape& shape) : genotype(shape.reduction ? kReduction : kNormal) {
    inputs = {own(shape.previous_reduction ? factorized_reduce(shape.before_channels, shape.channels)
                                           : preprocess(shape.before_channels, shape.channels)),
              own(preprocess(shape.previous_channels, shape.channels))};
    for (size_t i = 0; i < genotype.size(); ++i)
      ops[i] = own(make_op(genotype[i].op, shape.channels, shape.reduction && genotype[i].state < 2 ? 2 : 1));
  }

  torch::Tensor forward(const torch::Tensor& before, const torch::Tensor& previous) {
    Tensors states = {inputs[0].forward(before), inputs[1].forward(previous)};
    for (size_t i = 0; i < genotype.size(); i += 2)
      states.push_back(ops[i].forward(states[genotype[i].state]) + ops[i + 1].forward(states[genotype[i + 1].state]));
    return torch::cat({states[2], states[3], states[4], states[5]}, 1);
  }

  Layer own(Layer layer) {
    if (layer.module) register_module(std::to_string(children().size()), layer.module);
    return layer;
  }

  Genotype genotype;
  std::array<Layer, 2> inputs;
  std::array<Layer, 8> ops;
};
TORCH_MODULE(Cell);

}  // namespace

/// Liu et al. 2019's CIFAR network: 20 cells of 36 channels, doubled by the reductions, cells 6 and 13, without drop
/// path and auxiliary head. The first cell reads the stem twice. Parameters of a cell whose states have C channels and
/// whose inputs have I and J (a norm has 2 C, and a factorized reduction as many as the preprocessing it replaces):
///   inputs             C I + 2 C + C J + 2 C
///   11 separables      11 (9 C + C^2 + 2 C)     5 edges of two and a dilated one; none in a reduction cell
/// Cells, (C, I, J): (36, 108, 108) 26,532; (36, 108, 144) 27,828; 4 x (36, 144, 144) 29,124;
///   reduction (72, 144, 144) 21,024; (72, 144, 288) 97,128; 5 x (72, 288, 288) 107,496;
///   reduction (144, 288, 288) 83,520; (144, 288, 576) 370,512; 5 x (144, 576, 576) 411,984
/// With the stem's 2,916 + 216 and the head's 5,760 + 10: 3,349,342, the 3.3 M of the paper.
Network make_darts(const ImageConfig& config) {
  constexpr int kCells = 20;
  constexpr int64_t kStates = 4;
  constexpr int64_t kStem = 108;
  Network network(config.name);
  const Wire images = network.add_input("images");
  const Wire labels = network.add_input("labels");
  Wire previous = add_block(network, "stem", images, {conv(3, kStem, same_size(3)), batch_norm(kStem)});
  Wire before = previous;
  CellShape shape{kStem, kStem, 36, false, false};
  for (int i = 0; i < kCells; ++i) {
    shape.reduction = i == kCells / 3 || i == 2 * kCells / 3;
    if (shape.reduction) shape.channels *= 2;
    const Wire cell = network.add_module("cell" + std::to_string(i), Cell(shape), {before, previous});
    before = previous;
    previous = cell;
    shape.before_channels = shape.previous_channels;
    shape.previous_channels = kStates * shape.channels;
    shape.previous_reduction = shape.reduction;
  }
  const Wire logits =
      add_block(network, "head", previous, {average_to(1), linear(shape.previous_channels, config.classes)});
  add_loss(network, logits, labels);
  return network;
}

}  // namespace headroom::internal
