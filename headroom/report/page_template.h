#pragma once

#include <string_view>

namespace headroom {

/// Returns the page that `make report` writes to build/report/template.html, or an empty text if that file did not exist
/// when headroom was configured.
std::string_view page_template();

}  // namespace headroom
