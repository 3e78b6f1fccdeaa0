/// Tests that a TrainingStep keeps autograd's guarantees. Each test compares with plain training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <random>
#include <thread>

#include "headroom/core/simulate.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/executor.h"
#include "headroom/runtime/network/measure.h"
#include "headroom/runtime/train.h"

namespace headroom::internal {
namespace {

using ::testing::HasSubstr;
namespace nn = torch::nn;

const MeasureOptions kQuick{.warmups = 1, .least_repeats = 1, .most_repeats = 1, .node_ns = 0, .progress = {}};
constexpr int64_t kWidth = 8;

/// Runs on one thread, because threads would mostly wait for each other on small tensors.
class AutogradTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

Tensors batch(int64_t rows = 32) {
  torch::manual_seed(7);
  return {torch::randn({rows, kWidth})};
}

using Layer = std::function<torch::Tensor(const torch::Tensor&)>;

/// A chain of linear layers, each followed by a layer of the test, and a loss. `state` has the tensors that the layers
/// capture.
struct Chain {
  Network network{"chain"};
  Tensors state;
};

Wire add_linear(Network& network, Wire x, const std::string& name) {
  return network.add_module(name, nn::Linear(kWidth, kWidth), {x});
}

Wire add_layer(Network& network, Wire x, const std::string& name, const Layer& layer) {
  const auto forward = [layer](const Tensors& t) { return layer(t[0].tanh()).sin(); };
  return network.add(name, forward, {x});
}

void add_loss(Network& network, Wire x) {
  network.set_outputs({network.add("loss", [](const Tensors& t) { return t[0].square().mean(); }, {x})});
}

/// Each call of `make_layer` gets a new tensor to capture.
Chain make_chain(const std::function<Layer(const torch::Tensor&)>& make_layer, int count = 6) {
  torch::manual_seed(1);
  Chain chain;
  Wire x = chain.network.add_input("x");
  for (int i = 0; i < count; ++i) {
    chain.state.push_back(torch::ones({kWidth}));
    x = add_linear(chain.network, x, "linear" + std::to_string(i));
    x = add_layer(chain.network, x, "layer" + std::to_string(i), make_layer(chain.state.back()));
  }
  add_loss(chain.network, x);
  return chain;
}

/// Returns a step of a chain by its smallest plan, which reruns nodes.
TrainingStep recomputing_step(const Network& network, const Tensors& inputs) {
  const MeasuredNetwork measured = measure(network, inputs, kQuick);
  StepGraph step = make_step_graph(measured);
  const Plan plan = make_plan(get_planner("even"), make_problem(step), {});
  return TrainingStep(measured, std::move(step), *plan.result.schedule);
}

struct Outcome {
  torch::Tensor loss;
  Tensors gradients;
  Tensors state;
};

template <typename Step>
Outcome train(const Chain& chain, const Tensors& inputs, const Step& step, int steps = 2) {
  torch::manual_seed(3);
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    outcome.loss = step(inputs);
    outcome.loss.backward();
  }
  for (const torch::Tensor& parameter : chain.network.parameters()) outcome.gradients.push_back(parameter.grad());
  outcome.state = chain.network.buffers();
  outcome.state.insert(outcome.state.end(), chain.state.begin(), chain.state.end());
  outcome.state.push_back(torch::rand({4}));  // Later random numbers must be those of plain training too.
  return outcome;
}

void expect_same_bits(const Tensors& found, const Tensors& expected, const std::string& text) {
  ASSERT_EQ(found.size(), expected.size()) << text;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << text << " " << i;
}

void expect_same(const Outcome& found, const Outcome& expected, const std::string& text) {
  EXPECT_TRUE(found.loss.equal(expected.loss)) << text;
  expect_same_bits(found.gradients, expected.gradients, text + ": gradient");
  expect_same_bits(found.state, expected.state, text + ": state");
}

auto plainly(const Network& network) {
  return [&network](const Tensors& inputs) { return network.forward(inputs)[0]; };
}

void expect_trains_alike(const std::function<Layer(const torch::Tensor&)>& make_layer, const std::string& text) {
  const Chain expected = make_chain(make_layer);
  const Outcome plain = train(expected, batch(), plainly(expected.network));
  const Chain chain = make_chain(make_layer);
  const Tensors before = chain.state[0].clone().unbind();
  const TrainingStep step = recomputing_step(chain.network, batch());
  expect_same_bits(chain.state[0].unbind(), before, text + ": measuring changes state");
  expect_same(train(chain, batch(), step), plain, text);
}

torch::Tensor update(const torch::Tensor& state, const torch::Tensor& x) {
  return state.mul_(0.5).add_(x.detach().mean(0));
}

TEST_F(AutogradTest, CapturedStateIsReplayed) {
  const auto in_place = [](const torch::Tensor& state) {
    return [state](const torch::Tensor& x) { return x * (1 + update(state, x)); };
  };
  const auto through_view = [](const torch::Tensor& state) {
    return [state, view = state.slice(0, 2, 6)](const torch::Tensor& x) {
      view.mul_(0.5).add_(x.detach().mean());
      return x * (1 + state);
    };
  };
  const auto after_reading = [](const torch::Tensor& state) {
    return [state](const torch::Tensor& x) {
      const torch::Tensor result = x * (1 + state);
      update(state, x);
      return result;
    };
  };
  const auto own_generator = [](const torch::Tensor&) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    return [generator](const torch::Tensor& x) { return x * torch::rand(x.sizes(), generator); };
  };
  expect_trains_alike(in_place, "in place");
  expect_trains_alike(through_view, "through a view");
  expect_trains_alike(after_reading, "after reading");
  expect_trains_alike(own_generator, "own generator");
}

TEST_F(AutogradTest, StateThatALaterNodeChangesIsReplayed) {
  const auto make = [] {
    const torch::Tensor shared = torch::ones({kWidth});
    int layers = 0;
    Chain chain = make_chain([shared, layers](const torch::Tensor&) mutable -> Layer {
      if (++layers % 3 == 0) return [shared](const torch::Tensor& x) { return x * (1 + update(shared, x)); };
      return [shared](const torch::Tensor& x) { return x * (1 + shared); };
    });
    chain.state.push_back(shared);
    return chain;
  };
  const Chain expected = make();
  const Chain chain = make();
  const Outcome plain = train(expected, batch(), plainly(expected.network));
  expect_same(train(chain, batch(), recomputing_step(chain.network, batch())), plain, "shared");
}

/// Returns a random layer.
void add_random_node(Chain& chain, Wire& x, const std::string& name, std::mt19937& random) {
  const torch::Tensor state = torch::ones({kWidth});
  switch (random() % 7) {
    case 0:
      x = add_linear(chain.network, x, name);
      break;
    case 1:
      x = chain.network.add_module(name, nn::BatchNorm1d(kWidth), {x});
      break;
    case 2:
      x = chain.network.add(name, [](const Tensors& t) { return torch::dropout(t[0], 0.3, true); }, {x});
      break;
    case 3:  // In place on a value that autograd has not saved.
      x = add_linear(chain.network, x, name + ".linear");
      x = chain.network.add(name, [](const Tensors& t) { return t[0].relu_(); }, {x});
      break;
    case 4:
      x = chain.network.add(name, [](const Tensors& t) { return t[0].tanh().sin(); }, {x});
      break;
    case 5:
      x = chain.network.add(name, [](const Tensors& t) { return t[0].view({-1, kWidth}); }, {x});
      break;
    default:
      chain.state.push_back(state);
      x = add_layer(chain.network, x, name, [state](const torch::Tensor& y) { return y * (1 + update(state, y)); });
  }
}

Chain make_random_chain(unsigned seed) {
  torch::manual_seed(seed);
  std::mt19937 random(seed);
  Chain chain;
  Wire x = add_linear(chain.network, chain.network.add_input("x"), "first");
  const unsigned count = 4 + random() % 8;
  for (unsigned i = 0; i < count; ++i) add_random_node(chain, x, std::to_string(i), random);
  add_loss(chain.network, x);
  return chain;
}

TEST_F(AutogradTest, RandomChainsTrainAlikeByEveryPlanner) {
  int reruns = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    const Chain expected = make_random_chain(seed);
    const Outcome plain = train(expected, batch(), plainly(expected.network));
    std::mt19937 random(seed);
    for (const std::string name : {"even", "chain", "peak-linear", "lower-sets", "auto"}) {
      const Chain chain = make_random_chain(seed);
      const Tensors inputs = batch();
      const MeasuredNetwork measured = measure(chain.network, inputs, kQuick);
      const StepGraph graph = make_step_graph(measured);
      const int64_t plain_bytes = simulate(graph.graph, store_all(graph.graph)).peak_bytes;
      const int64_t budget_bytes = plain_bytes * (50 + static_cast<int64_t>(random() % 50)) / 100;
      const std::string text = name + ", seed " + std::to_string(seed) + ", budget " + std::to_string(budget_bytes);
      PlanRequest request;
      if (name != "even") request.budget_bytes = budget_bytes;
      const Plan plan = make_plan(get_planner(name), make_problem(graph), request);
      if (!plan.result.schedule) continue;
      reruns += plan.result.schedule->steps.size() > store_all(graph.graph).steps.size() ? 1 : 0;
      const TrainingStep step(measured, graph, *plan.result.schedule);
      expect_same(train(chain, inputs, step), plain, text);
      Meter meter(torch::kCPU);
      const int64_t before = meter.current_bytes();
      { const torch::Tensor loss = step(inputs); }
      EXPECT_EQ(meter.current_bytes(), before) << text;
    }
  }
  EXPECT_GE(reruns, 12);
}

Layer identity(const torch::Tensor& /*state*/) {
  return [](const torch::Tensor& x) { return x.cos(); };
}

TEST_F(AutogradTest, TheCallersGradientIsLeftAlone) {
  const Chain chain = make_chain(identity);
  const TrainingStep step = recomputing_step(chain.network, batch());
  const auto run = [&](const auto& forward) {
    for (const torch::Tensor& parameter : chain.network.parameters()) parameter.mutable_grad().reset();
    const torch::Tensor gradient = torch::full({}, 3.0);
    (forward(batch()) + forward(batch())).backward(gradient);
    EXPECT_EQ(gradient.item<float>(), 3.0);
    Tensors gradients;
    for (const torch::Tensor& parameter : chain.network.parameters()) gradients.push_back(parameter.grad());
    return gradients;
  };
  expect_same_bits(run(step), run(plainly(chain.network)), "gradient");
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

TEST_F(AutogradTest, AChangeBetweenForwardAndBackwardIsPyTorchsError) {
  const Chain chain =
      make_chain([](const torch::Tensor& state) { return [state](const torch::Tensor& x) { return x * state; }; });
  const Tensors inputs = batch();
  const TrainingStep step = recomputing_step(chain.network, inputs);
  const Tensors changed = {chain.network.parameters()[0], chain.network.parameters()[1], chain.state[0], inputs[0]};
  for (const torch::Tensor& tensor : changed) {
    torch::Tensor loss = step(inputs);
    {
      const at::NoGradGuard no_grad;
      tensor.add_(1);
    }
    const std::string message = message_of([&] { loss.backward(); });
    EXPECT_THAT(message, HasSubstr("one of the variables needed for gradient computation has been modified by an "
                                   "inplace operation: [CPUFloatType ["));
    EXPECT_THAT(message, HasSubstr("is at version " + std::to_string(tensor._version()) + "; expected version " +
                                   std::to_string(tensor._version() - 1) + " instead."));
    EXPECT_NO_THROW(step(inputs).backward());
  }
}

TEST_F(AutogradTest, ErrorsKeepTheirTypes) {
  int countdown = -1;
  const auto make_layer = [&countdown](const torch::Tensor& state) {
    return [&countdown, state](const torch::Tensor& x) {
      const torch::Tensor result = torch::dropout(x * (1 + update(state, x)), 0.2, true);
      if (countdown >= 0 && countdown-- == 0)
        throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no memory left");
      return result;
    };
  };
  Meter meter(torch::kCPU);
  const Chain chain = make_chain(make_layer);
  const Chain expected = make_chain(make_layer);
  const Tensors inputs = batch();
  const TrainingStep step = recomputing_step(chain.network, inputs);
  const int64_t before = meter.current_bytes();
  for (const int calls : {2, 7}) {  // In forward, and in a rerun.
    Tensors state;
    for (const torch::Tensor& tensor : chain.state) state.push_back(tensor.clone());
    countdown = calls;
    EXPECT_THROW(step(inputs).backward(), c10::OutOfMemoryError) << calls;
    EXPECT_EQ(countdown, -1);
    for (size_t i = 0; i < state.size(); ++i) chain.state[i].copy_(state[i]);
  }
  EXPECT_EQ(meter.current_bytes(), before);
  expect_same(train(chain, inputs, step), train(expected, inputs, plainly(expected.network)), "afterwards");
  countdown = 2;
  EXPECT_THAT(message_of([&] { step(inputs); }), HasSubstr("forward of node 'layer2' on [32, 8]"));
}

TEST_F(AutogradTest, ModesAreThoseOfTheForward) {
  const auto run = [](bool plain) {
    torch::manual_seed(1);
    Chain chain;
    Wire x = chain.network.add_input("x");
    for (int i = 0; i < 6; ++i) {
      x = add_layer(chain.network, add_linear(chain.network, x, "linear" + std::to_string(i)), std::to_string(i),
                    identity({}));
      x = chain.network.add_module("norm" + std::to_string(i), nn::BatchNorm1d(kWidth), {x});
    }
    add_loss(chain.network, x);
    const Tensors inputs = batch();
    const TrainingStep step = recomputing_step(chain.network, inputs);
    const torch::Tensor loss = plain ? chain.network.forward(inputs)[0] : step(inputs);
    chain.network.train(false);
    loss.backward();
    Tensors results = chain.network.buffers();
    for (const torch::Tensor& parameter : chain.network.parameters()) results.push_back(parameter.grad());
    return results;
  };
  expect_same_bits(run(false), run(true), "eval() before backward");
  Chain chain;
  Wire x = chain.network.add_input("x");
  for (int i = 0; i < 6; ++i) x = chain.network.add_module("norm" + std::to_string(i), nn::BatchNorm1d(kWidth), {x});
  add_loss(chain.network, x);
  chain.network.train(false);
  const TrainingStep step = recomputing_step(chain.network, batch());
  chain.network.train(true);
  EXPECT_THAT(message_of([&] { step(batch()); }), HasSubstr("is in training mode and was not when it was measured"));
}

/// Threads share the default generator, and a rerun of a node must still draw the numbers of its first run. Each layer keeps
/// its first mask and compares.
TEST_F(AutogradTest, ThreadsReplayTheirOwnRandomNumbers) {
  constexpr int kLayers = 6;
  std::vector<std::shared_ptr<Tensors>> masks;
  std::atomic<int> differences = 0;
  std::vector<TrainingStep> steps;
  for (int i = 0; i < 2; ++i) {
    const auto seen = std::make_shared<Tensors>(kLayers);
    masks.push_back(seen);
    int layers = 0;
    const Chain chain = make_chain([&, seen](const torch::Tensor&) -> Layer {
      return [seen, layer = layers++, &differences](const torch::Tensor& x) {
        const torch::Tensor mask = torch::rand(x.sizes());
        torch::Tensor& first = (*seen)[static_cast<size_t>(layer)];
        if (!first.defined()) first = mask;
        if (!first.equal(mask)) ++differences;
        return x * mask;
      };
    });
    steps.push_back(recomputing_step(chain.network, batch()));
  }
  differences = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i, inputs = batch()] {
      for (int k = 0; k < 50; ++k) {
        masks[i]->assign(kLayers, {});
        steps[i](inputs).backward();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, 0);
}

}  // namespace
}  // namespace headroom::internal
