/// What both executors promise about a step in flight, whether it runs nodes of a network or calls of operators.
#include "headroom/runtime/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "headroom/runtime/meter.h"
#include "headroom/runtime/network/executor.h"
#include "headroom/runtime/network/measure.h"
#include "headroom/runtime/ops/op_program.h"

namespace headroom::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const MeasureOptions kQuick{.warmups = 1, .least_repeats = 1, .most_repeats = 1, .node_ns = 0, .progress = {}};
constexpr int64_t kSize = 1000;

class FrameTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

/// A training step of one layer, y = 2 m where m is what the layer makes of x. The layer runs again in backward. Of
/// operators, backward multiplies the gradient by 2 m, which is right for m = c x at x = 1.
using Layer = std::function<torch::Tensor(const torch::Tensor&)>;
using RunStep = std::function<Tensors(const torch::Tensor& x)>;  ///< Returns y and the gradient of x.

/// Returns a call that reads and writes tensors by their numbers.
OpCall make_call(const std::string& name, const std::vector<int>& arguments, int result,
                 const std::function<torch::Tensor(const Tensors&)>& function) {
  OpCall call;
  call.name = name;
  call.run = [function](torch::jit::Stack& stack) {
    Tensors tensors;
    for (c10::IValue& argument : stack) tensors.push_back(std::move(argument).toTensor());
    stack.clear();
    stack.emplace_back(function(tensors));
  };
  for (const int argument : arguments) call.arguments.push_back({CallArgument::Kind::kTensor, {}, {argument}});
  call.results = {result};
  return call;
}

std::shared_ptr<const OpStep> make_op_step(const Layer& layer, bool draws) {
  Value x{"x", 4 * kSize, true, {}};
  Value output{"y as output", 0, false, {ValueId{2}}};
  const auto value = [](const char* name) { return Value{name, 4 * kSize, false, {}}; };
  const auto op = [](const char* name, std::vector<ValueId> inputs, ValueId made, bool recompute) {
    Op result{.name = name, .inputs = std::move(inputs), .outputs = {made}, .overwrites = {}};
    result.recompute = recompute;
    return result;
  };
  GraphSpec spec;
  spec.name = "step";
  spec.values = {x, value("m"), value("y"), output, value("dy"), value("dx")};
  spec.ops = {op("layer", {ValueId{0}}, ValueId{1}, true), op("double", {ValueId{1}}, ValueId{2}, true),
              op("output", {ValueId{2}}, ValueId{3}, false), op("rest", {ValueId{3}}, ValueId{4}, false),
              op("backward", {ValueId{1}, ValueId{4}}, ValueId{5}, false)};
  spec.ops[3].phase = spec.ops[4].phase = Phase::kBackward;
  spec.outputs = {ValueId{3}, ValueId{5}};
  const Graph graph(spec);
  // Tensors: 0 is x, 1 is m, 2 is y, 3 is dy, and 4 is dx.
  auto program = std::make_shared<OpProgram>(OpProgram{
      .graph = graph,
      .calls = {make_call("layer", {0}, 1, [layer](const Tensors& t) { return layer(t[0]); }),
                make_call("double", {1}, 2, [](const Tensors& t) { return t[0] * 2; }),
                make_call("backward", {1, 3}, 4, [](const Tensors& t) { return 2 * t[0] * t[1]; })},
      .call_of_op = {0, 1, OpProgram::kHandsOn, OpProgram::kHandsOn, 2},
      .call_of_view = std::vector<int>(5, -1),
      .value_of_tensor = {0, 1, 2, 4, 5},
      .forward_inputs = {0},
      .backward_inputs = {3},
      .forward_outputs = {2},
      .backward_outputs = {4},
      .annotate = {},
  });
  program->calls[0].draws = draws;
  const std::vector<OpId> runs = {OpId{0}, OpId{1}, OpId{2}, OpId{3}, OpId{0}, OpId{4}};
  return std::make_shared<OpStep>(program, with_drops(graph, runs));
}

RunStep run_by_ops(const Layer& layer, bool draws = false) {
  return [step = make_op_step(layer, draws)](const torch::Tensor& x) -> Tensors {
    OpStep::Forward forward = step->forward({x});
    const torch::Tensor y = forward.outputs[0].clone();
    return {y, step->backward(forward.frame, {torch::ones({kSize})}).gradients[0]};
  };
}

/// Returns the same step as a network of two nodes.
RunStep run_by_modules(const Layer& layer) {
  Network network("step");
  const Wire x = network.add_input("x");
  const Wire m = network.add("layer", [layer](const Tensors& t) { return layer(t[0]); }, {x});
  network.set_outputs({network.add("double", [](const Tensors& t) { return t[0] * 2; }, {m})});
  const Tensors sample = {torch::ones({kSize}).requires_grad_(true)};
  const MeasuredNetwork measured = measure(network, sample, kQuick);
  const StepGraph step = make_step_graph(measured);
  const std::vector<OpId> runs = {OpId{0}, OpId{3}, OpId{4}, OpId{1}, OpId{5}};  // F1, R2, B2, R1, B1
  const TrainingStep training(measured, step, with_drops(step.graph, runs));
  return [training](const torch::Tensor& given) -> Tensors {
    const torch::Tensor leaf = given.detach().requires_grad_(true);
    const torch::Tensor y = training({leaf});
    return {y.detach(), torch::autograd::grad({y}, {leaf}, {torch::ones({kSize})})[0]};
  };
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

/// Runs steps whose layer throws in its first run and in its rerun, by both executors, and expects the type.
template <typename Error>
std::string expect_type_is_kept(const Layer& fails) {
  int countdown = -1;
  const Layer layer = [&](const torch::Tensor& x) {
    if (countdown >= 0 && countdown-- == 0) fails(x);
    return x.sin();
  };
  std::string messages;
  Meter meter(torch::kCPU);
  for (const RunStep& run : {run_by_ops(layer), run_by_modules(layer)}) {
    const torch::Tensor x = torch::ones({kSize});
    const int64_t before = meter.current_bytes();
    for (const int calls : {0, 1}) {
      countdown = calls;
      EXPECT_THROW(run(x), Error) << calls;
      EXPECT_EQ(countdown, -1);
      countdown = calls;
      messages += message_of([&] { run(x); }) + "\n";
      EXPECT_EQ(meter.current_bytes(), before) << calls;
    }
  }
  return messages;
}

struct OwnError : std::exception {
  const char* what() const noexcept override { return "own error"; }
};

TEST_F(FrameTest, ErrorsKeepTheirTypesInBothExecutors) {
  expect_type_is_kept<OwnError>([](const torch::Tensor&) -> torch::Tensor { throw OwnError(); });
  expect_type_is_kept<std::bad_alloc>([](const torch::Tensor&) -> torch::Tensor { throw std::bad_alloc(); });
  expect_type_is_kept<InvalidInput>([](const torch::Tensor&) -> torch::Tensor { throw InvalidInput("wrong"); });
  const std::string index = expect_type_is_kept<c10::IndexError>([](const torch::Tensor& x) { return x[kSize]; });
  EXPECT_THAT(index, AllOf(HasSubstr("in layer on [1000]"), HasSubstr("forward of node 'layer' on [1000]")));
  const std::string plain = expect_type_is_kept<std::runtime_error>(
      [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("no luck"); });
  EXPECT_THAT(plain,
              AllOf(HasSubstr("in layer on [1000]: no luck"), HasSubstr("forward of node 'layer' on [1000]: no luck")));
}

TEST_F(FrameTest, LackOfMemoryKeepsItsTypeInBothExecutors) {
  const auto expect_names_all = [](const std::string& messages) {
    EXPECT_THAT(messages, AllOf(HasSubstr("in layer on [1000]"), HasSubstr("forward of node 'layer' on [1000]")));
    EXPECT_THAT(messages, AllOf(HasSubstr("the plan expected 8000 bytes, the largest of them 'x' (4000), 'm' (4000)"),
                                HasSubstr("the largest of them 'a0' (4000)")));
  };
  expect_names_all(expect_type_is_kept<c10::OutOfMemoryError>([](const torch::Tensor&) -> torch::Tensor {
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no memory left");
  }));
  // The CPU's allocator throws a c10::Error.
  expect_names_all(expect_type_is_kept<c10::OutOfMemoryError>(
      [](const torch::Tensor&) { return torch::empty({int64_t{1} << 50}); }));
}

/// Threads share the default generators: a draw of another step between saving their state and drawing would make the
/// rerun see other numbers than the first run.
TEST_F(FrameTest, ThreadsDrawOneAfterAnotherInBothExecutors) {
  const torch::Tensor x = torch::ones({kSize});
  std::atomic<bool> other_draws = false;
  const Layer draw = [&](const torch::Tensor& given) {
    other_draws = true;
    return torch::rand_like(given) * given;
  };
  for (const RunStep& other : {run_by_ops(draw, /*draws=*/true), run_by_modules(draw)}) {
    other_draws = false;
    Tensors of_other;
    std::thread thread;
    const Layer start_other_and_draw = [&](const torch::Tensor& given) {
      if (!thread.joinable()) {
        thread = std::thread([&] { of_other = other(x); });
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_FALSE(other_draws);
      }
      return torch::rand_like(given) * given;
    };
    const Tensors results = run_by_ops(start_other_and_draw, /*draws=*/true)(x);
    thread.join();
    EXPECT_TRUE(other_draws);
    EXPECT_TRUE(results[0].equal(results[1]));
    EXPECT_TRUE(of_other[0].equal(of_other[1]));
  }
}

TEST_F(FrameTest, BackwardRunsOnceAndFreesItsFrameAlsoWhereItFails) {
  int calls = 0;
  const auto step = make_op_step(
      [&calls](const torch::Tensor& x) {
        if (++calls > 1) throw OwnError();
        return x.sin();
      },
      /*draws=*/false);
  Meter meter(torch::kCPU);
  const int64_t before = meter.current_bytes();
  OpStep::Forward forward = step->forward({torch::ones({kSize})});
  forward.outputs.clear();
  EXPECT_GT(meter.current_bytes(), before);
  EXPECT_THROW(step->backward(forward.frame, {torch::ones({kSize})}), OwnError);
  EXPECT_EQ(meter.current_bytes(), before);
  EXPECT_THAT(message_of([&] { step->backward(forward.frame, {torch::ones({kSize})}); }), HasSubstr("runs once"));
}

/// The state of a buffer of another size cannot be restored: the restoring destructor must not throw over the error.
TEST_F(FrameTest, MeasuringReportsWhatFailedWhereTheStateCannotBeRestored) {
  const torch::Tensor buffer = torch::ones({2});
  Network network("odd");
  const Wire x = network.add_input("x");
  NetworkNode node{"resizes", {x}, {}, {}, {buffer}, {}};
  node.forward = [buffer](const Tensors&) -> torch::Tensor {
    buffer.resize_({3});
    throw OwnError();
  };
  network.set_outputs({network.add_node(node)});
  EXPECT_THROW(measure(network, {torch::ones({kSize})}, kQuick), OwnError);
}

TEST_F(FrameTest, MeasuringReportsThatACapturedTensorCannotBeSaved) {
  // A view of one element of far more memory than there is. A node that writes to it has all of it saved.
  float number = 1;
  const torch::Tensor captured = torch::from_blob(&number, {int64_t{1} << 50}).slice(0, 0, 1);
  Network network("odd");
  const Wire x = network.add_input("x");
  network.set_outputs({network.add("writes",
                                   [captured](const Tensors& t) {
                                     captured.mul_(1);
                                     return t[0] * captured;
                                   },
                                   {x})});
  EXPECT_THAT(message_of([&] { measure(network, {torch::ones({kSize})}, kQuick); }),
              HasSubstr("can't allocate memory"));
}

}  // namespace
}  // namespace headroom::internal
