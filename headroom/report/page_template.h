#pragma once

#include <string_view>

namespace headroom::internal {

/// The page that report/build.py writes, or an empty text where it was not there when headroom was built.
std::string_view page_template();

}  // namespace headroom::internal
