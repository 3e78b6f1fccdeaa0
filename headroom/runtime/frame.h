#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/core/schedule.h"
#include "headroom/runtime/arena.h"
#include "headroom/runtime/state.h"

namespace headroom::internal {

/// What a kernel, a node's forward or an operator's call, uses besides its arguments, and what its reruns therefore
/// replay.
struct Replay {
  bool draws = false;     ///< Whether it is known to draw random numbers.
  bool may_draw = false;  ///< Whether it may draw; if it is not known to, a step finds out in the first run.
  std::vector<at::Generator> generators = {};  ///< The user's own generators from which it draws.
  Tensors buffers = {};                        ///< Buffers that the kernels of the step change.
};

/// The data that the frames of a step share: how the schedule runs, which kernels run again, and what they replay.
struct FramePlan {
  /// Makes the plan of a schedule. `graph` must outlive it. `kernel_of_op` has the kernel that an op runs; a negative
  /// number stands for an op without one. Throws InvalidInput if the schedule is invalid for the graph.
  FramePlan(const Graph& of, Schedule by, const std::vector<int>& kernel_of_op, size_t kernels);

  const Graph& graph;
  Schedule schedule;
  size_t forward_end = 0;           ///< Number of steps of the forward half; the executor sets it.
  std::vector<int> kernel_of_step;  ///< By step of the schedule: the kernel that it runs; negative for none.
  std::vector<int> runs_before;     ///< By step of the schedule: how often its kernel has run before.
  std::vector<int> runs;            ///< By kernel: number of runs.
  std::vector<Replay> replays;      ///< By kernel; the executor fills it in.
  /// Called after each step of the schedule with its position. May be empty.
  std::function<void(size_t step)> observer;
};

/// A step in flight: its position in the schedule, and what reruns replay. An executor derives from it, keeps the
/// step's tensors, and says how an op runs and how a value is freed.
///
/// Running is the same for all executors:
/// - The steps of the schedule run in order, the forward half first. Values are freed exactly where the plan drops them.
/// - A kernel that runs again sees the random numbers and buffers of its first run; their later state is restored
///   after it. No other step draws from the default generators while a kernel that draws runs.
/// - An error keeps its type. Where memory ran out, it also says what the plan expected to be live.
class Frame {
 public:
  /// `arena_run` is what its halves run in; null for none.
  Frame(std::shared_ptr<const FramePlan> plan, torch::Device device, std::shared_ptr<ArenaRun> arena_run);
  virtual ~Frame() = default;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  void run_forward() { run_to(plan_->forward_end); }
  void run_backward() { run_to(plan_->schedule.steps.size()); }

  const std::shared_ptr<ArenaRun>& arena_run() const { return arena_run_; }

 protected:
  /// Runs the op of a step, which is at position().
  virtual void run(const Step& step) = 0;
  virtual void drop(ValueId value) = 0;

  size_t position() const { return next_; }
  /// Returns whether the kernel of the step at position() has run before.
  bool is_again() const { return plan_->runs_before[next_] > 0; }

 private:
  /// State before the first run of a kernel that replays it.
  struct Before {
    std::optional<RandomState> random;
    Tensors buffers;  ///< Copies of the memory of the buffers.
    std::vector<int64_t> versions;
  };

  void run_to(size_t end);
  void run_kernel(const Step& step, size_t kernel);
  std::string expected_to_be_live() const;

  std::shared_ptr<const FramePlan> plan_;
  torch::Device device_;
  std::shared_ptr<ArenaRun> arena_run_;
  std::unordered_map<size_t, Before> before_;  ///< By kernel.
  size_t next_ = 0;
};

/// Returns the frame that waits for its backward, and keeps none, so that the step is freed at the end of backward, also
/// where that throws. Throws for a second backward, and for one that is itself recorded (`is_recorded`).
template <typename F>
std::shared_ptr<F> take_frame(std::shared_ptr<F>& waiting, bool is_recorded) {
  std::shared_ptr<F> frame = std::exchange(waiting, nullptr);
  if (!frame || is_recorded)
    throw std::runtime_error(
        "headroom: a step's backward runs once and cannot itself be differentiated (retain_graph, create_graph and "
        "double backward are not supported)");
  return frame;
}

/// Throws the exception that is being handled, with `context` added: what failed, such as "forward of node 'a' on [2]".
/// It keeps its type; lack of memory on the CPU, which is a c10::Error, becomes a c10::OutOfMemoryError as on other
/// devices. The context becomes part of the text of a c10::Error and of a std::runtime_error. Other exceptions are
/// passed to `annotate`, unless it is empty, which adds the context to those of another language.
[[noreturn]] void rethrow_with(const std::string& context,
                               const std::function<void(const std::string& context)>& annotate);

}  // namespace headroom::internal
