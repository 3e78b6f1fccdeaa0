#pragma once

#include <string>

#include "headroom/core/error.h"

namespace headroom {

/// Throws InvalidInput for what was read from `source`: a file's name, or empty where there is none.
[[noreturn]] inline void fail_at_source(const std::string& source, const std::string& message) {
  throw InvalidInput(source.empty() ? message : source + ": " + message);
}

}  // namespace headroom
