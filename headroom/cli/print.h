#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/simulate.h"
#include "headroom/plan/planners.h"

namespace headroom::cli {

using Json = nlohmann::ordered_json;

/// One object of `plan --json`.
Json to_json(const Plan& plan);

/// "(+12.5 %)", from `base` to `amount`; empty where base is 0.
std::string change(int64_t amount, int64_t base);

/// "60 %", of `whole`; empty where that is 0.
std::string share(int64_t part, int64_t whole);

/// Rows as lines, cells padded to their column's width: the first `left_columns` to the left, the others to the right.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left_columns);

/// "run 'f1'", "run 'r' over 'a'" or "drop 'a'".
std::string describe(const Graph& graph, const Step& step);

/// The ts or dur of a trace event. Perfetto cuts it to whole nanoseconds, and drops a slice that then begins before the
/// one before it ends: cut so, what this returns is `ns` again.
double trace_us(int64_t ns);

/// What a counter of a trace is from `ns` on.
Json trace_counter(const std::string& name, int64_t ns, int64_t bytes);

/// A trace that Perfetto and chrome://tracing open: runs as slices one after the other, memory as a counter.
Json chrome_trace(const Graph& graph, const Schedule& schedule, const Simulation& simulation);

}  // namespace headroom::cli
