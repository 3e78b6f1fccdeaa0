#include "headroom/zoo/zoo.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <string>

namespace headroom::internal {
namespace {

int64_t parameter_count(const Network& network) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : network.parameters()) count += parameter.numel();
  return count;
}

/// Runs on one thread, because threads would mostly wait for each other on small tensors, even longer on shared cores.
class OneThread : public testing::Environment {
 public:
  void SetUp() override { torch::set_num_threads(1); }
};

const testing::Environment* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no InvalidInput";
}

struct Published {
  std::string_view name;
  int64_t parameters;
  size_t nodes;  ///< number of nodes, loss included
  bool chain;
};

std::ostream& operator<<(std::ostream& out, const Published& network) { return out << network.name; }

/// Parameter counts: those of torchvision's models; of DARTS (3.3 M published), ResNet-1001 (10.3 M published) and U-Net as
/// derived beside their code; of GPT-2 as released, with a tied head.
constexpr Published kPublished[] = {
    {"alexnet", 61'100'840, 5 + 3 + 3 + 1, true},
    {"vgg11", 132'863'336, 8 + 5 + 3 + 1, true},
    {"vgg13", 133'047'848, 10 + 5 + 3 + 1, true},
    {"vgg16", 138'357'544, 13 + 5 + 3 + 1, true},
    {"vgg19", 143'667'240, 16 + 5 + 3 + 1, true},
    {"resnet18", 11'689'512, 2 + 8 + 2, true},
    {"resnet34", 21'797'672, 2 + 16 + 2, true},
    {"resnet50", 25'557'032, 2 + 16 + 2, true},
    {"resnet101", 44'549'160, 2 + 33 + 2, true},
    {"resnet152", 60'192'808, 2 + 50 + 2, true},
    {"resnet1001", 10'327'706, 1 + 333 + 2, true},
    {"densenet121", 7'978'856, 2 + 58 + 3 + 2, true},
    {"densenet161", 28'681'000, 2 + 78 + 3 + 2, true},
    {"densenet169", 14'149'480, 2 + 82 + 3 + 2, true},
    {"densenet201", 20'013'928, 2 + 98 + 3 + 2, true},
    {"inception-v3", 23'834'568, 5 + 2 + 11 + 2, true},
    {"darts", 3'349'342, 1 + 20 + 2, false},
    {"unet", 31'036'546, 4 + 1 + 4 + 2, false},
    {"gpt2", 124'439'808, 1 + 12 + 2, true},
    {"gpt2-medium", 354'823'168, 1 + 24 + 2, true},
    // 256 * 64 + 64 * 64 + 2 * (12 * 64^2 + 13 * 64) + 2 * 64
    {"gpt-tiny", 120'576, 1 + 2 + 2, true},
};

std::string test_name(std::string_view name) {
  std::string result(name);
  std::erase(result, '-');
  return result;
}

class PublishedTest : public testing::TestWithParam<Published> {};

TEST_P(PublishedTest, HasItsParametersAndNodes) {
  const Network network = make_zoo_network(GetParam().name);
  EXPECT_EQ(network.name(), GetParam().name);
  EXPECT_EQ(parameter_count(network), GetParam().parameters);
  const std::vector<NetworkNode>& nodes = network.nodes();
  ASSERT_EQ(nodes.size(), GetParam().nodes);
  EXPECT_EQ(nodes.back().name, "loss");
  EXPECT_EQ(network.outputs(), std::vector<Wire>{network.wire_of_node(nodes.size() - 1)});

  bool chain = nodes.front().inputs == std::vector<Wire>{Wire{0}};
  for (size_t n = 1; n < nodes.size(); ++n) {
    std::vector<Wire> previous = {network.wire_of_node(n - 1)};
    if (n + 1 == nodes.size()) previous.push_back(Wire{1});
    chain = chain && nodes[n].inputs == previous;
  }
  EXPECT_EQ(chain, GetParam().chain);
}

/// A separate test because drawing the weights of a large network takes more than a second.
std::vector<Published> published(bool large) {
  std::vector<Published> result;
  for (const Published& network : kPublished)
    if ((network.parameters > 40'000'000) == large) result.push_back(network);
  return result;
}

const auto kNameOfPublished = [](const auto& suite) { return test_name(suite.param.name); };

INSTANTIATE_TEST_SUITE_P(Zoo, PublishedTest, testing::ValuesIn(published(false)), kNameOfPublished);
INSTANTIATE_TEST_SUITE_P(Slow, PublishedTest, testing::ValuesIn(published(true)), kNameOfPublished);

TEST(ZooTest, NamesAreTheOnesTestedHere) {
  std::vector<std::string_view> names;
  for (const Published& published : kPublished) names.push_back(published.name);
  EXPECT_EQ(std::vector(zoo_names().begin(), zoo_names().end()), names);
}

struct Small {
  std::string_view name;
  int64_t size;
  double log_classes;
};

std::ostream& operator<<(std::ostream& out, const Small& network) { return out << network.name; }

class TrainingTest : public testing::TestWithParam<Small> {};

/// Before training, all classes are about equally likely, so the loss is about log(classes), up to the randomness of one
/// draw of weights and two samples.
TEST_P(TrainingTest, StartsAtTheLogOfTheClassesAndGivesEveryParameterAGradient) {
  torch::manual_seed(1);
  const Network network = make_zoo_network(GetParam().name);
  const Tensors inputs = zoo_sample(GetParam().name, {}, 2, GetParam().size);
  const Tensors outputs = network.forward(inputs);
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_EQ(outputs[0].dim(), 0);
  EXPECT_NEAR(outputs[0].item<double>(), GetParam().log_classes, 1.5);
  outputs[0].backward();
  for (const NetworkNode& node : network.nodes())
    for (const torch::Tensor& parameter : node.parameters) {
      ASSERT_TRUE(parameter.grad().defined()) << node.name;
      EXPECT_TRUE(torch::isfinite(parameter.grad()).all().item<bool>()) << node.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Zoo, TrainingTest,
                         testing::Values(Small{"alexnet", 63, std::log(1000)}, Small{"vgg11", 32, std::log(1000)},
                                         Small{"resnet18", 32, std::log(1000)}, Small{"resnet50", 32, std::log(1000)},
                                         Small{"resnet1001", 4, std::log(10)}, Small{"densenet121", 32, std::log(1000)},
                                         Small{"inception-v3", 75, std::log(1000)}, Small{"darts", 8, std::log(10)},
                                         Small{"unet", 16, std::log(2)}, Small{"gpt-tiny", 16, std::log(256)}),
                         [](const auto& suite) { return test_name(suite.param.name); });

TEST(ZooTest, NodesOfVgg19AreTheStagesThatPapersNumber) {
  const Network network = make_zoo_network("vgg19");
  const auto name_of = [&](size_t number) { return network.nodes()[number - 1].name; };
  EXPECT_EQ(name_of(1), "conv1_1");
  EXPECT_EQ(name_of(3), "pool1");
  EXPECT_EQ(name_of(6), "pool2");
  EXPECT_EQ(name_of(11), "pool3");
  EXPECT_EQ(name_of(16), "pool4");
  EXPECT_EQ(name_of(21), "pool5");
  EXPECT_EQ(name_of(22), "fc1");
  EXPECT_EQ(name_of(24), "fc3");
}

TEST(ZooTest, DartsCellsReadTheTwoBefore) {
  const Network network = make_zoo_network("darts");
  const Wire stem = network.wire_of_node(0);
  EXPECT_EQ(network.nodes()[1].inputs, (std::vector{stem, stem}));
  EXPECT_EQ(network.nodes()[2].inputs, (std::vector{stem, network.wire_of_node(1)}));
  for (size_t n = 3; n <= 20; ++n)
    EXPECT_EQ(network.nodes()[n].inputs, (std::vector{network.wire_of_node(n - 2), network.wire_of_node(n - 1)}));
}

TEST(ZooTest, UnetDecodersReadTheEncoderOfTheirSize) {
  const Network network = make_zoo_network("unet");
  for (size_t level = 0; level < 4; ++level) {
    const NetworkNode& decoder = network.nodes()[8 - level];
    EXPECT_EQ(decoder.name, "decode" + std::to_string(level + 1));
    EXPECT_EQ(decoder.inputs, (std::vector{network.wire_of_node(7 - level), network.wire_of_node(level)}));
  }
}

TEST(ZooTest, GptHeadAndEmbeddingShareOneParameter) {
  const Network network = make_zoo_network("gpt-tiny");
  const NetworkNode& embedding = network.nodes().front();
  const NetworkNode& head = network.nodes()[network.nodes().size() - 2];
  EXPECT_EQ(embedding.parameters.size(), 2U);
  EXPECT_EQ(head.parameters.size(), 3U);
  int shared = 0;
  for (const torch::Tensor& one : embedding.parameters)
    for (const torch::Tensor& other : head.parameters)
      if (one.is_same(other)) ++shared;
  EXPECT_EQ(shared, 1);
}

TEST(ZooTest, GptSeesOnlyWhatCameBefore) {
  const Network network = make_zoo_network("gpt-tiny", {.dropout = 0.0});
  Tensors inputs = zoo_sample("gpt-tiny", {}, 1, 8);
  // The logits: all nodes but the loss.
  const auto logits = [&] {
    torch::Tensor x = inputs[0];
    for (size_t n = 0; n + 1 < network.nodes().size(); ++n) x = network.nodes()[n].forward({x});
    return x;
  };
  const torch::Tensor before = logits();
  inputs[0][0][5] = (inputs[0][0][5] + 1) % 256;
  const torch::Tensor after = logits();
  EXPECT_TRUE(torch::equal(before.slice(1, 0, 5), after.slice(1, 0, 5)));
  EXPECT_FALSE(torch::equal(before.slice(1, 5), after.slice(1, 5)));
}

TEST(ZooTest, ReluInPlaceOrNotGivesTheSameNumbers) {
  for (const std::string_view name : {"resnet18", "densenet121", "unet"}) {
    const ZooOptions options{.classes = 7};
    const Tensors inputs = zoo_sample(name, options, 2, 32);
    Tensors losses;
    Tensors gradients;
    for (const bool inplace : {true, false}) {
      torch::manual_seed(3);
      const Network network = make_zoo_network(name, {.classes = 7, .inplace_relu = inplace});
      losses.push_back(network.forward(inputs)[0]);
      losses.back().backward();
      gradients.push_back(network.parameters()[0].grad());
    }
    EXPECT_TRUE(torch::equal(losses[0], losses[1])) << name;
    EXPECT_TRUE(torch::equal(gradients[0], gradients[1])) << name;
  }
}

TEST(ZooTest, NoNodeChangesItsInputs) {
  for (const std::string_view name : {"resnet18", "densenet121", "darts", "unet", "gpt-tiny"}) {
    const Network network = make_zoo_network(name);
    Tensors values = zoo_sample(name, {}, 2, name == "gpt-tiny" ? 8 : 32);
    for (const NetworkNode& node : network.nodes()) {
      Tensors inputs;
      Tensors copies;
      for (const Wire wire : node.inputs) {
        inputs.push_back(values[static_cast<size_t>(wire)]);
        copies.push_back(inputs.back().detach().clone());
      }
      values.push_back(node.forward(inputs));
      for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_TRUE(torch::equal(inputs[i], copies[i])) << name << ' ' << node.name;
    }
  }
}

TEST(ZooTest, OptionsAreFollowed) {
  // Of the 11,689,512 with 1000 classes, 990 * (512 + 1) go.
  EXPECT_EQ(parameter_count(make_zoo_network("resnet18", {.classes = 10})), 11'689'512 - 990 * 513);
  // V W + T W + layers (12 W^2 + 13 W) + 2 W = 800 + 128 + 3 (3072 + 208) + 32
  const ZooOptions options{.layers = 3, .width = 16, .heads = 2, .tokens = 8, .vocabulary = 50};
  const Network gpt = make_zoo_network("gpt-tiny", options);
  EXPECT_EQ(parameter_count(gpt), 10'800);
  EXPECT_EQ(gpt.nodes().size(), 6U);

  const Tensors inputs = zoo_sample("gpt-tiny", {}, 2, 8);
  for (const double dropout : {0.0, 0.5}) {
    const Network network = make_zoo_network("gpt-tiny", {.dropout = dropout});
    EXPECT_EQ(torch::equal(network.forward(inputs)[0], network.forward(inputs)[0]), dropout == 0.0);
  }
}

TEST(ZooTest, SamplesHaveTheShapesOfTheNetworks) {
  const auto shapes = [](const Tensors& tensors) {
    std::vector<std::vector<int64_t>> result;
    for (const torch::Tensor& tensor : tensors) result.push_back(tensor.sizes().vec());
    return result;
  };
  using Shapes = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(shapes(zoo_sample("vgg19", {}, 3)), (Shapes{{3, 3, 224, 224}, {3}}));
  EXPECT_EQ(shapes(zoo_sample("inception-v3", {}, 1)), (Shapes{{1, 3, 299, 299}, {1}}));
  EXPECT_EQ(shapes(zoo_sample("resnet1001", {}, 1)), (Shapes{{1, 3, 32, 32}, {1}}));
  EXPECT_EQ(shapes(zoo_sample("resnet50", {}, 2, 64)), (Shapes{{2, 3, 64, 64}, {2}}));
  EXPECT_EQ(shapes(zoo_sample("unet", {}, 2, 48)), (Shapes{{2, 1, 48, 48}, {2, 48, 48}}));
  EXPECT_EQ(shapes(zoo_sample("gpt2", {}, 2)), (Shapes{{2, 1024}, {2, 1024}}));
  EXPECT_EQ(shapes(zoo_sample("gpt-tiny", {.tokens = 16}, 2)), (Shapes{{2, 16}, {2, 16}}));

  const Tensors text = zoo_sample("gpt-tiny", {.vocabulary = 5}, 1);
  EXPECT_TRUE(torch::equal(text[0].slice(1, 1), text[1].slice(1, 0, 63)));
  EXPECT_LT(text[0].max().item<int64_t>(), 5);
  EXPECT_EQ(zoo_sample("vgg11", {}, 1, 32, torch::Device("meta"))[0].device().type(), torch::kMeta);
}

TEST(ZooTest, SamplesDependOnTheSeedAloneAndLeaveTorchsGeneratorAlone) {
  torch::manual_seed(5);
  const torch::Tensor expected = torch::randn({4});
  torch::manual_seed(5);
  const Tensors first = zoo_sample("darts", {}, 2, 8, torch::kCPU, 7);
  EXPECT_TRUE(torch::equal(torch::randn({4}), expected));
  const Tensors again = zoo_sample("darts", {}, 2, 8, torch::kCPU, 7);
  EXPECT_TRUE(torch::equal(first[0], again[0]));
  EXPECT_TRUE(torch::equal(first[1], again[1]));
  EXPECT_FALSE(torch::equal(first[0], zoo_sample("darts", {}, 2, 8, torch::kCPU, 8)[0]));
}

TEST(ZooTest, SaysWhatIsWrong) {
  const std::string unknown = message_of([] { make_zoo_network("vgg12"); });
  EXPECT_EQ(unknown.find("there is no network 'vgg12'; there are alexnet, vgg11, "), 0U) << unknown;
  EXPECT_EQ(message_of([] { zoo_sample("vgg12", {}, 1); }), unknown);

  EXPECT_EQ(message_of([] { make_zoo_network("vgg11", {.classes = 0}); }),
            "network 'vgg11': classes must be at least 1, found 0");
  EXPECT_EQ(message_of([] { make_zoo_network("vgg11", {.dropout = 1.0}); }),
            "network 'vgg11': dropout must be in [0, 1), found 1.000000");
  EXPECT_EQ(message_of([] { make_zoo_network("resnet18", {.dropout = 0.5}); }),
            "network 'resnet18' has no dropout to set");
  EXPECT_EQ(message_of([] { make_zoo_network("resnet18", {.layers = 5}); }),
            "network 'resnet18': layers, width, heads, tokens and vocabulary are options of the GPTs");
  EXPECT_EQ(message_of([] { make_zoo_network("gpt-tiny", {.classes = 5}); }),
            "network 'gpt-tiny' has no classes to set; its vocabulary is an option");
  EXPECT_EQ(message_of([] { make_zoo_network("gpt-tiny", {.layers = 0}); }),
            "network 'gpt-tiny': layers must be at least 1, found 0");
  EXPECT_EQ(message_of([] { make_zoo_network("gpt-tiny", {.heads = 5}); }),
            "network 'gpt-tiny': width must be a multiple of heads, found 64 and 5");

  EXPECT_EQ(message_of([] { zoo_sample("vgg11", {}, 0); }), "network 'vgg11': the batch must be at least 1, found 0");
  EXPECT_EQ(message_of([] { zoo_sample("inception-v3", {}, 1, 74); }),
            "network 'inception-v3' takes images with a side of at least 75, found 74");
  EXPECT_EQ(message_of([] { zoo_sample("unet", {}, 1, 40); }),
            "network 'unet' takes images with a side of at least 16, a multiple of 16, found 40");
  EXPECT_EQ(message_of([] { zoo_sample("gpt-tiny", {}, 1, 65); }), "network 'gpt-tiny' takes 1 to 64 tokens, found 65");
}

}  // namespace
}  // namespace headroom::internal
