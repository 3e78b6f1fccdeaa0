#pragma once

#include <string>
#include <string_view>

namespace headroom {

/// A name as messages show it: in single quotes, control characters escaped, the middle of a long one left out, so
/// that whatever a file holds a message stays one line of bounded length.
std::string quote(std::string_view name);

}  // namespace headroom
