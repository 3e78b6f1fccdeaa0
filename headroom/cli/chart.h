#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "headroom/core/simulate.h"

namespace headroom::cli {

struct ChartStyle {
  size_t columns = 80;
  bool blocks = false;  ///< block characters, else ASCII

  /// As wide as the terminal that standard output is, 80 columns elsewhere; block characters where the locale of the
  /// environment is UTF-8.
  static ChartStyle of_terminal();
};

/// Memory through a step of a valid schedule, a few lines high: the largest moment of the runs that a column stands for,
/// the budget as a line where nothing is higher, and below it which of them are forward, backward and recomputation.
/// Empty where nothing runs.
std::string memory_chart(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                         std::optional<int64_t> budget_bytes, const ChartStyle& style);

}  // namespace headroom::cli
