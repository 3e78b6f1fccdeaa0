#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "headroom/plan/auto/search/timeline.h"

namespace headroom::internal {

/// A plan as a sequence of runs, with its simulated peak in bytes and its time in nanoseconds.
struct JudgedRuns {
  std::vector<int32_t> runs = {};
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
};

/// Returns the runs of a schedule.
std::vector<int32_t> runs_of(const Schedule& schedule);

/// Returns a sequence of runs with its peak and its time.
JudgedRuns judge(const FlatGraph& flat, const std::vector<int32_t>& runs);

/// Returns whether a plan is faster than another, or as fast with a smaller peak.
inline bool is_better(const JudgedRuns& one, const JudgedRuns& other) {
  return std::pair(one.time_ns, one.peak_bytes) < std::pair(other.time_ns, other.peak_bytes);
}

/// Returns the time that a descent may reach when its plan is to beat one of `time_ns`: 2 % more, because pruning then
/// removes runs.
inline int64_t slightly_more(int64_t time_ns) {
  int64_t sum_ns = 0;
  return __builtin_add_overflow(time_ns, time_ns / 50, &sum_ns) ? time_ns : sum_ns;
}

/// Plans of which none dominates another: the peak ascends, and the time strictly descends.
using Front = std::vector<JudgedRuns>;

/// Returns the Pareto front of some plans for peak and time.
Front undominated(std::vector<JudgedRuns> plans);

/// Returns the plan of a front for a budget, or the front's end where there is none.
Front::const_iterator find_within(const Front& front, int64_t budget_bytes);

}  // namespace headroom::internal
