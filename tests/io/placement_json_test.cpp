#include <gtest/gtest.h>

#include "headroom/core/error.h"
#include "headroom/io/json.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;

Graph tiny() {
  Builder builder("tiny");
  builder.resident("x", 8).value("a", 4).value("loss", 4);
  builder.op("f1", 5, {"x"}, {"a"});
  builder.op("f2", 3, {"a"}, {"loss"}).workspace_bytes = 2;
  builder.outputs({"loss"});
  return builder.graph();
}

constexpr const char* kText = R"({
  "format": "headroom.placement/1",
  "graph": "tiny",
  "alignment": 2, "arena_bytes": 10,
  "offsets": [
    {"step": 0, "value": "a", "offset": 0},
    {"step": 1, "value": "loss", "offset": 4},
    {"step": 1, "workspace": true, "offset": 8}
  ]
}
)";

TEST(PlacementJson, IsReadAndWritten) {
  const Graph graph = tiny();
  const Placement expected{2, 10, {{0, value_id(1), 0}, {1, value_id(2), 4}, {1, std::nullopt, 8}}};
  EXPECT_EQ(read_placement_json(kText, "p.json", graph), expected);
  EXPECT_EQ(write_json(graph, expected), kText);
  const Placement empty;
  EXPECT_EQ(read_placement_json(write_json(graph, empty), "", graph), empty);
}

struct BadPlacement {
  const char* name;
  const char* from;  ///< Replaced in kText
  const char* to;    ///< by this.
  const char* message;
};

class PlacementJsonErrors : public ::testing::TestWithParam<BadPlacement> {};

TEST_P(PlacementJsonErrors, NameTheFileAndTheEntry) {
  std::string text = kText;
  const std::string from = GetParam().from;
  ASSERT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), GetParam().to);
  try {
    read_placement_json(text, "p.json", tiny());
    FAIL() << "was read";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(std::string(error.what()), "p.json: " + std::string(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PlacementJsonErrors,
    ::testing::Values(
        BadPlacement{"format", "placement/1", "schedule/1",
                     "format must be 'headroom.placement/1', found 'headroom.schedule/1'"},
        BadPlacement{"graph", "\"tiny\"", "\"other\"",
                     "graph must be 'tiny', the one that the placement is read for, found 'other'"},
        BadPlacement{"alignment", "\"alignment\": 2", "\"alignment\": 0", "alignment must be at least 1, found 0"},
        BadPlacement{"value", "\"loss\"", "\"b\"", "offsets[1]: value names 'b', which is not a value of the graph"},
        BadPlacement{"both", "\"workspace\": true", "\"workspace\": true, \"value\": \"a\"",
                     "offsets[2]: must have exactly one of value and workspace, found both"},
        BadPlacement{"neither", "\"value\": \"a\", ", "",
                     "offsets[0]: must have exactly one of value and workspace, found neither"},
        BadPlacement{"workspace", "true", "false", "offsets[2]: workspace must be true, found false"},
        BadPlacement{"fraction", "\"offset\": 4", "\"offset\": 4.0",
                     "offsets[1]: offset must be an integer from 0 to 9223372036854775807, found 4.0"},
        BadPlacement{"negative", "\"offset\": 4", "\"offset\": -4",
                     "offsets[1]: offset must be an integer from 0 to 9223372036854775807, found -4"},
        BadPlacement{"unknown", "\"offset\": 4", "\"offset\": 4, \"bytes\": 4",
                     "offsets[1]: unknown key 'bytes', expected one of step, value, workspace, offset"},
        BadPlacement{"duplicate", "\"offset\": 4", "\"offset\": 4, \"offset\": 4",
                     "offsets[1]: key 'offset' is given twice"},
        BadPlacement{"missing", "\"step\": 1, \"value\"", "\"value\"", "offsets[1]: key 'step' is missing"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace headroom::internal
