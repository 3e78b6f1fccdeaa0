#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/cli/print.h"
#include "headroom/report/data.h"
#include "headroom/train/comparison.h"

namespace headroom::internal::cli {

/// What `headroom-train` found. Bytes are of the whole device.
struct TrainReport {
  std::string model;
  std::string device;
  std::string torch_version;
  int64_t batch = 0;
  std::string sample;  ///< one item of a batch: "224x224", "64 tokens"
  int64_t parameters = 0;
  size_t nodes = 0;
  size_t blocks = 0;  ///< nodes of the network joined to a chain
  bool is_chain = false;
  int64_t before_bytes = 0;
  int64_t store_all_peak_bytes = 0;
  int64_t store_all_time_ns = 0;
  std::optional<int64_t> budget_bytes;
  std::optional<std::string> planner;  ///< none where the checkpoints were given
  std::optional<std::string> status;
  std::optional<std::vector<int>> checkpoints;
  double solve_ms = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t predicted_time_ns = 0;
  Comparison training;
  std::string why_not_plain;

  int64_t measured_peak_bytes() const { return std::ranges::max(training.planned.peaks_bytes); }
  /// Predicted less measured peak, as a share of what the step adds to what was there before it.
  double error() const;
  /// Of the predicted time, what goes into running nodes again.
  double recomputation() const;
};

Json to_json(const TrainReport& report);

/// A table for people.
std::string to_text(const TrainReport& report);

/// What was measured, as the report page shows it: by run of the schedule.
ReportMeasurement report_measurement(const TrainReport& report, const Schedule& schedule);

/// chrome_trace() with measured memory as a second counter and, under "steps", both by run: the memory during it and
/// after the drops that follow it. `nodes` are the names of the nodes that ops run. `simulation` must be in the bytes
/// of the device.
Json train_trace(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                 const std::vector<std::string>& nodes, const MeasuredMemory& measured);

}  // namespace headroom::internal::cli
