#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/schedule.h"
#include "headroom/plan/planners.h"

namespace headroom {

/// What other plans of the same training step take.
struct ReportFronts {
  struct Front {
    std::string planner;
    std::vector<CurvePoint> points;  ///< smallest peak first
  };
  struct LeftOut {
    std::string planner;
    std::string why;
  };
  std::vector<Front> fronts;
  std::vector<CurvePoint> bounds;  ///< no schedule with at most this peak is faster; smallest peak first
  std::vector<LeftOut> left_out;
};

/// The fronts of all planners that take this problem and are done with it in seconds: of large ones only those that are.
/// `limits` are of `auto`.
ReportFronts make_report_fronts(const Problem& problem, const PlanLimits& limits);

/// What was measured when the schedule ran. Lists have one entry for each run of the schedule.
struct ReportMeasurement {
  std::vector<int64_t> moment_bytes;
  std::vector<int64_t> after_bytes;                        ///< after the drops that follow the run
  std::optional<int64_t> peak_bytes = std::nullopt;        ///< of whole steps of training; none: the largest moment
  std::optional<int64_t> step_ns = std::nullopt;           ///< of a step of training by the schedule
  std::optional<int64_t> plain_step_ns = std::nullopt;     ///< of a step of plain training
  std::optional<int64_t> plain_peak_bytes = std::nullopt;  ///< of a step of plain training
  std::optional<bool> identical_to_plain = std::nullopt;   ///< gradients, bit for bit
};

/// What a report is about. The schedule is a valid one of the graph.
struct ReportInput {
  const Graph& graph;
  const Schedule& schedule;
  std::optional<int64_t> budget_bytes = std::nullopt;
  std::optional<std::string> planner = std::nullopt;  ///< that made the schedule, if it is known
  std::optional<std::string> status = std::nullopt;   ///< of its plan
  std::vector<std::string> modules = {};  ///< by op: the path of the module it is of, or empty; may be left out
  std::vector<std::string> sources = {};  ///< by op: the line of source it is of, or empty; may be left out
  std::optional<ReportMeasurement> measured = std::nullopt;
  ReportFronts fronts = {};
};

/// By op of the chain's graph, the name of its stage: the modules of a report.
std::vector<std::string> chain_modules(const Chain& chain);

/// The input as `headroom.report/1`, the JSON that docs/report.md defines. Throws InvalidInput where the schedule is not
/// valid, a list has not the length it must have, or a name is not UTF-8.
std::string write_report_data(const ReportInput& input);

}  // namespace headroom
