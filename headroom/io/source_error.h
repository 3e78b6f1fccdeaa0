#pragma once

#include <string>

#include "headroom/core/error.h"

namespace headroom::internal {

/// Throws InvalidInput with the message after `source`, the name of the file, which may be empty.
[[noreturn]] inline void fail_at_source(const std::string& source, const std::string& message) {
  throw InvalidInput(source.empty() ? message : source + ": " + message);
}

}  // namespace headroom::internal
