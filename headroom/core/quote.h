#pragma once

#include <string>
#include <string_view>

namespace headroom::internal {

/// Returns a name for use in a message: in single quotes, with control characters escaped and the middle of a long name
/// left out, so that a message is one line of bounded length for any file.
std::string quote(std::string_view name);

}  // namespace headroom::internal
