// Trains networks of the zoo within budgets from the memory of plain training down to the smallest that can be kept: those
// of cases_of_families(), or all if the environment variable HEADROOM_WHOLE_ZOO is set.
#include "headroom/runtime/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>

#include "headroom/plan/chain/checkpoints.h"
#include "headroom/train/trainer.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal {
namespace {

constexpr int kSteps = 2;
constexpr int kBudgets = 3;

struct Case {
  const char* name;
  int64_t batch;
  int64_t size;  ///< side of the images or number of tokens
  ZooOptions options = {};
};

// Inputs are small and layers as published, except that GPTs are narrower, so that activations matter beside gradients.
ZooOptions narrow() {
  ZooOptions options;
  options.width = 192;
  options.heads = 4;
  options.vocabulary = 1000;
  return options;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"alexnet", 8, 96},       {"vgg11", 4, 64},          {"vgg13", 4, 64},
      {"vgg16", 4, 64},         {"vgg19", 4, 64},          {"resnet18", 8, 64},
      {"resnet34", 8, 64},      {"resnet50", 8, 64},       {"resnet101", 4, 64},
      {"resnet152", 4, 64},     {"resnet1001", 2, 16},     {"densenet121", 2, 64},
      {"densenet161", 2, 64},   {"densenet169", 2, 64},    {"densenet201", 2, 64},
      {"inception-v3", 2, 112}, {"darts", 2, 16},          {"unet", 1, 64},
      {"gpt-tiny", 4, 64},      {"gpt2", 4, 64, narrow()}, {"gpt2-medium", 4, 64, narrow()},
  };
  return all;
}

/// Returns one network of each family, and the deepest.
std::vector<Case> cases_of_families() {
  const std::set<std::string> names = {"alexnet",      "vgg11", "resnet50", "resnet1001", "densenet121",
                                       "inception-v3", "darts", "unet",     "gpt-tiny",   "gpt2"};
  std::vector<Case> chosen;
  std::ranges::copy_if(cases(), std::back_inserter(chosen), [&](const Case& one) { return names.contains(one.name); });
  return chosen;
}

uint64_t hash_of(const torch::Tensor& tensor) {
  const torch::Tensor dense = tensor.contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());
  uint64_t hash = 14695981039346656037ULL;
  for (size_t i = 0; i < dense.nbytes(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<size_t>(8, dense.nbytes() - i));
    hash = (hash ^ word) * 1099511628211ULL;
    hash ^= hash >> 29U;
  }
  return hash;
}

std::vector<uint64_t> hashes_of(const Tensors& tensors) {
  std::vector<uint64_t> hashes;
  for (const torch::Tensor& tensor : tensors) hashes.push_back(tensor.defined() ? hash_of(tensor) : 0);
  return hashes;
}

/// The bits of everything that training changes.
struct Outcome {
  std::vector<double> losses;
  std::vector<uint64_t> gradients;  ///< of the last step
  std::vector<uint64_t> parameters;
  std::vector<uint64_t> buffers;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  for (const double loss : outcome.losses) out << loss << " ";
  const auto sum = [](const std::vector<uint64_t>& hashes) {
    uint64_t all = 0;
    for (const uint64_t hash : hashes) all = all * 31 + hash;
    return all;
  };
  return out << "gradients " << sum(outcome.gradients) << " parameters " << sum(outcome.parameters) << " buffers "
             << sum(outcome.buffers);
}

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name << ", batch " << one.batch << ", size " << one.size;
}

class ZooTraining : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { torch::set_num_threads(1); }
};

class ZooPlanners : public ZooTraining {};

/// Trains one network repeatedly from the same initial state.
class Trial {
 public:
  Trial(const Network& network, Tensors inputs)
      : network_(network), inputs_(std::move(inputs)), start_([&] {
          torch::manual_seed(3);
          return TrainingState(network, torch::kCPU);
        }()) {}

  /// Writes the figures of each step to `steps`, which is empty.
  Outcome run(const StepFunction& step, TrainedSteps& steps) {
    start_.restore(network_);
    Meter meter(torch::kCPU);
    torch::optim::SGD optimizer(network_.parameters(), torch::optim::SGDOptions(0.01));
    for (int i = 0; i < kSteps; ++i) {
      clear_gradients(network_);
      run_step(step, inputs_, meter, steps, &optimizer);
    }
    Outcome outcome;
    outcome.losses = steps.losses;
    Tensors gradients;
    for (const torch::Tensor& parameter : network_.parameters()) gradients.push_back(parameter.grad());
    outcome.gradients = hashes_of(gradients);
    clear_gradients(network_);
    outcome.parameters = hashes_of(network_.parameters());
    outcome.buffers = hashes_of(network_.buffers());
    start_.restore(network_);
    return outcome;
  }

 private:
  const Network& network_;
  Tensors inputs_;
  TrainingState start_;
};

const MeasureOptions kQuick{.warmups = 1, .least_repeats = 1, .most_repeats = 1, .node_ns = 0, .progress = {}};

int64_t store_all_peak_bytes(const MeasuredStep& measured) {
  return predict(measured, make_training_step(measured, store_all(measured.step.graph))).peak_bytes;
}

void expect_within_one_percent(int64_t predicted_bytes, int64_t measured_bytes, const std::string& where) {
  EXPECT_LE(std::abs(static_cast<double>(measured_bytes - predicted_bytes)),
            0.01 * static_cast<double>(predicted_bytes))
      << where << ": predicted " << predicted_bytes << ", measured " << measured_bytes;
}

TEST_P(ZooTraining, KeepsBudgetsAndBits) {
  const Meter meter(torch::kCPU);
  const auto& [name, batch, size, options] = GetParam();
  torch::manual_seed(1);
  const Network network = make_zoo_network(name, options);
  const Tensors inputs = zoo_sample(name, options, batch, size);
  Trial trial(network, inputs);
  TrainedSteps plain_steps;
  const Outcome expected = trial.run(plain_step(network), plain_steps);

  const MeasuredStep measured = measure_step(network, inputs, kQuick);
  const int64_t before_bytes = measured.before_bytes;
  const int64_t most_bytes = store_all_peak_bytes(measured);
  const int64_t least_bytes = smallest_budget_bytes(measured);
  ASSERT_LT(least_bytes, most_bytes);
  for (int k = 0; k < kBudgets; ++k) {
    const int64_t budget_bytes = most_bytes - (most_bytes - least_bytes) * k / (kBudgets - 1);
    const std::string where = "budget " + std::to_string(budget_bytes) + " of " + std::to_string(most_bytes);
    const PlannedStep planned = plan_step(measured, budget_bytes);
    TrainedSteps steps;
    EXPECT_EQ(trial.run(planned.step, steps), expected) << where;
    for (const int64_t peak_bytes : steps.peaks_bytes) {
      EXPECT_LE(before_bytes + peak_bytes, budget_bytes) << where;
      expect_within_one_percent(planned.predicted_peak_bytes - before_bytes, peak_bytes, where);
    }
    std::printf(
        "  %4.0f %% of store-all: predicted %.3f MiB, measured %.3f MiB, time x%.3f (plain training %.3f MiB)\n",
        100.0 * static_cast<double>(budget_bytes - before_bytes) / static_cast<double>(most_bytes - before_bytes),
        static_cast<double>(planned.predicted_peak_bytes - before_bytes) / (1 << 20),
        static_cast<double>(steps.peaks_bytes.back()) / (1 << 20),
        static_cast<double>(*planned.plan.time_ns) / static_cast<double>(planned.plan.base_time_ns),
        static_cast<double>(plain_steps.peaks_bytes.back()) / (1 << 20));
  }
}

TEST_P(ZooPlanners, EveryPlannerIsPredicted) {
  const Meter meter(torch::kCPU);
  const auto& [name, batch, size, options] = GetParam();
  torch::manual_seed(1);
  const Network network = make_zoo_network(name, options);
  const MeasuredStep measured = measure_step(network, zoo_sample(name, options, batch, size), kQuick);
  const int64_t most_bytes = store_all_peak_bytes(measured);
  int plans = 0;
  for (const Planner& planner : planners()) {
    for (const bool reentrant : {false, true}) {
      if (reentrant && !planner.chooses_checkpoints) continue;
      TrainOptions by;
      by.planner = planner.name;
      by.planner_options.reentrant = reentrant;
      const std::string where = by.planner + (reentrant ? ", reentrant" : "");
      try {
        const int64_t budget_bytes = measured.before_bytes + (most_bytes - measured.before_bytes) * 7 / 10;
        const PlannedStep planned =
            plan_step(measured, planner.needs_budget ? std::optional(budget_bytes) : std::nullopt, by);
        ++plans;
        ASSERT_TRUE(planned.tried_peak_bytes);
        expect_within_one_percent(planned.predicted_peak_bytes - measured.before_bytes,
                                  *planned.tried_peak_bytes - measured.before_bytes, where);
      } catch (const NotApplicable&) {
      } catch (const BudgetTooSmall&) {
      }
    }
  }
  EXPECT_GE(plans, 3);
}

/// Measures memory at every point of a step: during each run of the schedule, and after the drops that follow it.
void expect_predicted_at_every_point(const char* name, int64_t batch, int64_t size, const std::vector<int>& checkpoints,
                                     bool reentrant) {
  const Meter meter(torch::kCPU);
  torch::manual_seed(1);
  const Network network = make_zoo_network(name);
  const MeasuredStep measured = measure_step(network, zoo_sample(name, {}, batch, size), kQuick);
  ASSERT_TRUE(measured.problem.chain);
  const TrainingStep step =
      make_training_step(measured, checkpoint_schedule(measured.problem.chain->length(), checkpoints, {reentrant}));
  const Simulation predicted = predict(measured, step);
  const std::vector<Step>& steps = step.schedule().steps;
  const MeasuredMemory memory = measure_memory(step, torch::kCPU, [&] { step(measured.sample).backward(); });
  ASSERT_EQ(memory.after_bytes.size(), steps.size());
  size_t points = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i + 1 < steps.size() && !steps[i + 1].is_run()) continue;
    size_t run = i;
    while (!steps[run].is_run()) --run;
    const std::string where = std::string(name) + " at step " + std::to_string(run);
    expect_within_one_percent(predicted.moment_bytes[run] - measured.before_bytes,
                              memory.moment_bytes[run] - measured.before_bytes, where);
    expect_within_one_percent(predicted.after_bytes[i] - measured.before_bytes,
                              memory.after_bytes[i] - measured.before_bytes, where + ", after it");
    ++points;
  }
  // Each stage up to the last checkpoint runs three times: F, R, B.
  const auto stages = static_cast<size_t>(measured.problem.chain->length());
  EXPECT_EQ(points, 2 * stages + (checkpoints.empty() ? 0 : static_cast<size_t>(checkpoints.back())));
}

TEST(ZooTimeline, OfVgg19With3And11And24) {
  torch::set_num_threads(1);
  expect_predicted_at_every_point("vgg19", 4, 64, {3, 11, 24}, false);
  expect_predicted_at_every_point("vgg19", 4, 64, {3, 11, 24}, true);
}

TEST(ZooTimeline, OfAlexNet) {
  torch::set_num_threads(1);
  expect_predicted_at_every_point("alexnet", 8, 96, {}, false);
  for (const bool reentrant : {false, true}) expect_predicted_at_every_point("alexnet", 8, 96, {3, 6, 9}, reentrant);
}

std::string name_of(const ::testing::TestParamInfo<Case>& one) {
  std::string name = one.param.name;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooTraining,
                         ::testing::ValuesIn(std::getenv("HEADROOM_WHOLE_ZOO") ? cases() : cases_of_families()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Zoo, ZooPlanners, ::testing::ValuesIn(cases_of_families()), name_of);

TEST(ZooTrainingCases, AreAllOfTheZoo) {
  std::vector<std::string> names;
  for (const Case& one : cases()) names.emplace_back(one.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(zoo_names().begin(), zoo_names().end()));
}

}  // namespace
}  // namespace headroom::internal
