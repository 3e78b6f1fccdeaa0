#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/cli/options.h"
#include "headroom/train/comparison.h"
#include "headroom/zoo/zoo.h"

namespace headroom::internal::cli {

inline constexpr const char* kTrainProgram = "headroom-train";

/// What `headroom-train` is told.
struct TrainArguments : PlanArguments {
  std::string model;
  std::string device = "cpu";
  int64_t batch = 0;
  std::optional<int64_t> image;
  ZooOptions network;
  std::vector<std::string> text_files;
  std::vector<int> checkpoints;  ///< empty: a planner chooses
  bool join_to_chain = false;
  uint64_t seed = 0;
  ComparisonOptions training;
  std::optional<std::string> trace_file;
  std::optional<std::string> report_file;
  std::optional<std::string> graph_file;
  std::optional<std::string> schedule_file;
  bool json = false;
  bool chart = true;
};

/// Measures, plans and trains a network of the zoo as docs/training.md says; the result is on standard output. kNoPlan,
/// and a message that says why, where the budget cannot be met. Throws InvalidInput for bad input, std::runtime_error
/// where a node fails on its inputs.
ExitStatus run_train(const TrainArguments& arguments);

}  // namespace headroom::internal::cli
