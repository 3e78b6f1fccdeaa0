#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// A graph or chain in either form: JSON (io/json.h) where the first character that is not blank is `{`, else text
/// (io/text.h). Throws InvalidInput, which begins with `source`, as those readers do, and where it is neither.
std::variant<Graph, Chain> read_network(std::string_view text, const std::string& source);

/// A schedule of `graph`, told apart in the same way.
Schedule read_schedule(std::string_view text, const std::string& source, const Graph& graph);

}  // namespace headroom
