#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Reads a graph or chain as JSON (io/json.h) if the first character that is not blank is `{`, otherwise as text
/// (io/text.h). Throws InvalidInput as those readers do, and for a text that is neither. Messages begin with `source`.
std::variant<Graph, Chain> read_network(std::string_view text, const std::string& source);

/// Reads a schedule of `graph`, as JSON or as text by the same rule.
Schedule read_schedule(std::string_view text, const std::string& source, const Graph& graph);

}  // namespace headroom
