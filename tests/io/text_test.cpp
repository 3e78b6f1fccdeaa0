#include "headroom/io/text.h"

#include <gtest/gtest.h>

#include "headroom/io/json.h"
#include "headroom/io/read.h"
#include "tests/io/support.h"

namespace headroom::internal {
namespace {

constexpr const char* kTiny = R"(graph tiny
value x 8 resident
op f1 5: x -> a=4
op r1 5: x -> a t=3
hold t x a
op f2 3 workspace=-1 over=a: a -> loss=4
op b2 6 backward once: a loss -> ga=4
op b1 6 backward: ga x t -> gw=2
outputs loss gw
)";

constexpr const char* kTwo = R"(chain two resident=100 input=4 input_gradient=0
stage conv forward=2 backward=4 output=3 tape=8 forward_workspace=1 backward_workspace=-2 gradient=9
stage loss
)";

Graph tiny() { return parse_graph_text(kTiny); }

std::string graph_message(const std::string& text) {
  return message_of([&] { parse_graph_text(text); });
}
std::string tiny_with(std::string_view from, std::string_view to) { return graph_message(with(kTiny, from, to)); }
std::string chain_message(const std::string& text) {
  return message_of([&] { parse_chain_text(text); });
}
std::string schedule_message(const std::string& text) {
  return message_of([&] { parse_schedule_text(text, tiny()); });
}

TEST(GraphText, Reads) {
  const Graph graph = tiny();
  EXPECT_EQ(graph.name(), "tiny");
  const std::vector<Value> values = {
      {"x", 8, true, {}},     {"a", 4, false, {}},  {"t", 3, false, {ValueId{0}, ValueId{1}}},
      {"loss", 4, false, {}}, {"ga", 4, false, {}}, {"gw", 2, false, {}}};
  const std::vector<Op> ops = {
      {"f1", Phase::kForward, {ValueId{0}}, {ValueId{1}}, 5, 0, true, {}},
      {"r1", Phase::kForward, {ValueId{0}}, {ValueId{1}, ValueId{2}}, 5, 0, true, {}},
      {"f2", Phase::kForward, {ValueId{1}}, {ValueId{3}}, 3, -1, true, {ValueId{1}}},
      {"b2", Phase::kBackward, {ValueId{1}, ValueId{3}}, {ValueId{4}}, 6, 0, false, {}},
      {"b1", Phase::kBackward, {ValueId{4}, ValueId{0}, ValueId{2}}, {ValueId{5}}, 6, 0, true, {}},
  };
  EXPECT_TRUE(same(graph, Graph(GraphSpec{"tiny", values, ops, {ValueId{3}, ValueId{5}}})));
  EXPECT_EQ(to_text(graph), kTiny);
}

TEST(GraphText, IsFreeInItsLayout) {
  const Graph graph = parse_graph_text(
      "\n# a comment\r\n  graph \"tiny\"# so\n\top f1 5:x->a=4\nvalue x 8 resident\n\n outputs a \"x\" # \"\n");
  EXPECT_EQ(to_text(graph), "graph tiny\nop f1 5: x -> a=4\nvalue x 8 resident\noutputs a x\n");
}

TEST(GraphText, DefinesValuesInTheirOrder) {
  // b comes before a, so f cannot define both in the order of its outputs.
  const char* text = "graph g\nvalue b 1\nvalue a 2\nop f 1: -> a b\nop g 1: a -> d=1 e=2\noutputs\n";
  EXPECT_EQ(to_text(parse_graph_text(text)), text);
}

TEST(GraphText, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(graph_message(""), "line 1: expected 'graph', found the end");
  EXPECT_EQ(graph_message("\n\nchain x"), "line 3: expected 'graph', found 'chain'");
  EXPECT_EQ(graph_message("graph"), "line 1: expected the graph's name, found the end");
  EXPECT_EQ(graph_message("graph \"\""), "line 1: expected the graph's name, found ''");
  EXPECT_EQ(graph_message("graph a b"), "line 1: expected the end of the line, found 'b'");
  EXPECT_EQ(graph_message("graph a"), "line 1: expected a line 'outputs', found the end");
  EXPECT_EQ(tiny_with("op f1", "up f1"), "line 3: expected 'value', 'op', 'hold' or 'outputs', found 'up'");
  EXPECT_EQ(tiny_with("op f1", "= f1"), "line 3: expected 'value', 'op', 'hold' or 'outputs', found '='");
  EXPECT_EQ(tiny_with("resident", "residual"), "line 2: expected 'resident', found 'residual'");
  EXPECT_EQ(tiny_with("x 8 resident", "x"),
            "line 2: expected the value's bytes, an integer that fits 64 bits, found the end of the line");
  EXPECT_EQ(tiny_with("x 8", "x -8"), "line 2: the value's bytes must not be negative, found -8");
  EXPECT_EQ(tiny_with("x 8", "x 9223372036854775808"),
            "line 2: expected the value's bytes, an integer that fits 64 bits, found '9223372036854775808'");
  EXPECT_EQ(tiny_with("a=4", "a=4.0"), "line 3: expected the value's bytes, an integer that fits 64 bits, found '4.0'");
  EXPECT_EQ(tiny_with("a=4", "a=\"4\""), "line 3: expected the value's bytes, an integer that fits 64 bits, found '4'");
  EXPECT_EQ(tiny_with("f1 5", "f1 five"),
            "line 3: expected the op's time_ns, an integer that fits 64 bits, found 'five'");
  EXPECT_EQ(tiny_with("f1 5:", "f1 5"), "line 3: expected ':', 'backward', 'once', 'workspace=' or 'over=', found 'x'");
  EXPECT_EQ(tiny_with("x -> a=4", "x"), "line 3: expected a value, found the end of the line");
  EXPECT_EQ(tiny_with("x -> a=4", "x -> -> a=4"), "line 3: expected a value, found '->'");
  EXPECT_EQ(tiny_with("once", "once once"), "line 7: 'once' is given twice");
  EXPECT_EQ(tiny_with("workspace=-1", "workspace"), "line 6: expected '=', found 'over'");
  EXPECT_EQ(tiny_with("over=a", "over=a,"), "line 6: expected a value, found ':'");
  EXPECT_EQ(tiny_with("a t=3", "a=4 t=3"), "line 4: value 'a' has its bytes already");
  EXPECT_EQ(tiny_with("a t=3", "a t"), "line 4: value 't' is given no bytes anywhere");
  EXPECT_EQ(tiny_with("hold t x a", "hold t q a"), "line 5: value 'q' is given no bytes anywhere");
  EXPECT_EQ(tiny_with("hold t x a", "hold q"), "line 5: value 'q' is given no bytes anywhere");
  EXPECT_EQ(tiny_with("hold t x a", "hold t"), "line 5: expected what 't' holds, found nothing");
  EXPECT_EQ(tiny_with("hold t x a", "hold t x\nhold t a"), "line 6: a second line 'hold' for value 't'");
  EXPECT_EQ(tiny_with("outputs loss", "outputs q"), "line 9: value 'q' is given no bytes anywhere");
  EXPECT_EQ(tiny_with("outputs loss", "outputs\noutputs"), "line 10: a second line 'outputs'");
  EXPECT_EQ(tiny_with("op f1", "op \"f1"), "line 3: a string has no end on its line");
  EXPECT_EQ(tiny_with("op f1", "op \"f\\q\""), "line 3: not a string as JSON has them");
  EXPECT_EQ(tiny_with("op f1", "op \"f\xFF\""), "line 3: not a string as JSON has them");
  EXPECT_EQ(tiny_with("op f1", "op f;1"),
            "line 3: unexpected ';'; a name with such a character is written in double quotes");
  EXPECT_EQ(tiny_with("op f1", "op fä"),
            "line 3: unexpected character outside ASCII; a name with such a character is written in double quotes");
  EXPECT_EQ(tiny_with("op r1", "op f1"), "two ops are named 'f1'");
  EXPECT_EQ(message_of([] { parse_graph_text(with(kTiny, "op r1", "op f1"), "net.txt"); }),
            "net.txt: two ops are named 'f1'");
  EXPECT_EQ(message_of([] { parse_graph_text("graph", "net.txt"); }),
            "net.txt: line 1: expected the graph's name, found the end");
}

TEST(ChainText, Reads) {
  const Chain expected{"two", 100, 4, 0, {{"conv", 2, 4, 3, 8, 1, -2, 9}, {"loss", 0, 0, 0, 0, 0, 0, 0}}};
  EXPECT_EQ(parse_chain_text(kTwo), expected);
  EXPECT_EQ(to_text(expected), kTwo);
}

TEST(ChainText, FillsDefaultsIn) {
  const Chain expected{"c", 0, 7, 7, {{"s", 0, 0, 3, 3, 0, 0, 0}}};
  EXPECT_EQ(parse_chain_text("chain c input=7\nstage s output=3"), expected);
  EXPECT_EQ(to_text(expected), "chain c input=7\nstage s output=3\n");
}

TEST(ChainText, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(chain_message("graph c"), "line 1: expected 'chain', found 'graph'");
  EXPECT_EQ(chain_message("chain c\nop f"), "line 2: expected 'stage', found 'op'");
  EXPECT_EQ(chain_message("chain c output=3"),
            "line 1: expected one of resident, input, input_gradient, found 'output'");
  EXPECT_EQ(chain_message("chain c input=3 input=3"), "line 1: 'input' is given twice");
  EXPECT_EQ(chain_message("chain c input 3"), "line 1: expected '=', found '3'");
  EXPECT_EQ(chain_message("chain c input=-3"), "line 1: input must not be negative, found -3");
  EXPECT_EQ(chain_message("chain c\nstage s tape=x"), "line 2: expected tape, an integer that fits 64 bits, found 'x'");
  EXPECT_EQ(chain_message("chain c\nstage s = 3"), "line 2: expected a word such as 'input=', found '='");
  EXPECT_EQ(chain_message("chain c\nstage"), "line 2: expected the stage's name, found the end");
  EXPECT_TRUE(chain_message("chain c").starts_with("a chain has at least one stage"));
  EXPECT_TRUE(chain_message("chain c\nstage s output=3 tape=2").starts_with("stage 1 's'"));
}

TEST(ScheduleText, Reads) {
  const Graph graph = tiny();
  const Schedule expected{{Step::run(OpId{0}), Step::run_over(OpId{2}, ValueId{1}), Step::drop(ValueId{3})}};
  EXPECT_EQ(parse_schedule_text("f1 f2/a -loss", graph), expected);
  EXPECT_EQ(parse_schedule_text("# all\n \"f1\"\n\"f2\" / \"a\" - \"loss\"\n", graph), expected);
  EXPECT_EQ(to_text(graph, expected), "f1 f2/a -loss");
  EXPECT_EQ(parse_schedule_text("", graph), Schedule{});
  EXPECT_EQ(to_text(graph, Schedule{}), "");
}

TEST(ScheduleText, WrapsLines) {
  const Graph graph = tiny();
  const Schedule schedule{
      std::vector<Step>(50, Step::run(OpId{0}))};  // "f1 " 33 times is 99 characters, "f1" once more too long
  const std::string text = to_text(graph, schedule);
  EXPECT_EQ(text.find('\n'), 98U);
  EXPECT_EQ(parse_schedule_text(text, graph), schedule);
}

TEST(ScheduleText, RefusesWhatTheGraphDoesNotHave) {
  EXPECT_EQ(schedule_message("f1\nf9"), "line 2: expected an op of the graph, found 'f9'");
  EXPECT_EQ(schedule_message("-f1"), "line 1: expected a value of the graph, found 'f1'");
  EXPECT_EQ(schedule_message("f2/q"), "line 1: expected a value of the graph, found 'q'");
  EXPECT_EQ(schedule_message("f2/"), "line 1: expected a value, found the end");
  EXPECT_EQ(schedule_message("f1 -"), "line 1: expected a value, found the end");
  EXPECT_EQ(schedule_message("f1: f2"), "line 1: expected an op, found ':'");
  EXPECT_EQ(schedule_message("{\"run\": 1}"),
            "line 1: unexpected '{'; a name with such a character is written in double quotes");
  EXPECT_EQ(message_of([] { parse_schedule_text("f9", tiny(), "s.txt"); }),
            "s.txt: line 1: expected an op of the graph, found 'f9'");
}

TEST(Text, RoundTrips) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph = random_graph(random);
    const std::string text = to_text(graph);
    ASSERT_TRUE(same(parse_graph_text(text), graph)) << "seed " << seed << "\n" << text;
    const Schedule schedule = random_schedule(random, graph);
    ASSERT_EQ(parse_schedule_text(to_text(graph, schedule), graph), schedule) << "seed " << seed << "\n" << text;
    const Chain chain = random_chain(random);
    ASSERT_EQ(parse_chain_text(to_text(chain)), chain) << "seed " << seed << "\n" << to_text(chain);
  }
}

TEST(Text, RefusesEveryTruncation) {
  // A text that ends within its last line can be a valid graph, so the last line is not truncated.
  const std::string text = kTiny;
  for (size_t length = 0; length < text.find("outputs") + 7; ++length)
    EXPECT_NE(graph_message(text.substr(0, length)), "accepted") << length;
}

TEST(Text, RefusesNamesThatNoReaderTakes) {
  EXPECT_EQ(message_of([] { to_text(Graph(GraphSpec{"", {}, {}, {}})); }), "cannot write an empty name");
  EXPECT_TRUE(message_of([] { to_text(Graph(GraphSpec{"\xC0\x80", {}, {}, {}})); }).ends_with("it is not UTF-8"));
}

TEST(WriteChain, RefusesWhatTheFilesCannotSay) {
  Chain chain{"two", 0, 1, 1, {Stage{"conv", 1, 2, 3, 4, 5}, Stage{.name = "loss"}}};
  chain.stages[0].record_workspace_bytes = 5;
  EXPECT_EQ(to_text(parse_chain_text(to_text(chain))), to_text(chain));
  chain.stages[0].record_workspace_bytes = 6;
  const auto expect_refusal = [](const auto& write) {
    try {
      write();
      ADD_FAILURE();
    } catch (const InvalidInput& error) {
      EXPECT_STREQ(error.what(),
                   "stage 1 'conv': recording needs a workspace of 6 bytes, an unrecorded forward 5: a chain file has "
                   "one for both; write the chain's graph instead");
    }
  };
  expect_refusal([&] { to_text(chain); });
  expect_refusal([&] { write_json(chain); });
}

TEST(ReadNetwork, TakesJsonAndText) {
  EXPECT_TRUE(std::holds_alternative<Graph>(read_network(kTiny, "n")));
  EXPECT_TRUE(std::holds_alternative<Chain>(read_network(kTwo, "n")));
  EXPECT_TRUE(std::holds_alternative<Chain>(read_network(std::string("\xEF\xBB\xBF\n# one\n# two\n\n") + kTwo, "n")));
  EXPECT_TRUE(std::holds_alternative<Graph>(read_network(
      "\n {\"format\": \"headroom.graph/1\", \"name\": \"n\", \"values\": [], \"ops\": [], \"outputs\": []}", "n")));
  const auto message = [](const std::string& text) { return message_of([&] { read_network(text, "n"); }); };
  EXPECT_EQ(message(""), "n: expected a graph or a chain, found an empty file");
  EXPECT_EQ(message("# nothing"), "n: expected a graph or a chain, found an empty file");
  EXPECT_EQ(message("[]"), "n: expected a JSON object, or text that begins with 'graph' or 'chain', found '[]'");
  EXPECT_EQ(message("\xFF\xFE"),
            "n: expected a JSON object, or text that begins with 'graph' or 'chain', found what is not UTF-8");
  EXPECT_EQ(message("{]"), "n: line 1, column 2: not valid JSON: unexpected ']'; expected string literal");
  EXPECT_EQ(message("graph"), "n: line 1: expected the graph's name, found the end");
}

TEST(ReadSchedule, TakesJsonAndText) {
  const Schedule expected{{Step::run(OpId{0})}};
  EXPECT_EQ(read_schedule("f1", "s", tiny()), expected);
  EXPECT_EQ(
      read_schedule(R"( {"format": "headroom.schedule/1", "graph": "tiny", "steps": [{"run": "f1"}]})", "s", tiny()),
      expected);
  EXPECT_EQ(message_of([] { read_schedule(" \n", "s", tiny()); }), "s: expected a schedule, found an empty file");
  EXPECT_EQ(message_of([] { read_schedule("f7", "s", tiny()); }), "s: line 1: expected an op of the graph, found 'f7'");
}

}  // namespace
}  // namespace headroom::internal
