#pragma once

#include <string_view>

namespace headroom {

/// What `make report` leaves in build/report/template.html, or nothing where it was not there when headroom was built.
std::string_view page_template();

}  // namespace headroom
