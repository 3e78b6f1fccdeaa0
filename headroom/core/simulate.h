#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"

namespace headroom {

/// What a schedule breaks, and at which step (one past the last where the end of the step is at fault).
struct ScheduleError {
  size_t step = 0;
  std::string message;
};

/// What a schedule costs, in the rules of docs/formats.md.
///
/// A run's moment is: everything in memory before it, plus every output allocated anew, plus the workspace.
/// Then the workspace goes, and so do the copies that its outputs replace.
///
///     steps          run f    run b    drop a
///     moment_bytes   x+a      x+a+g    x+a+g     during the step; of a drop, what was there before it
///     after_bytes    x+a      x+a+g    x+g
///
/// Each run makes a new *copy* of what it writes. A copy counts until its value has dropped or replaced it and
/// no copy that still counts holds it; a copy holds the copies, of the values its value lists under `holds`,
/// that its run read or wrote.
struct Simulation {
  std::optional<ScheduleError> error;  ///< set: the rest is what happened before that step
  int64_t peak_bytes = 0;              ///< largest moment of a run, at least what is resident
  int64_t time_ns = 0;                 ///< sum over the runs
  std::optional<size_t> peak_step;     ///< first run with the largest moment
  std::vector<int64_t> moment_bytes;   ///< one per step
  std::vector<int64_t> after_bytes;    ///< one per step
};

/// O(steps + ids read, written and held). Throws TooLarge where a sum of bytes or times does not fit int64.
Simulation simulate(const Graph& graph, const Schedule& schedule);

/// simulate(), or none where a sum does not fit.
std::optional<Simulation> find_simulation(const Graph& graph, const Schedule& schedule);

/// The first thing wrong with the schedule, or nothing.
std::optional<ScheduleError> verify(const Graph& graph, const Schedule& schedule);

/// The values that have memory during a step of a valid schedule, ascending: all that is resident, alive or held
/// when it starts, and what it writes, without the input that it runs over.
std::vector<ValueId> alive_during(const Graph& graph, const Schedule& schedule, size_t step);

}  // namespace headroom
