// Reads any bytes as a graph, as JSON and as text. They are refused with InvalidInput, or written and read back as an equal
// graph whose store-all schedule is valid.
#include "headroom/core/error.h"
#include "headroom/core/simulate.h"
#include "headroom/io/json.h"
#include "headroom/io/text.h"
#include "tests/fuzz/target.h"

namespace headroom {
namespace {

void check(const Graph& graph) {
  const std::string json = write_json(graph);
  const std::string text = to_text(graph);
  HEADROOM_ASSERT(write_json(read_graph_json(json, "")) == json);
  HEADROOM_ASSERT(write_json(parse_graph_text(text)) == json);
  HEADROOM_ASSERT(to_text(parse_graph_text(text)) == text);
  try {
    HEADROOM_ASSERT(!simulate(graph, store_all(graph)).error);
  } catch (const InvalidInput&) {
    // The bytes add up to more than an int64.
  }
  if (const std::optional<ChainMatch> match = find_chain(graph)) to_graph(match->chain);
}

}  // namespace
}  // namespace headroom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headroom;
  const std::string_view input = as_text(data, size);
  unless_invalid([&] { check(read_graph_json(input, "f")); });
  unless_invalid([&] { check(parse_graph_text(input, "f")); });
  return 0;
}
