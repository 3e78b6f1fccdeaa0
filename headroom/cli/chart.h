#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "headroom/core/simulate.h"

namespace headroom::internal::cli {

struct ChartStyle {
  size_t columns = 80;
  bool blocks = false;  ///< whether to draw with block characters instead of ASCII

  /// Returns the width of the terminal on standard output (80 columns without one), and block characters if the
  /// environment's locale is UTF-8.
  static ChartStyle of_terminal();
};

/// Draws memory through a step of a valid schedule, a few lines high. A column stands for one or more consecutive runs and
/// is as high as their largest moment; the axis marks forward, backward and recomputation. The budget is a horizontal
/// line. Returns an empty text for a schedule without runs.
std::string memory_chart(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                         std::optional<int64_t> budget_bytes, const ChartStyle& style);

}  // namespace headroom::internal::cli
