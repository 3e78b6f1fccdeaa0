#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// The rule that a schedule breaks, and at which step: one past the last where an output is missing at the end.
struct ScheduleError {
  size_t step = 0;
  std::string message;
};

/// What a schedule costs, in the rules of docs/formats.md.
///
/// A run's moment is everything in memory before it, plus every output allocated anew, plus the workspace. After it the
/// workspace and the copies that its outputs replace are freed. memory.h has all rules, with an example of holds.
///
///     steps          run f    run b    drop a
///     moment_bytes   x+a      x+a+g    x+a+g     during the step; of a drop, the bytes before it
///     after_bytes    x+a      x+a+g    x+g
struct Simulation {
  std::optional<ScheduleError> error;  ///< where set, the lists end before that step, and the peak means nothing
  int64_t peak_bytes = 0;              ///< largest moment of a run, at least what is resident
  int64_t time_ns = 0;                 ///< sum over the runs
  std::optional<size_t> peak_step;     ///< first run with the largest moment
  std::vector<int64_t> moment_bytes;   ///< one per step
  std::vector<int64_t> after_bytes;    ///< one per step
};

/// O(steps + ids read, written and held). Throws TooLarge where a sum of bytes or times does not fit int64.
Simulation simulate(const Graph& graph, const Schedule& schedule);

/// Returns what simulate() does, or none where a sum does not fit.
std::optional<Simulation> find_simulation(const Graph& graph, const Schedule& schedule);

/// Returns the first rule that the schedule breaks, or none.
std::optional<ScheduleError> verify(const Graph& graph, const Schedule& schedule);

/// Returns the values of which a copy is in memory during a step of a valid schedule, ascending: those that are resident,
/// or have a live copy before it other than the one that it overwrites, and those that it writes.
std::vector<ValueId> alive_during(const Graph& graph, const Schedule& schedule, size_t step);

}  // namespace headroom
