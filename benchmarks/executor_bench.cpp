// What the executor itself costs: plain LibTorch training against the executor by store-all, step by step in turn, so that
// both see the same machine. Takes the number of turns.
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "headroom/runtime/train.h"
#include "headroom/train/trainer.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal {
namespace {

struct Case {
  const char* name;
  int64_t batch;
  int64_t size;
};

constexpr std::array<Case, 6> kCases = {{{"resnet50", 8, 64},
                                         {"densenet121", 8, 64},
                                         {"densenet121", 4, 128},
                                         {"vgg11", 2, 96},
                                         {"unet", 1, 96},
                                         {"gpt-tiny", 32, 64}}};

/// Of the processor: with one thread that is the time of the step, less what others have of the machine.
template <typename Step>
double time_ms(const MeasuredStep& measured, const Step& step) {
  clear_gradients(measured.measured.network);
  const std::clock_t start = std::clock();
  step(measured.sample).backward();
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

void compare(const Case& one, int turns) {
  torch::manual_seed(1);
  const Network network = make_zoo_network(one.name);
  const MeasuredStep measured = measure_step(network, zoo_sample(one.name, {}, one.batch, one.size));
  const TrainingStep step = make_training_step(measured, store_all(measured.step.graph));
  const StepFunction plainly = plain_step(network);
  std::vector<double> plain_ms;
  std::vector<double> executor_ms;
  std::vector<double> ratios;
  for (int i = -2; i < turns; ++i) {
    // Each goes first every other turn.
    double of_plain = i % 2 == 0 ? time_ms(measured, plainly) : 0;
    const double of_executor = time_ms(measured, step);
    if (i % 2 != 0) of_plain = time_ms(measured, plainly);
    if (i < 0) continue;
    plain_ms.push_back(of_plain);
    executor_ms.push_back(of_executor);
    ratios.push_back(of_executor / of_plain);
  }
  std::printf(
      "%-12s batch %3ld size %3ld: plain %8.2f ms, store-all by the executor %8.2f ms: fastest x%.3f, median x%.3f of "
      "%d\n",
      one.name, static_cast<long>(one.batch), static_cast<long>(one.size), std::ranges::min(plain_ms),
      std::ranges::min(executor_ms), std::ranges::min(executor_ms) / std::ranges::min(plain_ms), median(ratios), turns);
}

}  // namespace
}  // namespace headroom::internal

int main(int argc, char** argv) {
  torch::set_num_threads(1);  // more would mostly measure who else is on the machine
  const int turns = argc > 1 ? std::atoi(argv[1]) : 15;
  for (const headroom::internal::Case& one : headroom::internal::kCases) headroom::internal::compare(one, turns);
}
