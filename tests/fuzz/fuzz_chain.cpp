// Reads any bytes as a chain, as JSON and as text. They are refused with InvalidInput, or written and read back as an equal
// chain, which find_chain() finds in its graph.
#include "headroom/core/error.h"
#include "headroom/io/json.h"
#include "headroom/io/text.h"
#include "tests/fuzz/target.h"

namespace headroom {
namespace {

void check(const Chain& chain) {
  HEADROOM_ASSERT(read_chain_json(write_json(chain), "") == chain);
  HEADROOM_ASSERT(parse_chain_text(to_text(chain)) == chain);
  std::optional<ChainMatch> match = find_chain(to_graph(chain));
  HEADROOM_ASSERT(match.has_value());
  HEADROOM_ASSERT(match->chain.stages.size() == chain.stages.size());
}

}  // namespace
}  // namespace headroom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headroom;
  const std::string_view input = as_text(data, size);
  unless_invalid([&] { check(read_chain_json(input, "f")); });
  unless_invalid([&] { check(parse_chain_text(input, "f")); });
  return 0;
}
