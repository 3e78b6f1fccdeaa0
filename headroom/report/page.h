#pragma once

#include <string>
#include <string_view>

namespace headroom::internal {

/// Returns the report page, one self-contained HTML file, for the `data` of write_report_data(). The data is escaped, so
/// that no name in it can end its block. Throws InvalidInput if headroom was built without the page.
std::string make_report_page(std::string_view data);

/// Returns equivalent JSON in which the characters that are special in HTML, or end a line in JavaScript, are escaped.
std::string escape_for_html(std::string_view json);

}  // namespace headroom::internal
