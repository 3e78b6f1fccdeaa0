/// What happens where a state cannot be restored: what can be is, the error is thrown where that is possible, and no
/// destructor ends the process.
#include "headroom/runtime/state.h"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <limits>
#include <optional>
#include <stdexcept>

#include "headroom/runtime/network/executor.h"
#include "headroom/runtime/network/kernels.h"
#include "headroom/runtime/network/measure.h"
#include "headroom/runtime/network/side_effects.h"

namespace headroom::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A generator whose state cannot be set, as that of a CUDA device after an error or during a graph's capture.
class FailingGenerator final : public c10::GeneratorImpl {
 public:
  static at::Generator make() { return at::Generator(c10::make_intrusive<FailingGenerator>()); }

  FailingGenerator() : GeneratorImpl(torch::kMeta, {}) {}
  void set_current_seed(uint64_t /*seed*/) override {}
  void set_offset(uint64_t /*offset*/) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return 0; }
  uint64_t seed() override { return 0; }
  void set_state(const c10::TensorImpl& /*state*/) override { TORCH_CHECK(false, "no state can be set"); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return torch::zeros({1}, torch::kByte).getIntrusivePtr();
  }

 private:
  FailingGenerator* clone_impl() const override { return new FailingGenerator; }
};

/// Lets one allocation of the CPU fail, after `count` others, during its lifetime.
class FailingAllocator final : public c10::Allocator {
 public:
  explicit FailingAllocator(int count) : countdown_(count), previous_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, kPriority);
  }
  ~FailingAllocator() override { c10::SetCPUAllocator(previous_, kPriority); }
  FailingAllocator(const FailingAllocator&) = delete;
  FailingAllocator& operator=(const FailingAllocator&) = delete;

  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(countdown_-- != 0, "no memory left");
    return previous_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return previous_->raw_deleter(); }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    previous_->copy_data(destination, source, bytes);
  }
  bool has_failed() const { return countdown_ < 0; }

 private:
  static constexpr uint8_t kPriority = std::numeric_limits<uint8_t>::max();
  int countdown_;
  c10::Allocator* previous_;
};

/// Returns the next random number, and draws none.
double next_number() {
  const RandomState now = RandomState::now(torch::kCPU);
  const double number = torch::rand({}).item<double>();
  now.restore();
  return number;
}

std::vector<double> values(const torch::Tensor& tensor) {
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

torch::Tensor make_buffer() { return torch::arange(2, torch::kDouble); }  // 0, 1

TEST(State, OneGeneratorThatFailsDoesNotKeepTheOthersFromBeingRestored) {
  const RandomState state = RandomState::now(torch::kCPU, {FailingGenerator::make()});  // It comes before the CPU's.
  const double number = next_number();
  torch::rand({3});
  EXPECT_NE(next_number(), number);
  EXPECT_THROW(state.restore(), c10::Error);
  EXPECT_EQ(next_number(), number);
}

TEST(State, KeptStateRestoresBuffersWhereAGeneratorFails) {
  const torch::Tensor buffer = make_buffer();
  const int64_t version = version_of(buffer);
  {
    const KeptState state({buffer}, torch::kCPU, {FailingGenerator::make()});
    buffer.add_(5);
    EXPECT_THROW(state.restore(), c10::Error);
    EXPECT_THAT(values(buffer), ElementsAre(0, 1));
    buffer.add_(5);
  }
  EXPECT_THAT(values(buffer), ElementsAre(0, 1));
  EXPECT_EQ(version_of(buffer), version);
}

TEST(State, KeptStateRestoresTheBuffersThatItCan) {
  const torch::Tensor resized = make_buffer();
  const torch::Tensor buffer = make_buffer();
  {
    const KeptState state({resized, buffer}, torch::kCPU);
    resized.resize_({3});
    buffer.add_(5);
  }
  EXPECT_EQ(resized.numel(), 3);
  EXPECT_THAT(values(buffer), ElementsAre(0, 1));
}

TEST(State, AnEarlierStateThatCannotBeSetChangesNothing) {
  const std::vector<at::Generator> generators = {FailingGenerator::make()};
  const RandomState random = RandomState::now(torch::kCPU, generators);
  torch::rand({3});
  const double number = next_number();
  const torch::Tensor buffer = make_buffer();
  const Tensors then = {copy_memory(torch::full({2}, 7, torch::kDouble))};
  EXPECT_THROW(EarlierState(torch::kCPU, random, {buffer}, then, {4}, generators), c10::Error);
  EXPECT_EQ(next_number(), number);
  EXPECT_THAT(values(buffer), ElementsAre(0, 1));
  EXPECT_EQ(version_of(buffer), 0);
}

TEST(State, AnEarlierStateEndsOnce) {
  const torch::Tensor buffer = make_buffer();
  const Tensors then = {copy_memory(torch::full({2}, 7, torch::kDouble))};
  {
    EarlierState state(torch::kCPU, RandomState::now(torch::kCPU), {buffer}, then, {4});
    EXPECT_THAT(values(buffer), ElementsAre(7, 7));
    EXPECT_EQ(version_of(buffer), 4);
    state.end();
    EXPECT_THAT(values(buffer), ElementsAre(0, 1));
    EXPECT_EQ(version_of(buffer), 0);
  }
  EXPECT_THAT(values(buffer), ElementsAre(0, 1));
}

/// Exchanging the memory of storages of different sizes would leave tensors that reach beyond their memory.
TEST(State, AnEarlierStateOfAnotherSizeIsRefused) {
  const torch::Tensor first = make_buffer();
  const torch::Tensor second = make_buffer();
  const auto sevens = [] { return copy_memory(torch::full({2}, 7, torch::kDouble)); };
  const auto was_resized =
      ThrowsMessage<std::runtime_error>(HasSubstr("a buffer of 16 bytes was resized to 24, and its earlier state"));
  {
    EarlierState state(torch::kCPU, std::nullopt, {first, second}, {sevens(), sevens()});
    first.resize_({3});
    EXPECT_THAT([&] { state.end(); }, was_resized);
    EXPECT_THAT(values(second), ElementsAre(0, 1));
  }
  EXPECT_THAT([&] { EarlierState(torch::kCPU, std::nullopt, {second, first}, {sevens(), sevens()}); }, was_resized);
  EXPECT_THAT(values(second), ElementsAre(0, 1));
}

/// A module whose train() fails for its `count`th change.
struct Stubborn : torch::nn::Module {
  explicit Stubborn(int count) : countdown(count) {}
  void train(bool on) override {
    if (countdown-- == 0) throw std::logic_error("no");
    torch::nn::Module::train(on);
  }
  int countdown;
};

NetworkNode node_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  NetworkNode node{"node", {}, {}, {}, {}, {}};
  node.modules = modules;
  return node;
}

TEST(State, ModesAreRestoredWhereTheyCannotAllBeSet) {
  const auto plain = std::make_shared<torch::nn::Module>();
  const NetworkNode node = node_of({plain, std::make_shared<Stubborn>(0)});
  ASSERT_THAT(training_modes(node), ElementsAre(true, true));
  EXPECT_THROW(EarlierModes(node, {false, false}), std::logic_error);
  EXPECT_TRUE(plain->is_training());
}

TEST(State, ModesThatCannotBeRestoredEndNoProcess) {
  const auto stubborn = std::make_shared<Stubborn>(1);
  const NetworkNode node = node_of({stubborn});
  { const EarlierModes modes(node, {false}); }
  EXPECT_EQ(stubborn->countdown, -1);
  EXPECT_FALSE(stubborn->is_training());
}

TEST(State, AWatchRestoresMemoryWhereAGeneratorFails) {
  const torch::Tensor outside = make_buffer();
  {
    OperatorWatch watch;
    watch.begin({});
    EXPECT_THROW(torch::rand({2}, FailingGenerator::make()), c10::Error);  // It is none of the CPU.
    outside.add_(5);
    EXPECT_EQ(watch.end().generators.size(), 1);
  }
  EXPECT_THAT(values(outside), ElementsAre(0, 1));
  const OperatorWatch another;  // The thread has no watch left.
}

/// A network of a node and the sum of what it makes.
Network with_sum(NetworkNode node) {
  Network network("step");
  node.inputs = {network.add_input("x")};
  const Wire m = network.add_node(std::move(node));
  network.set_outputs({network.add("sum", [](const Tensors& inputs) { return inputs[0].sum(); }, {m})});
  return network;
}

/// Returns a step whose first node runs again in backward.
TrainingStep with_rerun(const Network& network, const torch::Tensor& input) {
  const MeasuredNetwork measured =
      measure(network, {input}, {.warmups = 1, .least_repeats = 1, .most_repeats = 1, .node_ns = 0, .progress = {}});
  const StepGraph step = make_step_graph(measured);
  const std::vector<OpId> runs = {OpId{0}, OpId{3}, OpId{4}, OpId{1}, OpId{5}};  // F1, R2, B2, R1, B1
  return {measured, step, with_drops(step.graph, runs)};
}

/// Whichever allocation of backward fails, the rerun leaves the random numbers and the buffers of the forward before.
TEST(State, LackOfMemoryInBackwardChangesNeitherBuffersNorRandomNumbers) {
  const torch::Tensor buffer = make_buffer();
  NetworkNode node{"noisy", {}, {}, {}, {buffer}, {}};
  node.forward = [&](const Tensors& inputs) {
    buffer.add_(torch::ones({2}, torch::kDouble));
    return (inputs[0] * torch::rand({10}) * buffer[1].to(torch::kFloat)).sin();
  };
  const torch::Tensor input = torch::ones({10}).requires_grad_(true);
  const TrainingStep training = with_rerun(with_sum(node), input);
  int failures = 0;
  for (bool has_failed = true; has_failed; failures += has_failed) {
    const torch::Tensor loss = training({input});
    const std::vector<double> expected = values(buffer);
    const int64_t version = version_of(buffer);
    const double number = next_number();
    const auto backward = [&] { torch::autograd::grad({loss}, {input}); };
    {
      const FailingAllocator allocator(failures);
      has_failed = false;
      try {
        backward();
      } catch (const c10::Error& error) {
        has_failed = true;
        EXPECT_THAT(error.what(), HasSubstr("no memory left"));
      }
      EXPECT_EQ(has_failed, allocator.has_failed());
    }
    EXPECT_EQ(values(buffer), expected) << failures;
    EXPECT_EQ(version_of(buffer), version) << failures;
    EXPECT_EQ(next_number(), number) << failures;
  }
  EXPECT_GE(failures, 8);  // Six of the node's forward, and at least two of the two backwards.
}

/// A node whose second step makes a buffer larger: its rerun there cannot see the buffer's earlier state.
TEST(State, ARerunThatCannotBeGivenItsBuffersThrows) {
  const torch::Tensor buffer = make_buffer();
  bool resizes = false;
  NetworkNode node{"resizes", {}, {}, {}, {buffer}, {}};
  node.forward = [&](const Tensors& inputs) {
    buffer.add_(1);
    const torch::Tensor result = inputs[0] * buffer[1];
    if (resizes) buffer.resize_({100});
    return result.sin();
  };
  const torch::Tensor input = torch::ones({10}, torch::kDouble).requires_grad_(true);
  const TrainingStep training = with_rerun(with_sum(node), input);
  const auto train = [&] { torch::autograd::grad({training({input})}, {input}); };
  train();
  EXPECT_THAT(values(buffer), ElementsAre(1, 2));
  resizes = true;
  EXPECT_THAT(train, ThrowsMessage<std::runtime_error>(HasSubstr("a buffer of 16 bytes was resized to 800")));
  EXPECT_EQ(buffer.numel(), 100);
  EXPECT_EQ(buffer[1].item<double>(), 3);
}

}  // namespace
}  // namespace headroom::internal
