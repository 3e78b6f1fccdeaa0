#include "headroom/io/json.h"

#include <gtest/gtest.h>

#include <chrono>

#include "headroom/io/names.h"
#include "tests/io/json_examples.h"

namespace headroom::internal {
namespace {

TEST(ReadGraphJson, ReadsTheExample) {
  const Graph graph = tiny();
  EXPECT_EQ(graph.name(), "tiny");
  ASSERT_EQ(graph.values().size(), 5U);
  EXPECT_TRUE(same(graph.values()[0], Value{"x", 8, true, {}}));
  EXPECT_TRUE(same(graph.values()[4], Value{"gw", 2, false, {}}));
  ASSERT_EQ(graph.ops().size(), 4U);
  EXPECT_TRUE(same(graph.ops()[0], Op{"f1", Phase::kForward, {ValueId{0}}, {ValueId{1}}, 5, 0, true, {}}));
  EXPECT_TRUE(
      same(graph.ops()[2], Op{"b2", Phase::kBackward, {ValueId{1}, ValueId{2}}, {ValueId{3}}, 6, 0, false, {}}));
  EXPECT_TRUE(std::ranges::equal(graph.outputs(), std::vector{ValueId{2}, ValueId{4}}));
}

TEST(ReadGraphJson, TakesKeysInAnyOrder) {
  const std::string text =
      R"({"outputs": ["b"], "ops": [{"time_ns": 1, "overwrites": ["a"], "outputs": ["b"], "workspace_bytes": -3,
      "inputs": ["a"], "name": "g"}], "values": [{"bytes": 4, "name": "b", "holds": []}, {"resident": false, "bytes": 4, "name": "a"}],
      "name": "n", "format": "headroom.graph/1"})";
  EXPECT_EQ(graph_message(text), "net.json: value 'a' is neither resident nor written by any op");
  const Graph graph = read_graph_json(
      with(text, R"("ops": [)", R"("ops": [{"name": "f", "inputs": [], "outputs": ["a"], "time_ns": 0}, )"),
      "net.json");
  EXPECT_EQ(graph.ops()[1].workspace_bytes, -3);
  EXPECT_EQ(graph.ops()[1].overwrites, std::vector{ValueId{1}});
}

TEST(ReadChainJson, ReadsTheExample) {
  const Chain chain = read_chain_json(kTwo, "two.json");
  const Chain expected{"two", 100, 4, 0, {{"conv", 2, 4, 3, 8, 1, 2, 9}, {"loss", 0, 0, 0, 0, 0, 0, 0}}};
  EXPECT_EQ(chain, expected);
}

TEST(ReadChainJson, FillsDefaultsIn) {
  const std::string text = R"({"format": "headroom.chain/1", "name": "c", "input_bytes": 7,
      "stages": [{"name": "s", "forward_ns": 1, "backward_ns": 2, "output_bytes": 3, "tape_bytes": 4}]})";
  const Chain expected{"c", 0, 7, 7, {{"s", 1, 2, 3, 4, 0, 0, 0}}};
  EXPECT_EQ(read_chain_json(text, "c.json"), expected);
}

TEST(ReadScheduleJson, ReadsTheExample) {
  const Schedule expected{{Step::run(OpId{0}), Step::run(OpId{1}), Step::run(OpId{2}), Step::drop(ValueId{1}),
                           Step::run(OpId{3}), Step::drop(ValueId{3})}};
  EXPECT_EQ(read_schedule_json(kTinySchedule, "s.json", tiny()), expected);
}

TEST(ReadScheduleJson, TakesWhatIsOnlyInvalid) {
  // The reader leaves it to the simulator that nothing is alive, f1 may not overwrite anything and x is resident.
  const std::string text = R"({"format": "headroom.schedule/1", "graph": "tiny",
      "steps": [{"drop": "x"}, {"over": "gw", "run": "f1"}, {"run": "b2"}, {"run": "b2"}]})";
  const Schedule expected{
      {Step::drop(ValueId{0}), Step::run_over(OpId{0}, ValueId{4}), Step::run(OpId{2}), Step::run(OpId{2})}};
  EXPECT_EQ(read_schedule_json(text, "s.json", tiny()), expected);
}

TEST(ReadNetworkJson, LooksAtTheFormat) {
  EXPECT_TRUE(std::holds_alternative<Graph>(read_network_json(kTiny, "")));
  EXPECT_TRUE(std::holds_alternative<Chain>(read_network_json(kTwo, "")));
  const auto message = [](const std::string& text) { return message_of([&] { read_network_json(text, "n.json"); }); };
  EXPECT_EQ(message(kTinySchedule),
            "n.json: format must be 'headroom.graph/1' or 'headroom.chain/1', found 'headroom.schedule/1'");
  EXPECT_EQ(message("{}"), "n.json: key 'format' is missing");
  EXPECT_EQ(message(R"({"name": {"format": "headroom.graph/1"}, "x": [{"format": 1}]})"),
            "n.json: key 'format' is missing");
  EXPECT_EQ(message(R"({"format": 3})"), "n.json: format must be a string, found 3");
  EXPECT_EQ(message(R"({"format": {}})"), "n.json: format must be a string, found an object");
  EXPECT_EQ(message(R"({"format": ["headroom.graph/1"]})"), "n.json: format must be a string, found an array");
}

TEST(WriteJson, WritesGraphs) {
  EXPECT_EQ(write_json(tiny()), R"({
  "format": "headroom.graph/1",
  "name": "tiny",
  "values": [
    {"name": "x", "bytes": 8, "resident": true},
    {"name": "a", "bytes": 4},
    {"name": "loss", "bytes": 4},
    {"name": "ga", "bytes": 4},
    {"name": "gw", "bytes": 2}
  ],
  "ops": [
    {"name": "f1", "inputs": ["x"], "outputs": ["a"], "time_ns": 5},
    {"name": "f2", "inputs": ["a"], "outputs": ["loss"], "time_ns": 3},
    {"name": "b2", "phase": "backward", "inputs": ["a", "loss"], "outputs": ["ga"], "time_ns": 6, "recompute": false},
    {"name": "b1", "phase": "backward", "inputs": ["ga", "x"], "outputs": ["gw"], "time_ns": 6}
  ],
  "outputs": ["loss", "gw"]
}
)");
}

TEST(WriteJson, WritesWhatIsNotDefault) {
  const Graph graph(GraphSpec{"n",
                              {{"a", 4, false, {}}, {"b", 4, false, {ValueId{0}}}},
                              {{"f", Phase::kForward, {}, {ValueId{0}}, 1, 0, true, {}},
                               {"g", Phase::kForward, {ValueId{0}}, {ValueId{1}}, 2, -7, true, {ValueId{0}}}},
                              {}});
  EXPECT_EQ(write_json(graph), R"({
  "format": "headroom.graph/1",
  "name": "n",
  "values": [
    {"name": "a", "bytes": 4},
    {"name": "b", "bytes": 4, "holds": ["a"]}
  ],
  "ops": [
    {"name": "f", "inputs": [], "outputs": ["a"], "time_ns": 1},
    {"name": "g", "inputs": ["a"], "outputs": ["b"], "time_ns": 2, "workspace_bytes": -7, "overwrites": ["a"]}
  ],
  "outputs": []
}
)");
  EXPECT_EQ(write_json(Graph(GraphSpec{"nothing", {}, {}, {}})), R"({
  "format": "headroom.graph/1",
  "name": "nothing",
  "values": [],
  "ops": [],
  "outputs": []
}
)");
}

TEST(WriteJson, WritesChains) {
  EXPECT_EQ(write_json(read_chain_json(kTwo, "")), R"({
  "format": "headroom.chain/1",
  "name": "two",
  "resident_bytes": 100, "input_bytes": 4, "input_gradient_bytes": 0,
  "stages": [
    {"name": "conv", "forward_ns": 2, "backward_ns": 4, "output_bytes": 3, "tape_bytes": 8, "forward_workspace_bytes": 1, "backward_workspace_bytes": 2, "gradient_bytes": 9},
    {"name": "loss", "forward_ns": 0, "backward_ns": 0, "output_bytes": 0, "tape_bytes": 0}
  ]
}
)");
}

TEST(WriteJson, WritesSchedules) {
  const Schedule schedule{{Step::run(OpId{0}), Step::run_over(OpId{1}, ValueId{1}), Step::drop(ValueId{2})}};
  EXPECT_EQ(write_json(tiny(), schedule), R"({
  "format": "headroom.schedule/1",
  "graph": "tiny",
  "steps": [
    {"run": "f1"},
    {"run": "f2", "over": "a"},
    {"drop": "loss"}
  ]
}
)");
  EXPECT_EQ(write_json(tiny(), Schedule{}),
            "{\n  \"format\": \"headroom.schedule/1\",\n  \"graph\": \"tiny\",\n  \"steps\": []\n}\n");
}

TEST(WriteJson, RefusesNamesThatNoReaderTakes) {
  const auto message = [](const std::string& name) {
    return message_of([&] { write_json(Graph(GraphSpec{name, {}, {}, {}})); });
  };
  EXPECT_EQ(message(""), "cannot write an empty name");
  EXPECT_TRUE(message("\xFF").ends_with("it is not UTF-8"));
}

TEST(WriteJson, RoundTrips) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph = random_graph(random);
    const std::string text = write_json(graph);
    ASSERT_TRUE(same(read_graph_json(text, ""), graph)) << "seed " << seed << "\n" << text;
    ASSERT_EQ(write_json(read_graph_json(text, "")), text) << "seed " << seed;
    const Schedule schedule = random_schedule(random, graph);
    ASSERT_EQ(read_schedule_json(write_json(graph, schedule), "", graph), schedule) << "seed " << seed << "\n" << text;
    const Chain chain = random_chain(random);
    ASSERT_EQ(read_chain_json(write_json(chain), ""), chain) << "seed " << seed << "\n" << write_json(chain);
  }
}

TEST(ReadJson, TakesTheExtremes) {
  const std::string most = tiny_with(R"("bytes": 4)", R"("bytes": 9223372036854775000)");
  EXPECT_EQ(read_graph_json(most, "").values()[1].bytes, 9223372036854775000);
  EXPECT_EQ(graph_message(tiny_with(R"("bytes": 4)", R"("bytes": 9223372036854775807)")),
            "net.json: the bytes of all values and workspaces do not fit 64 bits");
  EXPECT_EQ(read_graph_json(tiny_with(R"("workspace_bytes": 0)", R"("workspace_bytes": -4611686018427387904)"), "")
                .ops()[1]
                .workspace_bytes,
            -(int64_t{1} << 62U));
}

TEST(ReadJson, TakesAByteOrderMark) {
  EXPECT_TRUE(same(read_graph_json(std::string("\xEF\xBB\xBF") + kTiny, ""), tiny()));
}

TEST(ReadJson, TakesNamesOfAllKinds) {
  using namespace std::string_literals;
  for (const std::string& name :
       {"😀"s, "\"quoted\""s, "</script>"s, "a\0b"s, "\x7F"s, "\u2028"s, "line\nline"s, "\\u0041"s, "日本"s}) {
    std::string literal;
    append_json_string(literal, name);
    std::string text = kTiny;
    text = with(text, "\"a\"", literal);
    text = with(text, "[\"a\"]", "[" + literal + "]");
    text = with(text, "[\"a\"]", "[" + literal + "]");
    text = with(text, "\"a\",", literal + ",");
    const Graph graph = read_graph_json(text, "");
    EXPECT_EQ(graph.values()[1].name, name);
    EXPECT_TRUE(same(read_graph_json(write_json(graph), ""), graph)) << literal;
  }
  EXPECT_EQ(read_graph_json(tiny_with("tiny", "\\uD83D\\uDE00\\u0000\\/"), "").name(), "😀\0/"s);
}

TEST(ReadJson, IsFast) {
  // 10,000 ops in a row, each reading the eight values before it. The limit leaves room for sanitizers and busy machines.
  GraphSpec spec;
  spec.name = "long";
  for (size_t i = 0; i < 10000; ++i) {
    spec.values.push_back(Value{"layer_" + std::to_string(i) + ".output", 1024, false, {}});
    Op op{"layer_" + std::to_string(i), Phase::kForward, {}, {value_id(i)}, 1000, 0, true, {}};
    for (size_t k = i < 8 ? 0 : i - 8; k < i; ++k) op.inputs.push_back(value_id(k));
    spec.ops.push_back(op);
  }
  const Graph graph(std::move(spec));
  const std::string text = write_json(graph);
  const auto begin = std::chrono::steady_clock::now();
  const Graph read = read_graph_json(text, "long.json");
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_TRUE(same(read, graph));
  EXPECT_LT(milliseconds, 3000);
  RecordProperty("milliseconds", static_cast<int>(milliseconds));
}

}  // namespace
}  // namespace headroom::internal
