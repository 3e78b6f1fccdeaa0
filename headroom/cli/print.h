#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"

namespace headroom::internal::cli {

using Json = nlohmann::ordered_json;

/// Returns the object that `plan --json` prints.
Json to_json(const Plan& plan);

/// Returns the change from `base` to `amount`, such as "(+12.5 %)", or an empty text if `base` is 0.
std::string change(int64_t amount, int64_t base);

/// Returns the share of `part` in `whole`, such as "60 %", or an empty text if `whole` is 0.
std::string share(int64_t part, int64_t whole);

/// Returns rows as lines, cells padded to the width of their column. The first `left_columns` columns are left-aligned,
/// the others right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

/// Returns a step as "run 'f1'", "run 'r' over 'a'" or "drop 'a'".
std::string describe(const Graph& graph, const Step& step);

/// Returns nanoseconds as the microseconds of an event's `ts` or `dur`. Perfetto truncates these to whole nanoseconds and
/// drops slices that overlap afterwards, so the result is chosen to truncate to `ns` again.
double trace_us(int64_t ns);

/// Returns an event that sets a counter of the trace at `ns`.
Json trace_counter(const std::string& name, int64_t ns, int64_t bytes);

/// Returns a trace for Perfetto and chrome://tracing: runs as consecutive slices, memory as a counter.
Json chrome_trace(const Graph& graph, const Schedule& schedule, const Simulation& simulation);

}  // namespace headroom::internal::cli
