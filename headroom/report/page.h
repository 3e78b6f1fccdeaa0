#pragma once

#include <string>
#include <string_view>

namespace headroom {

/// The page of a report: one HTML file that needs nothing else, with `data`, of write_report_data(), inside. Whatever the
/// names in the data are, they cannot end the block that holds them. Throws InvalidInput, which says how to build it,
/// where headroom was built without the page.
std::string make_report_page(std::string_view data);

/// JSON with every character escaped that means something in HTML or ends a line in JavaScript: the same JSON.
std::string escape_for_html(std::string_view json);

}  // namespace headroom
