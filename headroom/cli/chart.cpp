#include "headroom/cli/chart.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "headroom/core/lifetimes.h"
#include "headroom/io/size.h"

namespace headroom::internal::cli {
namespace {

constexpr size_t kRows = 7;
constexpr size_t kMinColumns = 40;
constexpr size_t kMaxColumns = 120;

/// One or more consecutive runs of the schedule.
struct Column {
  int64_t bytes = 0;        ///< largest moment of the runs
  bool backward = false;    ///< phase of the first run
  bool recomputed = false;  ///< whether at least half of the runs are reruns
};

std::vector<Column> columns_of(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                               size_t count) {
  const std::vector<uint8_t> reruns = find_reruns(graph, schedule);
  std::vector<size_t> runs;
  for (size_t i = 0; i < schedule.steps.size(); ++i)
    if (schedule.steps[i].is_run()) runs.push_back(i);
  if (runs.empty()) return {};
  std::vector<Column> columns(count);  // With fewer runs than columns, a run has several columns.
  for (size_t c = 0; c < count; ++c) {
    const size_t first = c * runs.size() / count;
    const size_t last = std::max(first + 1, (c + 1) * runs.size() / count);
    size_t recomputed = 0;
    for (size_t r = first; r < last; ++r) {
      columns[c].bytes = std::max(columns[c].bytes, simulation.moment_bytes[runs[r]]);
      recomputed += reruns[runs[r]];
    }
    columns[c].backward = graph.op(schedule.steps[runs[first]].op()).phase == Phase::kBackward;
    columns[c].recomputed = 2 * recomputed >= last - first && recomputed > 0;
  }
  return columns;
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* locale = std::getenv(name);
    if (locale == nullptr || *locale == '\0') continue;
    std::string text(locale);
    std::ranges::transform(text, text.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

struct Letters {
  std::array<std::string_view, 9> fill;  ///< by filled eighths of a row
  std::string_view budget;
  std::string_view side;
  std::string_view forward;
  std::string_view backward;
  std::string_view recomputed;
};

constexpr Letters kBlocks = {{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, "┄", "│", "─", "═", "▒"};
constexpr Letters kAscii = {{" ", " ", " ", ".", ".", ":", ":", "#", "#"}, "-", "|", "-", "=", "r"};

std::string padded(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

ChartStyle ChartStyle::of_terminal() {
  ChartStyle style;
  style.blocks = is_utf8_locale();
  winsize size{};
  if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.columns = std::clamp<size_t>(size.ws_col, kMinColumns, kMaxColumns);
  return style;
}

std::string memory_chart(const Graph& graph, const Schedule& schedule, const Simulation& simulation,
                         std::optional<int64_t> budget_bytes, const ChartStyle& style) {
  const Letters& letters = style.blocks ? kBlocks : kAscii;
  const int64_t top_bytes = std::max({simulation.peak_bytes, budget_bytes.value_or(0), int64_t{1}});
  const std::string top_label = format_bytes(top_bytes);
  const size_t margin = std::max<size_t>(top_label.size(), 6);
  const std::vector<Column> columns = columns_of(graph, schedule, simulation, style.columns - margin - 3);
  if (columns.empty()) return "";
  const auto eighths = [&](int64_t bytes) {
    const double share = static_cast<double>(std::max<int64_t>(bytes, 0)) / static_cast<double>(top_bytes);
    return static_cast<size_t>(std::llround(share * 8 * static_cast<double>(kRows)));
  };
  const size_t budget_row = budget_bytes ? (std::max<size_t>(eighths(*budget_bytes), 1) - 1) / 8 : kRows;

  std::string text;
  for (size_t row = kRows; row-- > 0;) {
    std::string line = padded(row + 1 == kRows ? top_label : "", margin) + " " + std::string(letters.side);
    std::string blank;  // Pending blanks, written before the next letter so that no line ends in blanks.
    for (const Column& column : columns) {
      const size_t height = eighths(column.bytes);
      const size_t filled = std::min<size_t>(height - std::min(height, 8 * row), 8);
      const std::string_view letter = filled == 0 && row == budget_row ? letters.budget : letters.fill.at(filled);
      if (letter == " ") {
        blank += ' ';
        continue;
      }
      line += blank;
      line += letter;
      blank.clear();
    }
    text += line + "\n";
  }
  bool any_recomputed = false;
  text += padded("0 B", margin) + "  ";
  for (const Column& column : columns) {
    any_recomputed |= column.recomputed;
    text += column.recomputed ? letters.recomputed : column.backward ? letters.backward : letters.forward;
  }
  text += "\n" + std::string(margin + 2, ' ') + std::string(letters.forward) + " forward  " +
          std::string(letters.backward) + " backward";
  if (any_recomputed) text += "  " + std::string(letters.recomputed) + " recomputed";
  if (budget_bytes) text += "  " + std::string(letters.budget) + " budget";
  return text + "\n";
}

}  // namespace headroom::internal::cli
