#include "headroom/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/measure.h"
#include "headroom/runtime/meter.h"
#include "headroom/zoo/zoo.h"

namespace headroom {
namespace {

using ::testing::HasSubstr;
namespace nn = torch::nn;

/// Tensors here are small: threads would mostly wait for each other.
class TrainingStepTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

struct BlockImpl : nn::Module {
  BlockImpl(int64_t from, int64_t to)
      : convolution(register_module("convolution", nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(to))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(torch::relu(norm(convolution(x))), 0.2, is_training());
  }
  nn::Conv2d convolution;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(Block);

struct HeadImpl : nn::Module {
  HeadImpl() : linear(register_module("linear", nn::Linear(16, 10))) {}
  torch::Tensor forward(const torch::Tensor& x) { return linear(x.mean({2, 3})); }
  nn::Linear linear;
};
TORCH_MODULE(Head);

torch::Tensor cross_entropy(const Tensors& inputs) { return torch::cross_entropy_loss(inputs[0], inputs[1]); }
torch::Tensor add(const Tensors& inputs) { return inputs[0] + inputs[1]; }

/// Convolutions with batch norm and dropout, a linear layer and the loss: a chain, or with residual connections a DAG.
/// With `tied`, the third and fourth blocks are one module.
Network make_cnn(bool residual, bool tied = false) {
  torch::manual_seed(1);
  Network network("cnn");
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  Block shared(16, 16);
  for (int i = 1; i <= 5; ++i) {
    const Wire before = x;
    const std::string name = "block" + std::to_string(i);
    x = network.add_module(name, tied && i >= 3 && i <= 4 ? shared : Block(i == 1 ? 3 : 16, 16), {x});
    if (residual && i > 1) x = network.add(name + ".add", add, {x, before});
  }
  x = network.add_module("head", Head(), {x});
  network.set_outputs({network.add("loss", cross_entropy, {x, labels})});
  return network;
}

Tensors sample() {
  torch::manual_seed(7);
  return {torch::randn({4, 3, 16, 16}), torch::randint(10, {4})};
}

struct Outcome {
  Tensors losses;
  Tensors gradients;  ///< of the last step
  Tensors parameters;
  Tensors buffers;
  int64_t peak_bytes = 0;  ///< of the last step, beyond what was there before it
};

/// Three optimizer steps.
template <typename Step>
Outcome train(const Network& network, const Tensors& inputs, const Step& step) {
  torch::manual_seed(3);
  Meter meter(torch::kCPU);
  torch::optim::SGD optimizer(network.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Outcome outcome;
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    const int64_t before = meter.current_bytes();
    meter.reset_peak();
    torch::Tensor loss = step(inputs);
    loss.backward();
    outcome.peak_bytes = meter.peak_bytes() - before;
    outcome.losses.push_back(loss.detach());
    outcome.gradients.clear();
    for (const torch::Tensor& parameter : network.parameters()) outcome.gradients.push_back(parameter.grad().clone());
    optimizer.step();
  }
  for (const torch::Tensor& parameter : network.parameters()) outcome.parameters.push_back(parameter.detach());
  outcome.buffers = network.buffers();
  return outcome;
}

Outcome train_plainly(const Network& network, const Tensors& inputs) {
  return train(network, inputs, [&](const Tensors& batch) { return network.forward(batch)[0]; });
}

void expect_same_bits(const Tensors& one, const Tensors& other, const std::string& what) {
  ASSERT_EQ(one.size(), other.size()) << what;
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << what << " " << i;
}

void expect_same(const Outcome& one, const Outcome& other, const std::string& where) {
  expect_same_bits(one.losses, other.losses, where + ": loss");
  expect_same_bits(one.gradients, other.gradients, where + ": gradient");
  expect_same_bits(one.parameters, other.parameters, where + ": parameter");
  expect_same_bits(one.buffers, other.buffers, where + ": buffer");
}

/// Trains under every plan that `names` make at shares of what plain training takes beyond resident values: bits as
/// plain training's, and the peak as predicted, never above it.
template <typename Make>
void expect_trains_alike(const Make& make, const Tensors& inputs, const std::vector<std::string>& names,
                         const std::vector<int>& percents, int least_plans = 3) {
  const Outcome expected = train_plainly(make(), inputs);
  const NetworkCosts costs = measure(make(), inputs, {.warmups = 1, .repeats = 1});
  const StepGraph step = make_step_graph(make(), costs);
  const Problem problem = make_problem(step);
  const int64_t resident_bytes = step.graph.resident_bytes();
  const int64_t plain_bytes = simulate(step.graph, store_all(step.graph)).peak_bytes - resident_bytes;
  int plans = 0;
  for (const std::string& name : names) {
    for (const int percent : percents) {
      const Plan plan = make_plan(get_planner(name), problem, {resident_bytes + plain_bytes * percent / 100, {}});
      if (!plan.result.schedule) continue;
      ++plans;
      const std::string where = name + " at " + std::to_string(percent) + " %";
      const Network network = make();
      const TrainingStep trainer(network, costs, step, *plan.result.schedule);
      const Outcome outcome = train(network, inputs, trainer);
      expect_same(outcome, expected, where);
      const int64_t predicted_bytes = *plan.peak_bytes - resident_bytes + trainer.beside_bytes();
      EXPECT_LE(outcome.peak_bytes, predicted_bytes) << where;
      EXPECT_GE(static_cast<double>(outcome.peak_bytes), 0.99 * static_cast<double>(predicted_bytes)) << where;
    }
  }
  EXPECT_GE(plans, least_plans);
}

TEST_F(TrainingStepTest, AChainTrainsAsPlainly) {
  const auto make = [] { return make_cnn(false); };
  ASSERT_TRUE(make_problem(make_step_graph(make(), measure(make(), sample()))).chain);
  expect_trains_alike(make, sample(),
                      {"store-all", "even", "sqrt", "binomial", "peak-cubic", "peak-linear", "chain", "lower-sets"},
                      {100, 80, 60, 45, 35});
}

TEST_F(TrainingStepTest, ADagTrainsAsPlainly) {
  const auto make = [] { return make_cnn(true); };
  ASSERT_FALSE(make_problem(make_step_graph(make(), measure(make(), sample()))).chain);
  expect_trains_alike(make, sample(), {"store-all", "division-tree", "lower-sets", "auto"}, {100, 80, 60, 45, 35});
}

TEST_F(TrainingStepTest, AModuleUsedTwiceAddsUp) {
  expect_trains_alike([] { return make_cnn(false, true); }, sample(), {"store-all", "peak-linear", "chain"},
                      {100, 60, 45});
}

TEST_F(TrainingStepTest, NetworksOfTheZooTrainAsPlainly) {
  for (const char* name : {"resnet18", "densenet121", "unet", "gpt-tiny"}) {
    SCOPED_TRACE(name);
    const int64_t size = std::string_view(name) == "gpt-tiny" ? 16 : 32;
    const auto make = [&] {
      torch::manual_seed(1);
      return make_zoo_network(name);
    };
    expect_trains_alike(make, zoo_sample(name, {}, 2, size), {"auto"}, {100, 75, 60}, 1);
  }
}

/// A step of the small chain in which every block but the last runs twice.
TrainingStep recomputing_step(const Network& network) {
  const NetworkCosts costs = measure(network, sample(), {.warmups = 0, .repeats = 1});
  StepGraph step = make_step_graph(network, costs);
  const Plan plan = make_plan(get_planner("even"), make_problem(step), {});
  return TrainingStep(network, costs, std::move(step), *plan.result.schedule);
}

TEST_F(TrainingStepTest, WorksWithAutogradAsPlainTrainingDoes) {
  const Network network = make_cnn(false);
  Tensors inputs = sample();
  inputs[0].requires_grad_(true);
  const auto gradient_of_input = [&](const auto& forward) {
    torch::manual_seed(5);
    torch::Tensor loss = forward(inputs) * 2;
    return torch::autograd::grad({loss}, {inputs[0]})[0];
  };
  const NetworkCosts costs = measure(network, inputs, {.warmups = 0, .repeats = 1});
  StepGraph graph = make_step_graph(network, costs);
  const Schedule plain = store_all(graph.graph);
  const TrainingStep with_input(network, costs, std::move(graph), plain);
  EXPECT_TRUE(gradient_of_input(with_input).equal(gradient_of_input([&](const Tensors& batch) {
    return network.forward(batch)[0];
  })));
}

TEST_F(TrainingStepTest, TwoForwardsMayWait) {
  const Network network = make_cnn(false);
  const TrainingStep step = recomputing_step(network);
  const auto run = [&](const auto& forward) {
    torch::manual_seed(5);
    for (const torch::Tensor& parameter : network.parameters()) parameter.mutable_grad().reset();
    torch::Tensor one = forward(sample());
    torch::Tensor two = forward(sample());
    (one + two).backward();
    Tensors gradients;
    for (const torch::Tensor& parameter : network.parameters()) gradients.push_back(parameter.grad());
    return gradients;
  };
  expect_same_bits(run(step), run([&](const Tensors& batch) { return network.forward(batch)[0]; }), "gradient");
}

template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_F(TrainingStepTest, RefusesASecondBackward) {
  const TrainingStep step = recomputing_step(make_cnn(false));
  torch::Tensor loss = step(sample());
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("retain_graph"));
  torch::Tensor other = step(sample());
  EXPECT_THAT(message_of([&] { other.backward({}, true, /*create_graph=*/true); }), HasSubstr("double backward"));
}

TEST_F(TrainingStepTest, LeavesNothingBehind) {
  Meter meter(torch::kCPU);
  const Network network = make_cnn(false);
  const TrainingStep step = recomputing_step(network);
  const Tensors inputs = sample();
  const int64_t before = meter.current_bytes();
  { const torch::Tensor loss = step(inputs); }
  EXPECT_EQ(meter.current_bytes(), before) << "a forward without backward";
  Network broken = make_cnn(false);
  EXPECT_THROW(step({inputs[0].slice(1, 0, 2), inputs[1]}), std::runtime_error);
  EXPECT_EQ(meter.current_bytes() - before, [&] {
    int64_t bytes = 0;
    for (const torch::Tensor& tensor : broken.parameters()) bytes += static_cast<int64_t>(tensor.nbytes());
    for (const torch::Tensor& tensor : broken.buffers()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }()) << "a forward that throws";
}

TEST_F(TrainingStepTest, NamesTheNodeThatFails) {
  const TrainingStep step = recomputing_step(make_cnn(false));
  const Tensors inputs = sample();
  EXPECT_THAT(message_of([&] {
                step({inputs[0].slice(1, 0, 2), inputs[1]});
              }),
              HasSubstr("forward of node 'block1' on [4, 2, 16, 16]: "));
  EXPECT_THAT(message_of([&] { step({inputs[0]}); }), HasSubstr("takes 2 inputs, found 1"));
}

TEST_F(TrainingStepTest, RefusesAnInvalidSchedule) {
  const Network network = make_cnn(false);
  const NetworkCosts costs = measure(network, sample(), {.warmups = 0, .repeats = 1});
  EXPECT_THAT(message_of([&] { TrainingStep(network, costs, make_step_graph(network, costs), Schedule{}); }),
              HasSubstr("the schedule is invalid"));
}

Network with_node(const std::function<torch::Tensor(const Tensors&)>& forward) {
  Network network("odd");
  const Wire x = network.add_input("x");
  const Wire first = network.add("first", [](const Tensors& inputs) { return inputs[0] * 2; }, {x});
  const Wire odd = network.add("odd", forward, {first});
  network.set_outputs({network.add("loss", [](const Tensors& inputs) { return inputs[0].sum(); }, {odd})});
  return network;
}

TEST_F(TrainingStepTest, MeasuringNamesOddNodes) {
  const Tensors inputs = {torch::ones({8})};
  const auto message = [&](const std::function<torch::Tensor(const Tensors&)>& forward) {
    return message_of([&] { measure(with_node(forward), inputs); });
  };
  EXPECT_EQ(message([](const Tensors& t) { return t[0].exp(); }), "");
  EXPECT_EQ(message([](const Tensors& t) {
              return t[0].view({2, 4});
            }),
            "node 'odd' returns its input or a view of it: join it to another node");
  EXPECT_EQ(message([](const Tensors&) { return torch::Tensor(); }), "node 'odd' returns no tensor");
  EXPECT_THAT(message([](const Tensors& t) { return t[0].relu_(); }), HasSubstr("'odd'"));
  EXPECT_THAT(message([](const Tensors&) -> torch::Tensor { throw std::runtime_error("no such luck"); }),
              HasSubstr("forward of node 'odd' on [8]: no such luck"));
  int calls = 0;
  EXPECT_THAT(message([&calls](const Tensors& t) { return ++calls % 2 == 0 ? t[0].exp() : t[0].exp().exp(); }),
              HasSubstr("allocates differently from one run to the next"));
}

}  // namespace
}  // namespace headroom
