/// Steps of both executors in an arena.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <map>

#include "headroom/runtime/arena.h"
#include "headroom/runtime/meter.h"
#include "headroom/runtime/ops/op_program.h"
#include "headroom/runtime/train.h"

namespace headroom::internal {
namespace {

namespace nn = torch::nn;

class ArenaStepsTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

/// Returns gradients of the parameters by a step's loss, and its peak.
std::pair<Tensors, int64_t> gradients_of(const TrainingStep& step, const Tensors& batch) {
  torch::manual_seed(3);
  Meter meter(torch::kCPU);
  const int64_t before = meter.current_bytes();
  const torch::Tensor loss = step(batch);
  Tensors gradients = torch::autograd::grad({loss}, step.network().parameters());
  gradients.push_back(loss.detach());
  return {gradients, meter.peak_bytes() - before};
}

Network make_network() {
  torch::manual_seed(1);
  Network network("convolutions");
  Wire x = network.add_input("images");
  const Wire labels = network.add_input("labels");
  for (int i = 0; i < 5; ++i) {
    x = network.add_module("convolution" + std::to_string(i),
                           nn::Conv2d(nn::Conv2dOptions(i == 0 ? 3 : 8, 8, 3).padding(1)), {x});
    x = network.add("relu" + std::to_string(i), [](const Tensors& t) { return torch::relu(t[0]); }, {x});
    x = network.add_module("dropout" + std::to_string(i), nn::Dropout(0.2), {x});
  }
  x = network.add("mean", [](const Tensors& t) { return t[0].mean({2, 3}); }, {x});
  network.set_outputs(
      {network.add("loss", [](const Tensors& t) { return torch::cross_entropy_loss(t[0], t[1]); }, {x, labels})});
  return network;
}

TEST_F(ArenaStepsTest, GradientsOfANetworkAreTheSameAndEveryRequestIsServed) {
  const Meter meter(torch::kCPU);
  const Network network = make_network();
  const Tensors batch = {torch::randn({4, 3, 16, 16}), torch::randint(8, {4})};
  const MeasuredStep measured = measure_step(network, batch);
  const int64_t smallest = smallest_budget_bytes(measured);
  const int64_t most = predict(measured, make_training_step(measured, store_all(measured.step.graph))).peak_bytes;
  for (const int64_t budget : {most, (most + smallest) / 2, smallest}) {
    const TrainingStep step = plan_step(measured, budget).step;
    TrainingStep with = make_training_step(measured, step.schedule());
    with.use_arena(torch::kCPU);
    const Tensors expected = gradients_of(step, batch).first;
    for (int i = 0; i < 4; ++i) {
      const auto [actual, peak] = gradients_of(with, batch);
      for (size_t k = 0; k < expected.size(); ++k)
        EXPECT_TRUE(torch::equal(actual[k], expected[k])) << "budget " << budget << ", step " << i << ", tensor " << k;
      const ArenaStatistics statistics = with.arena()->statistics();
      EXPECT_EQ(statistics.missed, 0) << "budget " << budget << ", step " << i;
      EXPECT_EQ(statistics.recordings, std::min(i + 1, 2));
      EXPECT_EQ(statistics.served > 0, i > 1);
      EXPECT_GE(peak, i > 1 ? with.arena_bytes() : 0);
    }
  }
}

TEST_F(ArenaStepsTest, PlansKeepTheBudgetWithTheArena) {
  const Meter meter(torch::kCPU);
  const Network network = make_network();
  const Tensors batch = {torch::randn({4, 3, 16, 16}), torch::randint(8, {4})};
  const MeasuredStep measured = measure_step(network, batch);
  TrainOptions options;
  options.arena = true;
  const int64_t most = predict(measured, make_training_step(measured, store_all(measured.step.graph))).peak_bytes;
  const int64_t budget = (most + smallest_budget_bytes(measured)) / 2;
  const PlannedStep without = plan_step(measured, budget);
  const PlannedStep planned = plan_step(measured, budget, options);
  EXPECT_LE(planned.predicted_peak_bytes, budget);
  EXPECT_GT(planned.step.arena_bytes(), 0);
  const Tensors expected = gradients_of(without.step, batch).first;
  for (int i = 0; i < 2; ++i) {
    const auto [actual, peak] = gradients_of(planned.step, batch);
    EXPECT_EQ(peak, planned.predicted_peak_bytes - measured.before_bytes);
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(torch::equal(actual[k], expected[k])) << k;
  }
  EXPECT_EQ(planned.step.arena()->statistics().missed, 0);
}

/// Returns y = sin(...sin(x)) as a program of `count` calls with their backwards, gradient *= cos of the inputs, and its
/// step by a schedule that reruns nothing. Values: x, then the results, then y as output, dy, and the gradients.
std::shared_ptr<const OpStep> make_sines(size_t count, int64_t size) {
  const int64_t bytes = 4 * size;
  GraphSpec spec;
  spec.name = "sines";
  auto program_calls = std::vector<OpCall>();
  const auto add_value = [&](const std::string& name, bool is_resident, int64_t value_bytes) {
    spec.values.push_back({name, value_bytes, is_resident, {}});
    return static_cast<ValueId>(spec.values.size() - 1);
  };
  const auto add_op = [&](const std::string& name, Phase phase, std::vector<ValueId> inputs, ValueId output) {
    Op op{.name = name, .inputs = std::move(inputs), .outputs = {output}, .overwrites = {}};
    op.phase = phase;
    op.recompute = true;
    spec.ops.push_back(op);
  };
  const auto add_call = [&](const std::string& name, std::vector<int> arguments, int result, auto function) {
    OpCall call;
    call.name = name;
    call.run = [function](torch::jit::Stack& stack) {
      Tensors tensors;
      for (c10::IValue& argument : stack) tensors.push_back(std::move(argument).toTensor());
      stack.clear();
      stack.emplace_back(function(tensors));
    };
    for (const int number : arguments) call.arguments.push_back({CallArgument::Kind::kTensor, {}, {number}});
    call.results = {result};
    program_calls.push_back(call);
  };
  std::vector<int> call_of_op;
  std::vector<ValueId> results = {add_value("x", true, bytes)};
  for (size_t i = 0; i < count; ++i) {
    results.push_back(add_value("y" + std::to_string(i), false, bytes));
    add_op("sin" + std::to_string(i), Phase::kForward, {results[i]}, results[i + 1]);
    call_of_op.push_back(static_cast<int>(program_calls.size()));
    add_call("sin", {static_cast<int>(i)}, static_cast<int>(i) + 1, [](const Tensors& t) { return t[0].sin(); });
  }
  const ValueId output = add_value("y as output", false, 0);
  spec.values.back().holds = {results.back()};
  add_op("output", Phase::kForward, {results.back()}, output);
  call_of_op.push_back(OpProgram::kHandsOn);
  ValueId gradient = add_value("dy", false, bytes);
  add_op("rest", Phase::kBackward, {output}, gradient);
  call_of_op.push_back(OpProgram::kHandsOn);
  const int dy = static_cast<int>(count) + 1;
  for (size_t i = count; i > 0; --i) {
    const ValueId next = add_value("dy" + std::to_string(i), false, bytes);
    add_op("cos" + std::to_string(i), Phase::kBackward, {results[i - 1], gradient}, next);
    call_of_op.push_back(static_cast<int>(program_calls.size()));
    const int given = dy + static_cast<int>(count - i);
    add_call("cos", {static_cast<int>(i) - 1, given}, given + 1, [](const Tensors& t) { return t[0].cos() * t[1]; });
    gradient = next;
  }
  spec.outputs = {output, gradient};
  std::vector<int> value_of_tensor;
  for (int i = 0; i <= static_cast<int>(count); ++i) value_of_tensor.push_back(i);
  for (int i = 0; i <= static_cast<int>(count); ++i) value_of_tensor.push_back(static_cast<int>(count) + 2 + i);
  const Graph graph(spec);
  const auto program = std::make_shared<OpProgram>(OpProgram{
      .graph = graph,
      .calls = program_calls,
      .call_of_op = call_of_op,
      .call_of_view = std::vector<int>(value_of_tensor.size(), -1),
      .value_of_tensor = value_of_tensor,
      .forward_inputs = {0},
      .backward_inputs = {dy},
      .forward_outputs = {static_cast<int>(count)},
      .backward_outputs = {dy + static_cast<int>(count)},
      .annotate = {},
  });
  return std::make_shared<OpStep>(program, store_all(graph));
}

TEST_F(ArenaStepsTest, GradientsOfOperatorsAreTheSameAndEveryRequestIsServed) {
  constexpr int64_t kSize = 1000;
  constexpr size_t kCount = 6;
  const auto step = make_sines(kCount, kSize);
  const torch::Tensor x = torch::rand({kSize});
  const auto arena = std::make_shared<Arena>(torch::kCPU, /*fills=*/true);
  torch::Tensor expected = torch::ones({kSize});
  Tensors ys = {x};
  for (size_t i = 0; i < kCount; ++i) ys.push_back(ys.back().sin());
  for (size_t i = kCount; i > 0; --i) expected = ys[i - 1].cos() * expected;
  Meter meter(torch::kCPU);
  for (int i = 0; i < 4; ++i) {
    torch::Tensor given = torch::ones({kSize});
    const int64_t before = meter.current_bytes();
    meter.reset_peak();
    OpStep::Forward forward = step->forward({x}, arena);
    EXPECT_TRUE(torch::equal(forward.outputs[0], ys.back())) << i;
    const Tensors gradients = step->backward(forward.frame, {std::move(given)}).gradients;
    EXPECT_TRUE(torch::equal(gradients[0], expected)) << i;
    EXPECT_EQ(arena->statistics().missed, 0);
    // In the first op of backward, 5 results of forward, a cosine and a gradient live together. Beside the block are the
    // output and the last gradient.
    if (i == 0) continue;
    const ArenaMemory memory = arena->memory().value();
    EXPECT_EQ(memory, (ArenaMemory{7 * 4 * kSize + 6 * 32, 4 * kSize, 4 * kSize, 4 * kSize}));
    if (i > 1) {
      EXPECT_EQ(meter.peak_bytes() - before, memory.block_bytes + 2 * 4 * kSize);
    }
  }
}

}  // namespace
}  // namespace headroom::internal
