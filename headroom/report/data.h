#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/plan/planners.h"

namespace headroom::internal {

/// The plans of all planners for the same training step.
struct ReportFronts {
  struct Front {
    std::string planner;
    std::vector<CurvePoint> points;  ///< by ascending peak
  };
  struct LeftOut {
    std::string planner;
    std::string reason;
  };
  std::vector<Front> fronts;
  std::vector<CurvePoint> bounds;  ///< lower bounds on the time of schedules with at most this peak, by ascending peak
  std::vector<LeftOut> left_out;
};

/// Plans with every planner that takes this problem and finishes within seconds. Planners that would take longer on a
/// large problem are left out. `limits` apply to each of them.
ReportFronts make_report_fronts(const Problem& problem, const PlanLimits& limits);

/// Measured memory and time of the schedule. Each list has one entry per run of the schedule.
struct ReportMeasurement {
  std::vector<int64_t> moment_bytes;
  std::vector<int64_t> after_bytes;                        ///< after the drops that follow each run
  std::optional<int64_t> peak_bytes = std::nullopt;        ///< peak of training steps; by default the largest moment
  std::optional<int64_t> step_ns = std::nullopt;           ///< time of a training step by the schedule
  std::optional<int64_t> plain_step_ns = std::nullopt;     ///< time of a step of plain training
  std::optional<int64_t> plain_peak_bytes = std::nullopt;  ///< peak of a step of plain training
  std::optional<bool> identical_to_plain = std::nullopt;   ///< whether the gradients are bit-identical
};

/// The input of a report. The schedule must be a valid schedule of the graph.
struct ReportInput {
  const Graph& graph;
  const Schedule& schedule;
  std::optional<int64_t> budget_bytes = std::nullopt;
  std::optional<std::string> planner = std::nullopt;  ///< planner of the schedule, if known
  std::optional<std::string> status = std::nullopt;   ///< status of its plan, if known
  std::vector<std::string> modules = {};              ///< the module path of each op, which may be empty; or no entries
  std::vector<std::string> sources = {};              ///< the source line of each op, which may be empty; or no entries
  std::optional<ReportMeasurement> measured = std::nullopt;
  ReportFronts fronts = {};
};

/// Returns the stage name of each op of the chain's graph, as `modules` of a report.
std::vector<std::string> chain_modules(const Chain& chain);

/// Writes the input as `headroom.report/1`, the JSON that docs/report.md defines. Throws InvalidInput if the schedule is
/// invalid, a list has the wrong length, or a name is not UTF-8.
std::string write_report_data(const ReportInput& input);

}  // namespace headroom::internal
