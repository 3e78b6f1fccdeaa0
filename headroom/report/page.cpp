#include "headroom/report/page.h"

#include "headroom/core/error.h"
#include "headroom/report/page_template.h"

namespace headroom::internal {
namespace {

constexpr std::string_view kPlaceForData = "{{headroom-report-data}}";

}  // namespace

std::string escape_for_html(std::string_view json) {
  std::string out;
  out.reserve(json.size() + json.size() / 16);
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string_view rest = json.substr(i);
    if (rest.front() == '<') {
      out += "\\u003c";
    } else if (rest.front() == '>') {
      out += "\\u003e";
    } else if (rest.front() == '&') {
      out += "\\u0026";
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      out += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += rest.front();
    }
  }
  return out;
}

std::string make_report_page(std::string_view data) {
  const std::string_view page = page_template();
  const size_t place = page.find(kPlaceForData);
  if (place == std::string_view::npos)
    throw InvalidInput(
        "this headroom was built without the report page; `python3 report/build.py` in its source folder makes the "
        "page for the next build or `pip install`");
  std::string out(page.substr(0, place));
  out += escape_for_html(data);
  out += page.substr(place + kPlaceForData.size());
  return out;
}

}  // namespace headroom::internal
