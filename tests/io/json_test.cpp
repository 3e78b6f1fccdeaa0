#include "headroom/io/json.h"

#include <gtest/gtest.h>

#include <chrono>

#include "headroom/io/names.h"
#include "tests/io/support.h"

namespace headroom {
namespace {

// The examples of docs/formats.md, as they stand there.
constexpr const char* kTiny = R"({
  "format": "headroom.graph/1",
  "name": "tiny",
  "values": [
    {"name": "x",  "bytes": 8, "resident": true},
    {"name": "a",  "bytes": 4},
    {"name": "loss", "bytes": 4},
    {"name": "ga", "bytes": 4},
    {"name": "gw", "bytes": 2}
  ],
  "ops": [
    {"name": "f1", "phase": "forward",  "inputs": ["x"],         "outputs": ["a"],    "time_ns": 5},
    {"name": "f2", "phase": "forward",  "inputs": ["a"],         "outputs": ["loss"], "time_ns": 3, "workspace_bytes": 0},
    {"name": "b2", "phase": "backward", "inputs": ["a", "loss"], "outputs": ["ga"],   "time_ns": 6, "recompute": false},
    {"name": "b1", "phase": "backward", "inputs": ["ga", "x"],   "outputs": ["gw"],   "time_ns": 6}
  ],
  "outputs": ["loss", "gw"]
}
)";

constexpr const char* kTwo = R"({
  "format": "headroom.chain/1",
  "name": "two",
  "resident_bytes": 100, "input_bytes": 4, "input_gradient_bytes": 0,
  "stages": [
    {"name": "conv", "forward_ns": 2, "backward_ns": 4, "output_bytes": 3, "tape_bytes": 8,
     "forward_workspace_bytes": 1, "backward_workspace_bytes": 2, "gradient_bytes": 9},
    {"name": "loss", "forward_ns": 0, "backward_ns": 0, "output_bytes": 0, "tape_bytes": 0}
  ]
}
)";

constexpr const char* kTinySchedule = R"({"format": "headroom.schedule/1", "graph": "tiny",
 "steps": [{"run": "f1"}, {"run": "f2"}, {"run": "b2"}, {"drop": "a"}, {"run": "b1"}, {"drop": "ga"}]}
)";

Graph tiny() { return read_graph_json(kTiny, "tiny.json"); }

std::string graph_message(const std::string& text) {
  return message_of([&] { read_graph_json(text, "net.json"); });
}
std::string chain_message(const std::string& text) {
  return message_of([&] { read_chain_json(text, "net.json"); });
}
std::string schedule_message(const std::string& text) {
  return message_of([&] { read_schedule_json(text, "s.json", tiny()); });
}
std::string tiny_with(std::string_view from, std::string_view to) { return with(kTiny, from, to); }

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
  // Nothing is alive, f1 may not overwrite anything, x is resident: for the simulator to say.
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

TEST(ReadJson, RefusesWrongKeys) {
  EXPECT_EQ(graph_message(tiny_with(R"("name": "tiny")", R"("nam": "tiny")")),
            "net.json: unknown key 'nam', expected one of format, name, values, ops, outputs");
  EXPECT_EQ(graph_message(tiny_with(R"("bytes": 4})", R"("bytes": 4, "size": 4})")),
            "net.json: value 'a': unknown key 'size', expected one of name, bytes, resident, holds");
  EXPECT_EQ(graph_message(tiny_with(R"({"name": "a",  "bytes": 4})", R"({"Bytes": 4, "name": "a"})")),
            "net.json: values[1]: unknown key 'Bytes', expected one of name, bytes, resident, holds");
  EXPECT_EQ(
      graph_message(tiny_with(R"("phase": "forward")", R"("\u0000": 1)")),
      "net.json: op 'f1': unknown key '\\x00', expected one of name, phase, inputs, outputs, time_ns, workspace_bytes, "
      "recompute, overwrites");
  EXPECT_EQ(chain_message(with(kTwo, "input_bytes", "inputbytes")),
            "net.json: unknown key 'inputbytes', expected one of format, name, resident_bytes, input_bytes, "
            "input_gradient_bytes, stages");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"({"run": "f2"})", R"({"runs": "f2"})")),
            "s.json: steps[1]: unknown key 'runs', expected one of run, drop, over");
}

TEST(ReadJson, RefusesDuplicateKeys) {
  EXPECT_EQ(graph_message(tiny_with(R"("name": "tiny")", R"("name": "tiny", "name": "tiny")")),
            "net.json: key 'name' is given twice");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "tiny")", R"("name": "tiny", "format": "headroom.graph/1")")),
            "net.json: key 'format' is given twice");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["loss", "gw"])", R"("outputs": ["loss", "gw"], "values": [])")),
            "net.json: key 'values' is given twice");
  EXPECT_EQ(graph_message(tiny_with(R"("bytes": 4)", R"("bytes": 4, "bytes": 4)")),
            "net.json: value 'a': key 'bytes' is given twice");
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["a"])", R"("inputs": ["a"], "\u0069nputs": ["a"])")),
            "net.json: op 'f2': key 'inputs' is given twice");
  EXPECT_EQ(chain_message(with(kTwo, R"("tape_bytes": 8)", R"("tape_bytes": 8, "name": "conv")")),
            "net.json: stage 'conv': key 'name' is given twice");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"({"run": "f2"})", R"({"run": "f2", "run": "f2"})")),
            "s.json: steps[1]: key 'run' is given twice");
}

TEST(ReadJson, RefusesMissingKeys) {
  EXPECT_EQ(graph_message(R"({"format": "headroom.graph/1"})"), "net.json: key 'name' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "a",  )", "")), "net.json: values[1]: key 'name' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"("a",  "bytes": 4)", R"("a")")), "net.json: value 'a': key 'bytes' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["a"],)", "")), "net.json: op 'f2': key 'inputs' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["loss"],)", "")), "net.json: op 'f2': key 'outputs' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["a"],    "time_ns": 5)", R"("outputs": ["a"])")),
            "net.json: op 'f1': key 'time_ns' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"({"name": "a",  "bytes": 4})", "{}")),
            "net.json: values[1]: key 'name' is missing");
  EXPECT_EQ(graph_message(tiny_with(R"(,
  "outputs": ["loss", "gw"])",
                                    "")),
            "net.json: key 'outputs' is missing");
  EXPECT_EQ(chain_message(with(kTwo, R"("input_bytes": 4, )", "")), "net.json: key 'input_bytes' is missing");
  for (const std::string key : {"forward_ns", "backward_ns", "output_bytes"})
    EXPECT_EQ(chain_message(with(kTwo, ", \"" + key + "\": 0", "")),
              "net.json: stage 'loss': key '" + key + "' is missing");
  EXPECT_EQ(chain_message(with(kTwo, R"(, "tape_bytes": 0)", "")),
            "net.json: stage 'loss': key 'tape_bytes' is missing");
  EXPECT_EQ(schedule_message(R"({"format": "headroom.schedule/1", "graph": "tiny"})"),
            "s.json: key 'steps' is missing");
  EXPECT_EQ(schedule_message(R"({"format": "headroom.schedule/1", "steps": []})"), "s.json: key 'graph' is missing");
}

TEST(ReadJson, RefusesNumbersThatAreNoCounts) {
  const auto bytes = [](const std::string& number) {
    return graph_message(tiny_with(R"("bytes": 4)", R"("bytes": )" + number));
  };
  const std::string expected = "net.json: value 'a': bytes must be an integer from 0 to 9223372036854775807, found ";
  for (const std::string number :
       {"1.5", "4.0", "1e3", "-1", "9223372036854775808", "18446744073709551615", "18446744073709551616",
        "1180591620717411303424", "-9223372036854775809", "1e999", "-1e999", "1E+2", "null", "true"})
    EXPECT_EQ(bytes(number), expected + number);
  EXPECT_EQ(bytes("\"4\""), expected + "'4'");
  EXPECT_EQ(bytes("[4]"), expected + "an array");
  EXPECT_EQ(bytes("{\"a\": 1}"), expected + "an object");
  EXPECT_EQ(bytes(std::string(100000, '9')), expected + std::string(40, '9') + "...");
  EXPECT_EQ(bytes("NaN"), "net.json: line 6, column 29: not valid JSON: invalid literal, found 'NaN'");
  EXPECT_TRUE(bytes("Infinity").starts_with("net.json: line 6, column "));
  EXPECT_TRUE(bytes("04").starts_with("net.json: line 6, column "));
  EXPECT_TRUE(bytes("+4").starts_with("net.json: line 6, column "));
  EXPECT_TRUE(bytes(".5").starts_with("net.json: line 6, column "));
  EXPECT_TRUE(bytes("0x4").starts_with("net.json: line 6, column "));

  EXPECT_EQ(graph_message(tiny_with(R"("time_ns": 5)", R"("time_ns": -5)")),
            "net.json: op 'f1': time_ns must be an integer from 0 to 9223372036854775807, found -5");
  EXPECT_EQ(graph_message(tiny_with(R"("workspace_bytes": 0)", R"("workspace_bytes": 0.5)")),
            "net.json: op 'f2': workspace_bytes must be an integer from -9223372036854775808 to 9223372036854775807, "
            "found 0.5");
  EXPECT_EQ(chain_message(with(kTwo, R"("resident_bytes": 100)", R"("resident_bytes": -100)")),
            "net.json: resident_bytes must be an integer from 0 to 9223372036854775807, found -100");
  EXPECT_EQ(chain_message(with(kTwo, R"("gradient_bytes": 9)", R"("gradient_bytes": -9)")),
            "net.json: stage 'conv': gradient_bytes must be an integer from 0 to 9223372036854775807, found -9");
}

TEST(ReadJson, RefusesHugeNumbersBeforeTheFormat) {
  EXPECT_EQ(
      graph_message(R"({"name": )" + std::string(100000, '9') + R"(, "format": "headroom.graph/1"})"),
      "net.json: line 1, column 100009: expected an integer that fits 64 bits, found " + std::string(40, '9') + "...");
  EXPECT_EQ(graph_message(R"({"format": 1e999})"), "net.json: format must be a string, found 1e999");
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

TEST(ReadJson, RefusesWrongTypes) {
  EXPECT_EQ(graph_message("[]"), "net.json: must be a JSON object, found an array");
  EXPECT_EQ(graph_message("3"), "net.json: must be a JSON object, found 3");
  EXPECT_EQ(graph_message("\"graph\""), "net.json: must be a JSON object, found 'graph'");
  EXPECT_EQ(graph_message("null"), "net.json: must be a JSON object, found null");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "tiny")", R"("name": 7)")), "net.json: name must be a string, found 7");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "tiny")", R"("name": "")")), "net.json: name must not be empty");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "a")", R"("name": "")")), "net.json: values[1]: name must not be empty");
  EXPECT_EQ(graph_message(tiny_with(R"("resident": true)", R"("resident": 1)")),
            "net.json: value 'x': resident must be true or false, found 1");
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["x"])", R"("inputs": "x")")),
            "net.json: op 'f1': inputs must be an array of strings, found 'x'");
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["x"])", R"("inputs": [null])")),
            "net.json: op 'f1': inputs must list strings, found null");
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["x"])", R"("inputs": ["x", ["x"]])")),
            "net.json: op 'f1': inputs must list strings, found an array");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["loss", "gw"])", R"("outputs": ["loss", 2])")),
            "net.json: outputs must list strings, found 2");
  EXPECT_EQ(graph_message(tiny_with(R"({"name": "a",  "bytes": 4})", "4")),
            "net.json: values[1]: must be an object, found 4");
  EXPECT_EQ(graph_message(tiny_with(R"({"name": "a",  "bytes": 4})", "[]")),
            "net.json: values[1]: must be an object, found an array");
  EXPECT_EQ(graph_message(tiny_with(R"("phase": "forward")", R"("phase": "both")")),
            "net.json: op 'f1': phase must be 'forward' or 'backward', found 'both'");
  EXPECT_EQ(graph_message(R"({"format": "headroom.graph/1", "values": {}})"),
            "net.json: values must be an array of objects, found an object");
  EXPECT_EQ(graph_message(kTwo), "net.json: format must be 'headroom.graph/1', found 'headroom.chain/1'");
  EXPECT_EQ(chain_message(kTiny), "net.json: format must be 'headroom.chain/1', found 'headroom.graph/1'");
  EXPECT_EQ(schedule_message(kTiny), "s.json: format must be 'headroom.schedule/1', found 'headroom.graph/1'");
  EXPECT_EQ(graph_message(tiny_with("graph/1", "graph/2")),
            "net.json: format must be 'headroom.graph/1', found 'headroom.graph/2'");
}

TEST(ReadJson, RefusesUnknownNames) {
  EXPECT_EQ(graph_message(tiny_with(R"("inputs": ["x"])", R"("inputs": ["y"])")),
            "net.json: op 'f1': inputs names 'y', which is not a value of the graph");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["a"])", R"("outputs": ["f1"])")),
            "net.json: op 'f1': outputs names 'f1', which is not a value of the graph");
  EXPECT_EQ(graph_message(tiny_with(R"("time_ns": 5)", R"("time_ns": 5, "overwrites": [""])")),
            "net.json: op 'f1': overwrites names '', which is not a value of the graph");
  EXPECT_EQ(graph_message(tiny_with(R"("bytes": 4)", R"("bytes": 4, "holds": ["z"])")),
            "net.json: value 'a': holds names 'z', which is not a value of the graph");
  EXPECT_EQ(graph_message(tiny_with(R"("outputs": ["loss", "gw"])", R"("outputs": ["loss", "hw"])")),
            "net.json: outputs names 'hw', which is not a value of the graph");
}

TEST(ReadJson, NamesTheSourceOfWhatLintFinds) {
  EXPECT_EQ(graph_message(tiny_with(R"({"name": "a")", R"({"name": "x", "bytes": 1}, {"name": "a")")),
            "net.json: two values are named 'x'");
  EXPECT_EQ(graph_message(tiny_with(R"("name": "f2")", R"("name": "f1")")), "net.json: two ops are named 'f1'");
  EXPECT_TRUE(graph_message(tiny_with(R"("inputs": ["x"])", R"("inputs": ["ga"])"))
                  .starts_with("net.json: op 'f1' reads value 'ga'"));
  EXPECT_TRUE(
      chain_message(with(kTwo, R"("tape_bytes": 8)", R"("tape_bytes": 2)")).starts_with("net.json: stage 1 'conv'"));
  EXPECT_TRUE(chain_message(R"({"format": "headroom.chain/1", "name": "c", "input_bytes": 1, "stages": []})")
                  .starts_with("net.json: "));
}

TEST(ReadScheduleJson, RefusesWhatTheGraphDoesNotHave) {
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"("tiny")", R"("huge")")),
            "s.json: graph must be 'tiny', the one that the schedule is read for, found 'huge'");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"("f2")", R"("f9")")),
            "s.json: steps[1]: run names 'f9', which is not an op of the graph");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"("f2")", R"("a")")),
            "s.json: steps[1]: run names 'a', which is not an op of the graph");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"({"drop": "a"})", R"({"drop": "f1"})")),
            "s.json: steps[3]: drop names 'f1', which is not a value of the graph");
  EXPECT_EQ(schedule_message(with(kTinySchedule, R"({"run": "f2"})", R"({"run": "f2", "over": "f1"})")),
            "s.json: steps[1]: over names 'f1', which is not a value of the graph");
}

TEST(ReadScheduleJson, RefusesStepsOfNoKind) {
  const auto step = [](const std::string& text) {
    return schedule_message(with(kTinySchedule, R"({"run": "f2"})", text));
  };
  EXPECT_EQ(step(R"({"run": "f2", "drop": "a"})"),
            "s.json: steps[1]: must have exactly one of run and drop, found both");
  EXPECT_EQ(step(R"({"over": "a"})"), "s.json: steps[1]: must have exactly one of run and drop, found neither");
  EXPECT_EQ(step(R"({"drop": "a", "over": "a"})"), "s.json: steps[1]: over goes only with run, found it with drop");
  EXPECT_EQ(step("{}"), "s.json: steps[1]: must have a key, found {}");
  EXPECT_EQ(step(R"("f2")"), "s.json: steps[1]: must be an object, found 'f2'");
  EXPECT_EQ(step(R"({"run": ""})"), "s.json: steps[1]: run must not be empty");
  EXPECT_EQ(step(R"({"run": ["f2"]})"), "s.json: steps[1]: run must be a string, found an array");
}

TEST(ReadJson, SaysWhereJsonIsBroken) {
  EXPECT_EQ(graph_message(""), "net.json: must be a JSON object, found nothing");
  EXPECT_EQ(graph_message(" \n\t "), "net.json: must be a JSON object, found nothing");
  EXPECT_EQ(message_of([] { read_graph_json("", ""); }), "must be a JSON object, found nothing");
  EXPECT_EQ(graph_message("{"),
            "net.json: line 1, column 2: not valid JSON: unexpected end of input; expected string literal");
  EXPECT_EQ(graph_message(tiny_with(R"("tiny",)", R"("tiny",,)")),
            "net.json: line 3, column 18: not valid JSON: unexpected ','; expected string literal");
  EXPECT_EQ(graph_message(std::string(kTiny) + "x"),
            "net.json: line 19, column 1: not valid JSON: invalid literal, found 'x'");
  EXPECT_EQ(graph_message(std::string(kTiny) + kTiny),
            "net.json: line 19, column 1: not valid JSON: unexpected '{'; expected end of input");
  EXPECT_EQ(graph_message(kTiny + std::string(1, '\0') + "{}"),
            "net.json: line 19, column 1: not valid JSON: found a NUL byte");
  EXPECT_EQ(graph_message(tiny_with("tiny", "ti\xFFny")),
            "net.json: line 3, column 14: not valid JSON: invalid string: ill-formed UTF-8 byte");
  EXPECT_TRUE(graph_message(tiny_with("tiny", "ti\\ud800ny")).starts_with("net.json: line 3, column "));
  EXPECT_TRUE(graph_message(tiny_with("tiny", "ti\nny")).starts_with("net.json: line 3, column "));
  EXPECT_TRUE(
      graph_message(tiny_with("tiny", std::string(100000, 'y') + "\\q")).starts_with("net.json: line 3, column 100"));
  EXPECT_TRUE(graph_message(tiny_with(R"("name": "tiny",)", R"(/* tiny */ "name": "tiny",)"))
                  .starts_with("net.json: line 3, column "));
}

TEST(ReadJson, TakesAByteOrderMark) {
  EXPECT_TRUE(same(read_graph_json(std::string("\xEF\xBB\xBF") + kTiny, ""), tiny()));
}

TEST(ReadJson, RefusesEveryTruncation) {
  for (const std::string text : {kTiny, kTwo, kTinySchedule}) {
    const size_t whole = text.rfind('}');
    for (size_t length = 0; length <= whole; ++length) {
      EXPECT_NE(message_of([&] { read_network_json(text.substr(0, length), "n.json"); }), "accepted") << length;
      EXPECT_NE(schedule_message(text.substr(0, length)), "accepted") << length;
    }
  }
}

TEST(ReadJson, RefusesDeepNesting) {
  const std::string brackets(100000, '[');
  const std::string objects = [] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "{\"a\":";
    return text;
  }();
  EXPECT_EQ(graph_message(brackets), "net.json: must be a JSON object, found an array");
  EXPECT_EQ(graph_message(objects), "net.json: nested deeper than 16 levels");
  EXPECT_EQ(graph_message("{\"a\":" + brackets), "net.json: nested deeper than 16 levels");
  EXPECT_EQ(graph_message(R"({"format": "headroom.graph/1", "values": )" + brackets),
            "net.json: values[0]: must be an object, found an array");
  EXPECT_EQ(graph_message(R"({"format": "headroom.graph/1", "outputs": )" + brackets),
            "net.json: outputs must list strings, found an array");
  EXPECT_EQ(graph_message(R"({"format": "headroom.graph/1", "name": )" + objects),
            "net.json: name must be a string, found an object");
}

TEST(ReadJson, KeepsMessagesShort) {
  const std::string huge(1000000, 'n');
  EXPECT_TRUE(
      graph_message(tiny_with("\"name\": \"tiny\"", "\"" + huge + "\": 1")).starts_with("net.json: unknown key 'nnn"));
  EXPECT_TRUE(
      graph_message(tiny_with("[\"x\"]", "[\"" + huge + "\"]")).starts_with("net.json: op 'f1': inputs names 'nnn"));
  EXPECT_TRUE(graph_message(tiny_with("\"a\"", "\"" + huge + "\\n\", \"b\": 1")).starts_with("net.json: value 'nnn"));
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
  // 10,000 ops in a row, each reading the eight values before it. A generous limit: sanitizers and busy machines.
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
}  // namespace headroom
