#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// The rule that a schedule breaks, and the step that breaks it; where an output is missing at the end, the step is one
/// past the last.
struct ScheduleError {
  size_t step = 0;
  std::string message;
};

/// The peak, the time and the memory of a schedule, by the rules of docs/formats.md.
///
/// A run's moment is the bytes live before it, plus every newly allocated output, plus the workspace. After the run,
/// the workspace and the copies that its outputs replace are freed. memory.h has all rules, with an example of holds.
///
///     steps          run f    run b    drop a
///     moment_bytes   x+a      x+a+g    x+a+g     during the step; of a drop, the bytes before it
///     after_bytes    x+a      x+a+g    x+g
struct Simulation {
  /// The first fault. If there is one, the lists end before its step, and the peak is meaningless.
  std::optional<ScheduleError> error;
  int64_t peak_bytes = 0;             ///< Largest moment of a run, or the resident bytes if those are more.
  int64_t time_ns = 0;                ///< Sum over the runs.
  std::optional<size_t> peak_step;    ///< First run with the largest moment.
  std::vector<int64_t> moment_bytes;  ///< Bytes during each step.
  std::vector<int64_t> after_bytes;   ///< Bytes after each step.
};

/// Simulates a schedule. Takes O(steps + ids read, written and held). Throws TooLarge where a sum of bytes or times
/// does not fit int64.
Simulation simulate(const Graph& graph, const Schedule& schedule);

/// Returns the result of simulate(), or none where a sum does not fit int64.
std::optional<Simulation> find_simulation(const Graph& graph, const Schedule& schedule);

/// Returns the first rule that the schedule breaks, or none.
std::optional<ScheduleError> verify(const Graph& graph, const Schedule& schedule);

/// Returns the values that are live during a step of a valid schedule, ascending: resident values, values with a live
/// copy before the step other than the one that the step overwrites, and values that the step writes.
std::vector<ValueId> alive_during(const Graph& graph, const Schedule& schedule, size_t step);

}  // namespace headroom
