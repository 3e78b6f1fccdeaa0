#include "headroom/io/text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headroom/core/quote.h"
#include "headroom/io/names.h"
#include "headroom/io/source_error.h"
#include "headroom/io/text_scanner.h"

namespace headroom {
using namespace internal;
namespace {

void take_keyword(TextScanner& scanner, const char* keyword) {
  const int line = scanner.line();
  const std::string expected = "'" + std::string(keyword) + "'";
  if (const std::string word = scanner.take_word(expected.c_str()); word != keyword)
    scanner.fail_at_line(line, "expected " + expected + ", found " + quote(word));
}

/// Parses a graph. Until the whole text is read, lists of values hold indices of names instead of ids.
class GraphParser {
 public:
  GraphParser(std::string_view text, const std::string& source) : scanner_(text, source), source_(source) {}

  Graph parse() {
    scanner_.skip_line_ends();
    take_keyword(scanner_, "graph");
    spec_.name = scanner_.take_name("the graph's name");
    scanner_.end_line();
    while (!scanner_.at_end()) parse_line();
    if (outputs_line_ == 0) scanner_.fail("expected a line 'outputs', found the end");
    resolve();
    try {
      return Graph(std::move(spec_));
    } catch (const InvalidInput& error) {
      fail_at_source(source_, error.what());
    }
  }

 private:
  struct Hold {
    int32_t holder;
    std::vector<ValueId> held;
    int line;
  };

  void parse_line() {
    const int line = scanner_.line();
    const std::string keyword = scanner_.take_word("'value', 'op', 'hold' or 'outputs'");
    if (keyword == "value") {
      parse_value();
    } else if (keyword == "op") {
      parse_op(line);
    } else if (keyword == "hold") {
      const int32_t holder = names_.intern(scanner_.take_name("a value"));
      holds_.push_back({holder, take_values(), line});
    } else if (keyword == "outputs") {
      if (outputs_line_ != 0) scanner_.fail_at_line(line, "a second line 'outputs'");
      outputs_line_ = line;
      spec_.outputs = take_values();
    } else {
      scanner_.fail_at_line(line, "expected 'value', 'op', 'hold' or 'outputs', found " + quote(keyword));
    }
    scanner_.end_line();
  }

  void parse_value() {
    const int32_t name = names_.intern(scanner_.take_name("the value's name"));
    define(name, scanner_.take_count("the value's bytes"));
    if (scanner_.at_line_end()) return;
    take_keyword(scanner_, "resident");
    spec_.values.back().resident = true;
  }

  void parse_op(int line) {
    Op op;
    op.name = scanner_.take_name("the op's name");
    op.time_ns = scanner_.take_count("the op's time_ns");
    parse_attributes(op);
    while (!scanner_.at_arrow()) op.inputs.push_back(take_value());
    scanner_.expect_arrow();
    while (!scanner_.at_line_end()) {
      op.outputs.push_back(take_value());
      if (scanner_.accept('='))
        define(static_cast<int32_t>(op.outputs.back()), scanner_.take_count("the value's bytes"));
    }
    spec_.ops.push_back(std::move(op));
    op_lines_.push_back(line);
  }

  void parse_attributes(Op& op) {
    enum : size_t { kBackward, kOnce, kWorkspace, kOver };
    constexpr std::array<std::string_view, 4> kAttributes = {"backward", "once", "workspace", "over"};
    std::array<bool, kAttributes.size()> seen = {};
    while (!scanner_.accept(':')) {
      const int line = scanner_.line();
      const std::string word = scanner_.take_word("':', 'backward', 'once', 'workspace=' or 'over='");
      const auto attribute = static_cast<size_t>(std::ranges::find(kAttributes, word) - kAttributes.begin());
      if (attribute == kAttributes.size())
        scanner_.fail_at_line(line, "expected ':', 'backward', 'once', 'workspace=' or 'over=', found " + quote(word));
      if (std::exchange(seen[attribute], true)) scanner_.fail_at_line(line, quote(word) + " is given twice");
      if (attribute == kBackward) op.phase = Phase::kBackward;
      if (attribute == kOnce) op.recompute = false;
      if (attribute == kWorkspace) {
        scanner_.expect('=');
        op.workspace_bytes = scanner_.take_integer("the op's workspace_bytes");
      }
      if (attribute == kOver) {
        scanner_.expect('=');
        do op.overwrites.push_back(take_value());
        while (scanner_.accept(','));
      }
    }
  }

  ValueId take_value() { return static_cast<ValueId>(names_.intern(scanner_.take_name("a value"))); }

  std::vector<ValueId> take_values() {
    std::vector<ValueId> values;
    while (!scanner_.at_line_end()) values.push_back(take_value());
    return values;
  }

  void define(int32_t name, int64_t bytes) {
    value_of_name_.resize(names_.size(), kNone);
    int32_t& id = value_of_name_[static_cast<size_t>(name)];
    if (id != kNone) scanner_.fail("value " + quote(names_[name]) + " has its bytes already");
    id = static_cast<int32_t>(spec_.values.size());
    spec_.values.push_back(Value{names_[name], bytes, false, {}});
  }

  /// Replaces indices of names by ids.
  void resolve() {
    value_of_name_.resize(names_.size(), kNone);
    for (size_t i = 0; i < spec_.ops.size(); ++i) {
      resolve(spec_.ops[i].inputs, op_lines_[i]);
      resolve(spec_.ops[i].outputs, op_lines_[i]);
      resolve(spec_.ops[i].overwrites, op_lines_[i]);
    }
    for (Hold& hold : holds_) {
      Value& holder = spec_.values[static_cast<size_t>(resolved(hold.holder, hold.line))];
      if (!holder.holds.empty())
        scanner_.fail_at_line(hold.line, "a second line 'hold' for value " + quote(holder.name));
      if (hold.held.empty())
        scanner_.fail_at_line(hold.line, "expected what " + quote(holder.name) + " holds, found nothing");
      resolve(hold.held, hold.line);
      holder.holds = std::move(hold.held);
    }
    resolve(spec_.outputs, outputs_line_);
  }

  void resolve(std::vector<ValueId>& names, int line) const {
    for (ValueId& name : names) name = static_cast<ValueId>(resolved(static_cast<int32_t>(name), line));
  }

  int32_t resolved(int32_t name, int line) const {
    const int32_t id = value_of_name_[static_cast<size_t>(name)];
    if (id == kNone) scanner_.fail_at_line(line, "value " + quote(names_[name]) + " is given no bytes anywhere");
    return id;
  }

  static constexpr int32_t kNone = -1;

  TextScanner scanner_;
  const std::string& source_;
  GraphSpec spec_;
  NameTable names_;
  std::vector<int32_t> value_of_name_;
  std::vector<int> op_lines_;
  std::vector<Hold> holds_;
  int outputs_line_ = 0;
};

/// An optional number and its keyword.
struct NamedNumber {
  std::string_view word;
  int64_t* number;
  bool may_be_negative = false;
  bool seen = false;
};

void parse_numbers(TextScanner& scanner, std::span<NamedNumber> numbers) {
  while (!scanner.at_line_end()) {
    const int line = scanner.line();
    const std::string word = scanner.take_word("a word such as 'input='");
    const auto named = std::ranges::find(numbers, std::string_view(word), &NamedNumber::word);
    if (named == numbers.end()) {
      std::string words;
      for (const NamedNumber& known : numbers) words += (words.empty() ? "" : ", ") + std::string(known.word);
      scanner.fail_at_line(line, "expected one of " + words + ", found " + quote(word));
    }
    if (std::exchange(named->seen, true)) scanner.fail_at_line(line, quote(word) + " is given twice");
    scanner.expect('=');
    *named->number = named->may_be_negative ? scanner.take_integer(word.c_str()) : scanner.take_count(word.c_str());
  }
  scanner.end_line();
}

Stage parse_stage(TextScanner& scanner) {
  Stage stage;
  stage.name = scanner.take_name("the stage's name");
  std::array numbers = {
      NamedNumber{"forward", &stage.forward_ns},
      NamedNumber{"backward", &stage.backward_ns},
      NamedNumber{"output", &stage.output_bytes},
      NamedNumber{"tape", &stage.tape_bytes},
      NamedNumber{"forward_workspace", &stage.forward_workspace_bytes, true},
      NamedNumber{"backward_workspace", &stage.backward_workspace_bytes, true},
      NamedNumber{"gradient", &stage.gradient_bytes},
  };
  parse_numbers(scanner, numbers);
  if (!numbers[3].seen) stage.tape_bytes = stage.output_bytes;
  return stage;
}

/// Returns the positions of items by name.
template <typename Items>
std::unordered_map<std::string_view, int32_t> positions(const Items& items) {
  std::unordered_map<std::string_view, int32_t> result;
  for (size_t i = 0; i < items.size(); ++i) result.emplace(items[i].name, static_cast<int32_t>(i));
  return result;
}

void append_names(std::string& out, const Graph& graph, std::span<const ValueId> ids, char separator) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += separator;
    append_text_name(out, graph.value(ids[i]).name);
  }
}

void append_number(std::string& out, const char* word, int64_t number, int64_t otherwise) {
  if (number != otherwise) out += std::string(" ") + word + "=" + std::to_string(number);
}

class GraphPrinter {
 public:
  explicit GraphPrinter(const Graph& graph) : graph_(graph) {}

  std::string print() {
    out_ = "graph ";
    append_text_name(out_, graph_.name());
    out_ += '\n';
    for (const Op& op : graph_.ops()) print_op(op);
    define_by_lines(graph_.values().size());
    out_ += "outputs";
    if (!graph_.outputs().empty()) out_ += ' ';
    append_names(out_, graph_, graph_.outputs(), ' ');
    return out_ + "\n";
  }

 private:
  /// Defines the values before `end` that are not defined yet, because values must be defined in order.
  void define_by_lines(size_t end) {
    for (; defined_ < end; ++defined_) {
      const Value& value = graph_.values()[defined_];
      out_ += "value ";
      append_text_name(out_, value.name);
      out_ += " " + std::to_string(value.bytes) + (value.resident ? " resident\n" : "\n");
      print_holds(value);
    }
  }

  void print_holds(const Value& value) {
    if (value.holds.empty()) return;
    out_ += "hold ";
    append_text_name(out_, value.name);
    out_ += ' ';
    append_names(out_, graph_, value.holds, ' ');
    out_ += '\n';
  }

  void print_op(const Op& op) {
    std::vector<ValueId> fresh;
    for (const ValueId id : op.outputs)
      if (index(id) >= defined_) fresh.push_back(id);
    // The op can define consecutive values itself.
    const bool in_order =
        std::ranges::adjacent_find(fresh, [](ValueId a, ValueId b) { return index(a) + 1 != index(b); }) == fresh.end();
    if (!fresh.empty()) define_by_lines(in_order ? index(fresh.front()) : index(std::ranges::max(fresh)) + 1);

    out_ += "op ";
    append_text_name(out_, op.name);
    out_ += " " + std::to_string(op.time_ns);
    if (op.phase == Phase::kBackward) out_ += " backward";
    if (!op.recompute) out_ += " once";
    append_number(out_, "workspace", op.workspace_bytes, 0);
    if (!op.overwrites.empty()) {
      out_ += " over=";
      append_names(out_, graph_, op.overwrites, ',');
    }
    out_ += op.inputs.empty() ? ":" : ": ";
    append_names(out_, graph_, op.inputs, ' ');
    out_ += " ->";
    const size_t defined_before = defined_;
    for (const ValueId id : op.outputs) {
      out_ += ' ';
      append_text_name(out_, graph_.value(id).name);
      if (index(id) < defined_before) continue;
      out_ += "=" + std::to_string(graph_.value(id).bytes);
      ++defined_;
    }
    out_ += '\n';
    for (size_t v = defined_before; v < defined_; ++v) print_holds(graph_.values()[v]);
  }

  const Graph& graph_;
  std::string out_;
  size_t defined_ = 0;  // The number of values that are already defined.
};

}  // namespace

Graph parse_graph_text(std::string_view text, const std::string& source) { return GraphParser(text, source).parse(); }

Chain parse_chain_text(std::string_view text, const std::string& source) {
  TextScanner scanner(text, source);
  scanner.skip_line_ends();
  take_keyword(scanner, "chain");
  Chain chain;
  chain.name = scanner.take_name("the chain's name");
  std::array numbers = {
      NamedNumber{"resident", &chain.resident_bytes},
      NamedNumber{"input", &chain.input_bytes},
      NamedNumber{"input_gradient", &chain.input_gradient_bytes},
  };
  parse_numbers(scanner, numbers);
  if (!numbers[2].seen) chain.input_gradient_bytes = chain.input_bytes;
  while (!scanner.at_end()) {
    take_keyword(scanner, "stage");
    chain.stages.push_back(parse_stage(scanner));
  }
  if (const std::optional<std::string> problem = lint(chain)) fail_at_source(source, *problem);
  return chain;
}

Schedule parse_schedule_text(std::string_view text, const Graph& graph, const std::string& source) {
  const auto ops = positions(graph.ops());
  const auto values = positions(graph.values());
  TextScanner scanner(text, source);
  const auto take = [&](const std::unordered_map<std::string_view, int32_t>& ids, const char* expected) {
    const int line = scanner.line();
    const std::string name = scanner.take_name(expected);
    const auto id = ids.find(name);
    if (id == ids.end())
      scanner.fail_at_line(line, "expected " + std::string(expected) + " of the graph, found " + quote(name));
    return id->second;
  };
  Schedule schedule;
  for (scanner.skip_line_ends(); !scanner.at_end(); scanner.skip_line_ends()) {
    if (scanner.accept('-')) {
      schedule.steps.push_back(Step::drop(static_cast<ValueId>(take(values, "a value"))));
      continue;
    }
    const auto op = static_cast<OpId>(take(ops, "an op"));
    schedule.steps.push_back(scanner.accept('/') ? Step::run_over(op, static_cast<ValueId>(take(values, "a value")))
                                                 : Step::run(op));
  }
  return schedule;
}

std::string to_text(const Graph& graph) { return GraphPrinter(graph).print(); }

std::string to_text(const Chain& chain) {
  check_chain_can_be_written(chain);
  std::string out = "chain ";
  append_text_name(out, chain.name);
  append_number(out, "resident", chain.resident_bytes, 0);
  append_number(out, "input", chain.input_bytes, 0);
  append_number(out, "input_gradient", chain.input_gradient_bytes, chain.input_bytes);
  out += '\n';
  for (const Stage& stage : chain.stages) {
    out += "stage ";
    append_text_name(out, stage.name);
    append_number(out, "forward", stage.forward_ns, 0);
    append_number(out, "backward", stage.backward_ns, 0);
    append_number(out, "output", stage.output_bytes, 0);
    append_number(out, "tape", stage.tape_bytes, stage.output_bytes);
    append_number(out, "forward_workspace", stage.forward_workspace_bytes, 0);
    append_number(out, "backward_workspace", stage.backward_workspace_bytes, 0);
    append_number(out, "gradient", stage.gradient_bytes, 0);
    out += '\n';
  }
  return out;
}

std::string to_text(const Graph& graph, const Schedule& schedule) {
  constexpr size_t kLineLength = 100;
  std::string out;
  size_t line_begin = 0;
  for (const Step& step : schedule.steps) {
    std::string word = step.is_run() ? "" : "-";
    append_text_name(word, step.is_run() ? graph.op(step.op()).name : graph.value(step.value()).name);
    if (step.is_over()) {
      word += '/';
      append_text_name(word, graph.value(step.value()).name);
    }
    if (!out.empty()) {
      const bool fits = out.size() - line_begin + 1 + word.size() <= kLineLength;
      out += fits ? ' ' : '\n';
      if (!fits) line_begin = out.size();
    }
    out += word;
  }
  return out;
}

}  // namespace headroom
