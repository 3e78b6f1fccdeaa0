#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Thrown where a planner does not accept a graph or chain; the message says why.
class NotApplicable : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

/// The status of a plan. What is proved is proved among the schedules that the planner considers: for `auto` and
/// `exhaustive` those of PlanLimits::keep_order, for most others schedules of a certain kind.
enum class PlanStatus : uint8_t {
  kOptimal,     ///< The plan is proved the best of the kind of schedule that the planner considers.
  kFeasible,    ///< The plan is not proved the best.
  kInfeasible,  ///< It is proved that no schedule of the kind that the planner considers fits the budget.
  kNotFound,    ///< No plan was found, and it is not proved that there is none.
  kTimeout,     ///< A limit was reached; the plan is the best so far, if any.
};

/// How long `auto` searches. A higher effort is never slower at any budget; high takes about ten times as long.
enum class Effort : uint8_t { kLow, kNormal, kHigh };

/// Limits of a planner: which schedules it considers, and how much work it may do. They count work, not seconds, so that
/// results are reproducible.
struct PlanLimits {
  int64_t max_states = 1'000'000;  ///< Maximum number of states of searches that could be exponential.
  Effort effort = Effort::kNormal;
  int threads = 0;  ///< Number of threads; 0 for as many as the machine has. It never changes the result.
  /// Whether `auto` and `exhaustive` consider only schedules that keep the base order of first runs (docs/formats.md).
  /// Otherwise they consider every valid schedule. All other planners keep the base order.
  bool keep_order = false;
};

struct PlanRequest {
  /// Maximum peak of the whole step, resident values included; none for no limit.
  std::optional<int64_t> budget_bytes;
  PlanLimits limits;
};

/// A planner's result. It has no peak and no time, because simulate() computes them.
struct PlanResult {
  PlanStatus status = PlanStatus::kNotFound;
  std::optional<Schedule> schedule;
  int64_t lower_bound_ns = 0;  ///< Lower bound on the time of all schedules of PlanLimits::keep_order in the budget.
  int64_t smallest_budget_bytes = -1;  ///< Smallest budget for which this planner knows a plan; -1 if not computed.
  /// Of planners that choose checkpoints: stages whose outputs are kept, 1..L-1, ascending.
  std::vector<int> checkpoints;
};

/// A point of a front of plans.
struct CurvePoint {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  bool operator==(const CurvePoint&) const = default;
};

}  // namespace headroom
