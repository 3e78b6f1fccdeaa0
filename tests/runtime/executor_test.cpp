#include "headroom/runtime/network/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "headroom/core/simulate.h"
#include "headroom/plan/chain/checkpoints.h"
#include "headroom/plan/planners.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/join.h"
#include "headroom/runtime/network/measure.h"
#include "headroom/runtime/train.h"
#include "tests/runtime/training.h"

namespace headroom::internal {
namespace {

using ::testing::HasSubstr;

/// Trains by the plans of the planners `names` at several shares of the memory that plain training adds to the resident
/// values. Results must be bit-identical to plain training, and peaks as predicted and never above.
template <typename Make>
void expect_trains_alike(const Make& make, const Tensors& inputs, const std::vector<std::string>& names,
                         const std::vector<int>& percents, int least_plans = 3) {
  const Outcome expected = train_plainly(make(), inputs);
  const NetworkCosts costs = measure(make(), inputs, kQuick).costs;
  const StepGraph step = make_step_graph({make(), costs});
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
      const TrainingStep trainer({network, costs}, step, *plan.result.schedule);
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
  ASSERT_TRUE(make_problem(make_step_graph(measure(make(), sample(), kQuick))).chain);
  expect_trains_alike(make, sample(),
                      {"store-all", "even", "sqrt", "binomial", "peak-cubic", "peak-linear", "chain", "lower-sets"},
                      {100, 80, 60, 45, 35});
}

TEST_F(TrainingStepTest, ADagTrainsAsPlainly) {
  const auto make = [] { return make_cnn(true); };
  ASSERT_FALSE(make_problem(make_step_graph(measure(make(), sample(), kQuick))).chain);
  expect_trains_alike(make, sample(), {"store-all", "division-tree", "lower-sets", "auto"}, {100, 80, 60, 45, 35});
}

TEST_F(TrainingStepTest, AModuleUsedTwiceAddsUp) {
  expect_trains_alike([] { return make_cnn(false, true); }, sample(), {"store-all", "peak-linear", "chain"},
                      {100, 60, 45});
}

/// Returns a step of the small chain in which every block but the last runs twice.
TrainingStep recomputing_step(const Network& network) {
  const MeasuredNetwork measured = measure(network, sample(), kQuick);
  StepGraph step = make_step_graph(measured);
  const Plan plan = make_plan(get_planner("even"), make_problem(step), {});
  return TrainingStep(measured, std::move(step), *plan.result.schedule);
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
  const MeasuredNetwork measured = measure(network, inputs, kQuick);
  StepGraph graph = make_step_graph(measured);
  const Schedule plain = store_all(graph.graph);
  const TrainingStep with_input(measured, std::move(graph), plain);
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
  EXPECT_THROW(step({inputs[0].slice(1, 0, 2), inputs[1]}), c10::Error);
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
              HasSubstr("forward of node 'block1' on [4, 2, 16, 16]"));
  EXPECT_THAT(message_of([&] { step({inputs[0]}); }), HasSubstr("takes 2 inputs, found 1"));
}

TEST_F(TrainingStepTest, RefusesAnInvalidSchedule) {
  const Network network = make_cnn(false);
  const MeasuredNetwork measured = measure(network, sample(), kQuick);
  EXPECT_THAT(message_of([&] { TrainingStep(measured, make_step_graph(measured), Schedule{}); }),
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
  EXPECT_EQ(message([](const Tensors&) { return torch::Tensor(); }), "node 'odd' returns no tensor");
  EXPECT_THAT(message([](const Tensors&) -> torch::Tensor { throw std::runtime_error("no such luck"); }),
              HasSubstr("forward of node 'odd' on [8]: no such luck"));
  int calls = 0;
  EXPECT_THAT(message([&calls](const Tensors& t) { return ++calls % 2 == 0 ? t[0].exp() : t[0].exp().exp(); }),
              HasSubstr("node 'odd' allocates differently from one run to the next"));
  EXPECT_THAT(message([&calls](const Tensors& t) { return t[0].slice(0, 0, 2 + ++calls % 2).exp(); }),
              HasSubstr("node 'odd' gives another shape from one run to the next: "));
}

TEST_F(TrainingStepTest, AnOddNodeLeavesNothingBehind) {
  Meter meter(torch::kCPU);
  const Network network = make_cnn(false);
  const Tensors inputs = sample();
  const int64_t before = meter.current_bytes();
  int calls = 0;
  Network odd("odd");
  const Wire x = odd.add_input("x");
  const Wire first = odd.add("first", [](const Tensors& t) { return t[0] * 2; }, {x});
  const Wire second = odd.add("second",
                              [&calls](const Tensors& t) {
                                if (++calls > 2) throw std::runtime_error("enough");
                                return t[0].exp();
                              },
                              {first});
  odd.set_outputs({odd.add("loss", [](const Tensors& t) { return t[0].sum(); }, {second})});
  EXPECT_THAT(message_of([&] { measure(odd, {torch::ones({1000})}); }), HasSubstr("node 'second' on [1000]: enough"));
  EXPECT_EQ(meter.current_bytes(), before);
  EXPECT_NO_THROW(measure(network, inputs, kQuick));
}

TEST_F(TrainingStepTest, ANodeThatGivesAnotherShapeWhenItRunsAgainIsNamed) {
  Network network("moody");
  const Wire x = network.add_input("x");
  int kept = 3;
  const auto moody = [&kept](const Tensors& t) { return t[0].slice(0, 0, kept).exp(); };
  const Wire first = network.add("first", moody, {x});
  const Wire second = network.add("second", [](const Tensors& t) { return t[0].sin(); }, {first});
  network.set_outputs({network.add("loss", [](const Tensors& t) { return t[0].sum(); }, {second})});
  Tensors inputs = {torch::ones({8}).requires_grad_(true)};
  const MeasuredNetwork measured = measure(network, inputs, kQuick);
  const StepGraph graph = make_step_graph(measured);
  const TrainingStep step(measured, graph, checkpoint_schedule(3, std::vector<int>{2}));
  torch::Tensor loss = step(inputs);
  kept = 2;
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("node 'first' gave [3] first and [2] when it ran again"));
}

TEST_F(TrainingStepTest, ALargerBatchThanPlannedForIsRefused) {
  const TrainingStep step = recomputing_step(make_cnn(false));
  EXPECT_THAT(message_of([&] {
                step({torch::zeros({5, 3, 16, 16}), torch::zeros({5}, torch::kLong)});
              }),
              HasSubstr("an input of [5, 3, 16, 16] is larger than the one that was planned for"));
  EXPECT_NO_THROW(step({torch::zeros({3, 3, 16, 16}), torch::zeros({3}, torch::kLong)}).backward());
}

TEST_F(TrainingStepTest, HooksOfParametersSeeWholeGradientsOnce) {
  const Network network = make_cnn(false, true);
  const TrainingStep step = recomputing_step(network);
  int calls = 0;
  for (const torch::Tensor& parameter : network.parameters())
    parameter.register_hook([&calls](const torch::Tensor& gradient) {
      ++calls;
      return gradient * 3;
    });
  const auto run = [&](const auto& forward) {
    calls = 0;
    torch::manual_seed(5);
    for (const torch::Tensor& parameter : network.parameters()) parameter.mutable_grad().reset();
    forward(sample()).backward();
    EXPECT_EQ(calls, static_cast<int>(network.parameters().size()));
    Tensors gradients;
    for (const torch::Tensor& parameter : network.parameters()) gradients.push_back(parameter.grad());
    return gradients;
  };
  expect_same_bits(run(step), run([&](const Tensors& batch) { return network.forward(batch)[0]; }), "gradient");
}

/// Returns a network with a wire and a parameter that several nodes use, some of them more than once.
Network make_tangle() {
  torch::manual_seed(1);
  const torch::Tensor weight = torch::randn({16, 16}).requires_grad_(true);
  const auto mix = [weight](const Tensors& t) {
    return torch::tanh(t[0].matmul(weight) + t[0].sin().matmul(weight.t()) * t[0]);
  };
  Network network("tangle");
  const Wire x = network.add_input("x");
  const Wire a = network.add("a", mix, {x}, {weight});
  const Wire b = network.add("b", mix, {a}, {weight});
  const Wire c = network.add("c", [](const Tensors& t) { return t[0] * t[1] + t[0].cos(); }, {a, b});
  const Wire d = network.add("d", [](const Tensors& t) { return (t[0] + t[1] + t[2]).exp() * t[1]; }, {a, b, c});
  const Wire e = network.add("e", add, {d, a});
  network.set_outputs({network.add("loss", [](const Tensors& t) { return t[0].pow(2).mean(); }, {e})});
  return network;
}

TEST_F(TrainingStepTest, WhatSeveralNodesUseAddsUpAsInAutograd) {
  torch::manual_seed(7);
  expect_trains_alike(make_tangle, {torch::randn({64, 16})}, {"store-all", "division-tree", "lower-sets", "auto"},
                      {100, 90, 80, 70, 60, 50});
}

/// Returns a network in the style of torchvision: in-place ReLUs, a view, and a flatten at the start.
Network make_careless() {
  torch::manual_seed(1);
  Network network("careless");
  Wire x = network.add_input("x");
  const auto view = [](const Tensors& t) { return t[0].view({-1, 32}); };
  x = network.add("flatten", view, {x});
  for (int i = 1; i <= 4; ++i) {
    const std::string name = std::to_string(i);
    x = network.add_module("linear" + name, nn::Linear(32, 32), {x});
    x = network.add("relu" + name, [](const Tensors& t) { return t[0].relu_(); }, {x});
  }
  x = network.add("view", view, {x});
  network.set_outputs({network.add("loss", [](const Tensors& t) { return t[0].pow(2).mean(); }, {x})});
  return network;
}

/// A measured chain is known without being found in the graph, whose ids are those of the chain.
TEST_F(TrainingStepTest, AChainIsTheChainOfItsGraph) {
  const auto check = [](const Network& network, const Tensors& inputs) {
    const StepGraph step = make_step_graph(measure(network, inputs, kQuick));
    std::optional<ChainMatch> match = find_chain(step.graph);
    ASSERT_EQ(step.chain.has_value(), match.has_value()) << network.name();
    if (!match) return;
    for (size_t i = 0; i < match->chain.stages.size(); ++i) match->chain.stages[i].name = step.chain->stages[i].name;
    EXPECT_EQ(*step.chain, match->chain);
    for (size_t v = 0; v < step.graph.values().size(); ++v)
      EXPECT_EQ(step.graph.values()[v].name, match->graph.values()[v].name);
  };
  check(make_cnn(false), sample());
  check(make_cnn(false, true), sample());
  check(make_cnn(true), sample());
  check(join_to_chain(make_cnn(true)), sample());
  check(make_tangle(), {torch::randn({64, 16})});
  check(make_careless(), {torch::randn({16, 4, 8})});
}

TEST_F(TrainingStepTest, NodesThatChangeTheirInputAreJoinedToTheOneBefore) {
  torch::manual_seed(7);
  const Tensors inputs = {torch::randn({16, 4, 8})};
  const MeasuredNetwork measured = measure(make_careless(), inputs, kQuick);
  std::vector<std::string> names;
  for (const NetworkNode& node : measured.network.nodes()) names.push_back(node.name);
  EXPECT_EQ(names, (std::vector<std::string>{"flatten+...+relu1", "linear2+relu2", "linear3+relu3", "linear4+...+view",
                                             "loss"}));
  EXPECT_TRUE(make_problem(make_step_graph(measured)).chain);
  const auto make_joined = [&] { return measure(make_careless(), inputs, kQuick).network; };
  expect_trains_alike(make_joined, inputs, {"store-all", "chain", "auto"}, {100, 80, 60});
  const Outcome plain = train_plainly(make_careless(), inputs);
  expect_same(train_plainly(make_joined(), inputs), plain, "joined");

  Network spoils("spoils");
  const Wire x = spoils.add_input("images");
  spoils.set_outputs({spoils.add("loss", [](const Tensors& t) { return t[0].relu_().sum(); }, {x})});
  EXPECT_EQ(message_of([&] { measure(spoils, inputs); }), "node 'loss' changes the network's input 'images' in place");
}

TEST_F(TrainingStepTest, ASequentialIsAChain) {
  torch::manual_seed(1);
  const nn::Sequential layers(nn::Linear(8, 32), nn::Functional(torch::relu), nn::Linear(32, 32),
                              nn::Functional(torch::tanh), nn::Linear(32, 4));
  Network network("sequential");
  const Wire x = network.add_input("x");
  const Wire labels = network.add_input("labels");
  const Wire y = network.add_sequential("layers", layers, x);
  network.set_outputs({network.add("loss", cross_entropy, {y, labels})});
  ASSERT_EQ(network.nodes().size(), 6U);
  EXPECT_EQ(network.nodes()[2].name, "layers.2");
  const Tensors inputs = {torch::randn({64, 8}), torch::randint(4, {64})};
  EXPECT_TRUE(make_problem(make_step_graph(measure(network, inputs, kQuick))).chain);
  EXPECT_EQ(network.forward(inputs)[0].item<float>(),
            torch::cross_entropy_loss(nn::Sequential(layers)->forward(inputs[0]), inputs[1]).item<float>());
}

TEST_F(TrainingStepTest, AChainOfBlocksIsOfferedAsOne) {
  const Network blocks = join_to_chain(make_cnn(true));
  std::vector<std::string> names;
  for (const NetworkNode& node : blocks.nodes()) names.push_back(node.name);
  EXPECT_EQ(names, (std::vector<std::string>{"block1", "block2+block2.add", "block3+block3.add", "block4+block4.add",
                                             "block5+block5.add", "head", "loss"}));
  EXPECT_TRUE(make_problem(make_step_graph(measure(blocks, sample(), kQuick))).chain);
  expect_same(train_plainly(blocks, sample()), train_plainly(make_cnn(true), sample()), "joined");
  EXPECT_EQ(join_to_chain(make_cnn(false)).nodes().size(), make_cnn(false).nodes().size());
}

TEST_F(TrainingStepTest, TrainWithinKeepsABudgetOrNamesTheSmallest) {
  Meter meter(torch::kCPU);
  const Network network = make_cnn(false);
  const Tensors inputs = sample();
  int64_t smallest_bytes = 0;
  try {
    train_within(network, inputs, 1000);
    FAIL() << "a step in 1000 bytes";
  } catch (const BudgetTooSmall& error) {
    smallest_bytes = error.smallest_budget_bytes();
    EXPECT_EQ(error.what(), "network 'cnn' cannot be trained in 1000 bytes; the smallest budget is " +
                                std::to_string(smallest_bytes) + " bytes");
  }
  const TrainingStep step = train_within(network, inputs, smallest_bytes);
  meter.reset_peak();
  step(inputs).backward();
  EXPECT_LE(meter.peak_bytes(), smallest_bytes);
  EXPECT_GE(static_cast<double>(meter.peak_bytes()), 0.98 * static_cast<double>(smallest_bytes));
}

}  // namespace
}  // namespace headroom::internal
