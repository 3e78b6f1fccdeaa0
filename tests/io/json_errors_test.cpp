// The readers of JSON refuse everything outside the format, with messages that name the place.

#include <gtest/gtest.h>

#include "tests/io/json_examples.h"

namespace headroom::internal {
namespace {

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

}  // namespace
}  // namespace headroom::internal
