#include "headroom/io/read.h"

#include "headroom/core/quote.h"
#include "headroom/io/json.h"
#include "headroom/io/names.h"
#include "headroom/io/source_error.h"
#include "headroom/io/text.h"

namespace headroom {
using namespace internal;
namespace {

std::string_view skip_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

/// Returns `text` from its first character that is not blank. Fails if all are blank.
std::string_view skip_blank(std::string_view text, const std::string& source, const char* expected) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    fail_at_source(source, std::string("expected ") + expected + ", found an empty file");
  return text.substr(first);
}

}  // namespace

std::variant<Graph, Chain> read_network(std::string_view text, const std::string& source) {
  text = skip_byte_order_mark(text);
  std::string_view rest = skip_blank(text, source, "a graph or a chain");
  if (rest.starts_with('{')) return read_network_json(text, source);
  while (rest.starts_with('#'))
    rest = skip_blank(rest.substr(std::min(rest.find('\n'), rest.size())), source, "a graph or a chain");
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\n"));
  if (word == "graph") return parse_graph_text(text, source);
  if (word == "chain") return parse_chain_text(text, source);
  fail_at_source(source, "expected a JSON object, or text that begins with 'graph' or 'chain', found " +
                             (is_utf8(word) ? quote(word) : "what is not UTF-8"));
}

Schedule read_schedule(std::string_view text, const std::string& source, const Graph& graph) {
  text = skip_byte_order_mark(text);
  if (skip_blank(text, source, "a schedule").starts_with('{')) return read_schedule_json(text, source, graph);
  return parse_schedule_text(text, graph, source);
}

}  // namespace headroom
