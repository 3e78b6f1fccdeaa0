#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// A planner does not take this graph or chain; the message says why.
class NotApplicable : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

/// What is proved is proved among schedules that keep the base order of first runs (docs/formats.md), as all planners do,
/// and for most planners among those of a certain kind.
enum class PlanStatus : uint8_t {
  kOptimal,     ///< proved the best of the kind of schedule that the planner looks at
  kFeasible,    ///< a plan, not proved the best
  kInfeasible,  ///< proved: no schedule of the kind that the planner looks at fits the budget
  kNotFound,    ///< no plan found, not proved that there is none
  kTimeout,     ///< a limit was reached: the best plan so far, if any
};

/// How long `auto` searches. A higher effort is never slower at any budget; high takes about ten times as long.
enum class Effort : uint8_t { kLow, kNormal, kHigh };

/// Limits count work, not seconds, so that results repeat.
struct PlanLimits {
  int64_t max_states = 1'000'000;  ///< of searches that could be exponential
  Effort effort = Effort::kNormal;
  int threads = 0;  ///< 0: as many as the machine has. Never changes the result.
};

struct PlanRequest {
  std::optional<int64_t> budget_bytes;  ///< largest peak of the whole step, resident values included; none: no limit
  PlanLimits limits;
};

/// Peak and time are not here: simulate() says them.
struct PlanResult {
  PlanStatus status = PlanStatus::kNotFound;
  std::optional<Schedule> schedule;
  int64_t lower_bound_ns = 0;          ///< proved for all schedules within the budget that keep the base order
  int64_t smallest_budget_bytes = -1;  ///< the least budget for which this planner knows a plan; -1: not computed
  std::vector<int> checkpoints;        ///< of subset planners: stages whose outputs are kept, 1..L-1, ascending
};

/// A point of a front of plans.
struct CurvePoint {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  bool operator==(const CurvePoint&) const = default;
};

}  // namespace headroom
