#include "headroom/runtime/frame.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <typeinfo>

#include "headroom/core/quote.h"
#include "headroom/core/simulate.h"

namespace headroom::internal {

FramePlan::FramePlan(const Graph& of, Schedule by, const std::vector<int>& kernel_of_op, size_t kernels)
    : graph(of), schedule(std::move(by)), runs(kernels), replays(kernels) {
  if (const std::optional<ScheduleError> error = verify(graph, schedule))
    throw InvalidInput("the schedule is invalid at step " + std::to_string(error->step) + ": " + error->message);
  for (const Step& step : schedule.steps) {
    const int kernel = step.is_run() ? kernel_of_op[index(step.op())] : -1;
    kernel_of_step.push_back(kernel);
    runs_before.push_back(kernel < 0 ? 0 : runs[static_cast<size_t>(kernel)]++);
  }
}

Frame::Frame(std::shared_ptr<const FramePlan> plan, torch::Device device, std::shared_ptr<ArenaRun> arena_run)
    : plan_(std::move(plan)), device_(device), arena_run_(std::move(arena_run)) {
  // The copies are allocated here, so that they are live for the whole step, and filled when the kernel runs.
  for (size_t kernel = 0; kernel < plan_->runs.size(); ++kernel)
    if (plan_->runs[kernel] > 1)
      for (const torch::Tensor& buffer : plan_->replays[kernel].buffers)
        before_[kernel].buffers.push_back(copy_memory(buffer));
}

void Frame::run_to(size_t end) {
  try {
    for (; next_ < end; ++next_) {
      const Step& step = plan_->schedule.steps[next_];
      if (!step.is_run()) {
        drop(step.value());
      } else if (plan_->kernel_of_step[next_] < 0) {
        run(step);
      } else {
        run_kernel(step, static_cast<size_t>(plan_->kernel_of_step[next_]));
      }
      if (plan_->observer) plan_->observer(next_);
    }
  } catch (c10::OutOfMemoryError& error) {
    error.add_context("the plan expected " + expected_to_be_live());
    throw;
  }
}

void Frame::run_kernel(const Step& step, size_t kernel) {
  const Replay& replay = plan_->replays[kernel];
  const bool replays = plan_->runs[kernel] > 1 && (replay.may_draw || !replay.buffers.empty());
  Before* const before = replays ? &before_[kernel] : nullptr;
  std::unique_lock<std::recursive_mutex> random_lock;
  if (replay.draws || (replays && before->random)) random_lock = lock_random();
  if (!replays) {
    run(step);
    return;
  }
  if (!is_again()) {
    std::optional<RandomState> random;
    if (replay.may_draw) random = RandomState::now(device_, replay.generators);
    for (size_t i = 0; i < replay.buffers.size(); ++i) {
      copy_memory_to(before->buffers[i], replay.buffers[i]);
      before->versions.push_back(version_of(replay.buffers[i]));
    }
    run(step);
    // A kernel may draw random numbers in this step even if it did not when it was measured.
    if (random && (replay.draws || !(*random == RandomState::now(device_, replay.generators))))
      before->random = std::move(random);
    return;
  }
  // A run changes the copies.
  Tensors then = before->buffers;
  if (plan_->runs_before[next_] + 1 < plan_->runs[kernel])
    for (torch::Tensor& copy : then) copy = copy.clone();
  EarlierState earlier(device_, before->random, replay.buffers, then, before->versions, replay.generators);
  run(step);
  earlier.end();
}

std::string Frame::expected_to_be_live() const {
  const Graph& graph = plan_->graph;
  std::vector<ValueId> live = alive_during(graph, plan_->schedule, next_);
  std::ranges::stable_sort(live, std::ranges::greater(), [&](ValueId id) { return graph.value(id).bytes; });
  const Step& step = plan_->schedule.steps[next_];
  int64_t bytes = step.is_run() ? graph.op(step.op()).workspace_bytes : 0;
  for (const ValueId id : live) bytes += graph.value(id).bytes;
  std::string text = std::to_string(bytes) + " bytes, the largest of them";
  for (size_t i = 0; i < std::min<size_t>(live.size(), 5); ++i)
    text += (i == 0 ? " " : ", ") + quote(graph.value(live[i]).name) + " (" +
            std::to_string(graph.value(live[i]).bytes) + ")";
  return text;
}

void rethrow_with(const std::string& context, const std::function<void(const std::string& context)>& annotate) {
  try {
    throw;
  } catch (c10::Error& error) {
    // The CPU's allocator has no exception type of its own for running out of memory.
    if (typeid(error) == typeid(c10::Error))
      TORCH_CHECK_WITH(OutOfMemoryError, error.msg().find("can't allocate memory") == std::string::npos,
                       error.what_without_backtrace(), " (", context, ")");
    error.add_context(context);
    throw;
  } catch (const std::exception& error) {
    if (typeid(error) == typeid(std::runtime_error)) throw std::runtime_error(context + ": " + error.what());
    if (annotate) annotate(context);
    throw;
  }
}

}  // namespace headroom::internal
