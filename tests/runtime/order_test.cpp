#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "headroom/core/simulate.h"
#include "headroom/runtime/network/executor.h"
#include "tests/runtime/training.h"

namespace headroom::internal {
namespace {

/// Returns three parallel branches of one shared block, or each of its own, and the loss of their sum.
template <typename Make>
Network make_branches(const Make& make_branch) {
  torch::manual_seed(1);
  Network network("branches");
  const Wire images = network.add_input("images");
  const Wire labels = network.add_input("labels");
  const Wire stem = network.add_module("stem", nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), {images});
  std::vector<Wire> branches;
  for (int i = 0; i < 3; ++i) branches.push_back(make_branch(network, "branch" + std::to_string(i), stem));
  const auto sum = [](const Tensors& t) { return t[0] + t[1] * 2 + t[2] * 3; };
  const Wire head = network.add_module("head", Head(), {network.add("sum", sum, branches)});
  network.set_outputs({network.add("loss", cross_entropy, {head, labels})});
  return network;
}

/// Adds the node at the start of a branch: backwards of nodes that read one value are in order by the sum of its
/// gradients. Every branch gets other numbers.
Wire add_sine(Network& network, const std::string& name, Wire x) {
  const int number = name.back() - '0';
  return network.add(name + ".sine", [=](const Tensors& t) { return (t[0] * (number + 1)).sin() * t[0]; }, {x});
}

/// Draws random numbers in backward.
struct NoisyGradient : torch::autograd::Function<NoisyGradient> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& x) {
    return x.sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * torch::rand_like(gradients[0])};
  }
};

/// Networks with branches that share one thing each.
const std::map<std::string, std::function<Network()>> kBranches = {
    {"draws",
     [] {
       return make_branches([](Network& network, const std::string& name, Wire x) {
         return network.add(name, [](const Tensors& t) { return torch::dropout(t[0].sin(), 0.3, true); }, {x});
       });
     }},
    {"buffers",
     [] {
       torch::manual_seed(2);
       const nn::BatchNorm2d norm(nn::BatchNorm2dOptions(16).affine(false));
       return make_branches([&](Network& network, const std::string& name, Wire x) {
         return network.add_module(name, norm, {add_sine(network, name, x)});
       });
     }},
    {"parameters",
     [] {
       torch::manual_seed(2);
       const nn::Conv2d convolution(nn::Conv2dOptions(16, 16, 3).padding(1));
       return make_branches([&](Network& network, const std::string& name, Wire x) {
         return network.add_module(name, convolution, {add_sine(network, name, x)});
       });
     }},
    {"draws in backward",
     [] {
       return make_branches([](Network& network, const std::string& name, Wire x) {
         return network.add(name, [](const Tensors& t) { return NoisyGradient::apply(t[0]); },
                            {add_sine(network, name, x)});
       });
     }},
};

/// Returns a schedule that runs the ops of a step in a random order of their dependencies. Half of the nodes run once
/// without a tape as well.
Schedule random_schedule(const StepGraph& step, std::mt19937& random) {
  std::vector<OpId> waiting;
  for (size_t op = 0; op < step.ops.size(); ++op)
    if (step.ops[op].kind != StepOpKind::kForward || random() % 2 == 0) waiting.push_back(static_cast<OpId>(op));
  std::set<ValueId> live;
  for (size_t id = 0; id < step.graph.values().size(); ++id)
    if (step.graph.values()[id].resident) live.insert(static_cast<ValueId>(id));
  std::vector<OpId> runs;
  while (!waiting.empty()) {
    std::ranges::shuffle(waiting, random);
    const auto ready = std::ranges::find_if(waiting, [&](OpId op) {
      return std::ranges::all_of(step.graph.op(op).inputs, [&](ValueId id) { return live.contains(id); });
    });
    runs.push_back(*ready);
    live.insert(step.graph.op(*ready).outputs.begin(), step.graph.op(*ready).outputs.end());
    waiting.erase(ready);
  }
  return with_drops(step.graph, runs);
}

TEST_F(TrainingStepTest, BranchesTrainAsPlainlyInAnyOrder) {
  for (const auto& [name, make] : kBranches) {
    const Outcome expected = train_plainly(make(), sample());
    const NetworkCosts costs = measure(make(), sample(), kQuick).costs;
    const StepGraph step = make_step_graph({make(), costs});
    for (unsigned seed = 0; seed < 12; ++seed) {
      std::mt19937 random(seed);
      const Schedule schedule = random_schedule(step, random);
      const Network network = make();
      const TrainingStep trainer({network, costs}, step, schedule);
      const Outcome outcome = train(network, sample(), trainer);
      expect_same(outcome, expected, name + ", seed " + std::to_string(seed));
      const Graph graph = step_for(step, costs, schedule).graph;
      EXPECT_LE(outcome.peak_bytes,
                simulate(graph, schedule).peak_bytes - graph.resident_bytes() + trainer.beside_bytes())
          << name << ", seed " << seed;
    }
  }
}

/// Values that keep an order are only where the values of the network do not.
TEST_F(TrainingStepTest, ChainsNeedNoOrder) {
  const auto count = [](const Network& network) {
    const StepGraph step = make_step_graph(measure(network, sample(), kQuick));
    return std::ranges::count_if(step.graph.values(), [](const Value& value) { return value.name.ends_with(" done"); });
  };
  EXPECT_EQ(count(make_cnn(false)), 0);
  EXPECT_EQ(count(make_cnn(true, true)), 0);
  for (const auto& [name, make] : kBranches) EXPECT_EQ(count(make()), 2) << name;
}

}  // namespace
}  // namespace headroom::internal
