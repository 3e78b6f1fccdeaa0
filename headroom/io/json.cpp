#include "headroom/io/json.h"

#include <array>
#include <span>

#include "headroom/core/quote.h"
#include "headroom/io/json_document.h"
#include "headroom/io/names.h"
#include "headroom/io/source_error.h"

namespace headroom {
using namespace internal;
namespace {

constexpr std::string_view kGraphFormat = "headroom.graph/1";
constexpr std::string_view kChainFormat = "headroom.chain/1";
constexpr std::string_view kScheduleFormat = "headroom.schedule/1";
constexpr std::string_view kPlacementFormat = "headroom.placement/1";

// Each array of fields has the order of the enumeration before it.

namespace value_field {
enum : size_t { kName, kBytes, kResident, kHolds };
}
constexpr std::array kValueFields = {
    Field{"name", FieldKind::kString, true},
    Field{"bytes", FieldKind::kCount, true},
    Field{"resident", FieldKind::kBoolean, false},
    Field{"holds", FieldKind::kNames, false},
};
constexpr RecordSchema kValueSchema{"value", kValueFields};

namespace op_field {
enum : size_t { kName, kPhase, kInputs, kOutputs, kTime, kWorkspace, kRecompute, kOverwrites };
}
constexpr std::array kOpFields = {
    Field{"name", FieldKind::kString, true},        Field{"phase", FieldKind::kString, false},
    Field{"inputs", FieldKind::kNames, true},       Field{"outputs", FieldKind::kNames, true},
    Field{"time_ns", FieldKind::kCount, true},      Field{"workspace_bytes", FieldKind::kInteger, false},
    Field{"recompute", FieldKind::kBoolean, false}, Field{"overwrites", FieldKind::kNames, false},
};
constexpr RecordSchema kOpSchema{"op", kOpFields};

namespace graph_field {
enum : size_t { kFormat, kName, kValues, kOps, kOutputs };
}
constexpr std::array kGraphFields = {
    Field{"format", FieldKind::kString, true},
    Field{"name", FieldKind::kString, true},
    Field{"values", FieldKind::kRecords, true, &kValueSchema},
    Field{"ops", FieldKind::kRecords, true, &kOpSchema},
    Field{"outputs", FieldKind::kNames, true},
};
constexpr RecordSchema kGraphSchema{"graph", kGraphFields};

namespace stage_field {
enum : size_t { kName, kForward, kBackward, kOutput, kTape, kForwardWorkspace, kBackwardWorkspace, kGradient };
}
constexpr std::array kStageFields = {
    Field{"name", FieldKind::kString, true},
    Field{"forward_ns", FieldKind::kCount, true},
    Field{"backward_ns", FieldKind::kCount, true},
    Field{"output_bytes", FieldKind::kCount, true},
    Field{"tape_bytes", FieldKind::kCount, true},
    Field{"forward_workspace_bytes", FieldKind::kInteger, false},
    Field{"backward_workspace_bytes", FieldKind::kInteger, false},
    Field{"gradient_bytes", FieldKind::kCount, false},
};
constexpr RecordSchema kStageSchema{"stage", kStageFields};

namespace chain_field {
enum : size_t { kFormat, kName, kResident, kInput, kInputGradient, kStages };
}
constexpr std::array kChainFields = {
    Field{"format", FieldKind::kString, true},
    Field{"name", FieldKind::kString, true},
    Field{"resident_bytes", FieldKind::kCount, false},
    Field{"input_bytes", FieldKind::kCount, true},
    Field{"input_gradient_bytes", FieldKind::kCount, false},
    Field{"stages", FieldKind::kRecords, true, &kStageSchema},
};
constexpr RecordSchema kChainSchema{"chain", kChainFields};

namespace step_field {
enum : size_t { kRun, kDrop, kOver };
}
constexpr std::array kStepFields = {
    Field{"run", FieldKind::kString, false},
    Field{"drop", FieldKind::kString, false},
    Field{"over", FieldKind::kString, false},
};
constexpr RecordSchema kStepSchema{"", kStepFields};

namespace schedule_field {
enum : size_t { kFormat, kGraph, kSteps };
}
constexpr std::array kScheduleFields = {
    Field{"format", FieldKind::kString, true},
    Field{"graph", FieldKind::kString, true},
    Field{"steps", FieldKind::kRecords, true, &kStepSchema},
};
constexpr RecordSchema kScheduleSchema{"schedule", kScheduleFields};

namespace offset_field {
enum : size_t { kStep, kValue, kWorkspace, kOffset };
}
constexpr std::array kOffsetFields = {
    Field{"step", FieldKind::kCount, true},
    Field{"value", FieldKind::kString, false},
    Field{"workspace", FieldKind::kBoolean, false},
    Field{"offset", FieldKind::kCount, true},
};
constexpr RecordSchema kOffsetSchema{"", kOffsetFields};

namespace placement_field {
enum : size_t { kFormat, kGraph, kAlignment, kArena, kOffsets };
}
constexpr std::array kPlacementFields = {
    Field{"format", FieldKind::kString, true},
    Field{"graph", FieldKind::kString, true},
    Field{"alignment", FieldKind::kCount, true},
    Field{"arena_bytes", FieldKind::kCount, true},
    Field{"offsets", FieldKind::kRecords, true, &kOffsetSchema},
};
constexpr RecordSchema kPlacementSchema{"placement", kPlacementFields};

[[noreturn]] void fail_format(const std::string& source, const std::string& expected, std::string_view found) {
  fail_at_source(source, "format must be " + expected + ", found " + quote(found));
}

int64_t number_or(const Slot& slot, int64_t otherwise) { return slot.present ? slot.number : otherwise; }

constexpr int32_t kNoId = -1;

/// Resolves the names in the lists of a document to values.
class ValueNames {
 public:
  ValueNames(const Document& document, const std::string& source) : document_(document), source_(source) {
    const Table& values = document.tables[graph_field::kValues];
    ids_.assign(document.names.size(), kNoId);
    for (size_t i = 0; i < values.size(); ++i)
      ids_[static_cast<size_t>(values[i][value_field::kName].number)] = static_cast<int32_t>(i);
  }

  /// Returns the ids of the values that a list names. Messages name the list by `owner` and `key`.
  std::vector<ValueId> ids(const Slot& slot, const char* owner_noun, const Slot* owner, const char* key) const {
    const std::span<const int32_t> names = document_.list(slot);
    std::vector<ValueId> ids;
    ids.reserve(names.size());
    for (const int32_t name : names) {
      const int32_t id = ids_[static_cast<size_t>(name)];
      if (id == kNoId) {
        const std::string where = owner == nullptr ? "" : owner_noun + (" " + quote(document_.string(*owner))) + ": ";
        fail_at_source(source_,
                       where + key + " names " + quote(document_.names[name]) + ", which is not a value of the graph");
      }
      ids.push_back(static_cast<ValueId>(id));
    }
    return ids;
  }

 private:
  const Document& document_;
  const std::string& source_;
  std::vector<int32_t> ids_;  // The value of each name of the document.
};

Op make_op(const Document& document, std::span<const Slot> slots, const ValueNames& values, const std::string& source) {
  const Slot* const name = &slots[op_field::kName];
  Op op;
  op.name = document.string(*name);
  if (slots[op_field::kPhase].present) {
    const std::string& phase = document.string(slots[op_field::kPhase]);
    if (phase != "forward" && phase != "backward")
      fail_at_source(source, "op " + quote(op.name) + ": phase must be 'forward' or 'backward', found " + quote(phase));
    op.phase = phase == "forward" ? Phase::kForward : Phase::kBackward;
  }
  op.inputs = values.ids(slots[op_field::kInputs], "op", name, "inputs");
  op.outputs = values.ids(slots[op_field::kOutputs], "op", name, "outputs");
  op.time_ns = slots[op_field::kTime].number;
  op.workspace_bytes = number_or(slots[op_field::kWorkspace], 0);
  op.recompute = number_or(slots[op_field::kRecompute], 1) != 0;
  op.overwrites = values.ids(slots[op_field::kOverwrites], "op", name, "overwrites");
  return op;
}

Graph make_graph(const Document& document, const std::string& source) {
  const ValueNames names(document, source);
  const Table& values = document.tables[graph_field::kValues];
  const Table& ops = document.tables[graph_field::kOps];
  GraphSpec spec;
  spec.name = document.string(document.root[graph_field::kName]);
  spec.values.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const std::span<const Slot> slots = values[i];
    Value value;
    value.name = document.string(slots[value_field::kName]);
    value.bytes = slots[value_field::kBytes].number;
    value.resident = number_or(slots[value_field::kResident], 0) != 0;
    value.holds = names.ids(slots[value_field::kHolds], "value", &slots[value_field::kName], "holds");
    spec.values.push_back(std::move(value));
  }
  spec.ops.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) spec.ops.push_back(make_op(document, ops[i], names, source));
  spec.outputs = names.ids(document.root[graph_field::kOutputs], "", nullptr, "outputs");
  try {
    return Graph(std::move(spec));
  } catch (const InvalidInput& error) {
    fail_at_source(source, error.what());
  }
}

Chain make_chain(const Document& document, const std::string& source) {
  Chain chain;
  chain.name = document.string(document.root[chain_field::kName]);
  chain.resident_bytes = number_or(document.root[chain_field::kResident], 0);
  chain.input_bytes = document.root[chain_field::kInput].number;
  chain.input_gradient_bytes = number_or(document.root[chain_field::kInputGradient], chain.input_bytes);
  const Table& stages = document.tables[chain_field::kStages];
  chain.stages.reserve(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::span<const Slot> slots = stages[i];
    Stage stage;
    stage.name = document.string(slots[stage_field::kName]);
    stage.forward_ns = slots[stage_field::kForward].number;
    stage.backward_ns = slots[stage_field::kBackward].number;
    stage.output_bytes = slots[stage_field::kOutput].number;
    stage.tape_bytes = slots[stage_field::kTape].number;
    stage.forward_workspace_bytes = number_or(slots[stage_field::kForwardWorkspace], 0);
    stage.backward_workspace_bytes = number_or(slots[stage_field::kBackwardWorkspace], 0);
    stage.gradient_bytes = number_or(slots[stage_field::kGradient], 0);
    chain.stages.push_back(std::move(stage));
  }
  if (const std::optional<std::string> problem = lint(chain)) fail_at_source(source, *problem);
  return chain;
}

/// Returns by name of a document: the position of the item of a graph with that name, or kNoId.
template <typename Items>
std::vector<int32_t> positions_of(const Document& document, const Items& items) {
  std::vector<int32_t> positions(document.names.size(), kNoId);
  for (size_t i = 0; i < items.size(); ++i)
    if (const auto name = document.names.find(items[i].name))
      positions[static_cast<size_t>(*name)] = static_cast<int32_t>(i);
  return positions;
}

/// Resolves the names in a schedule's steps to what the graph has.
class StepReader {
 public:
  StepReader(const Document& document, const std::string& source, const Graph& graph)
      : document_(document),
        source_(source),
        ops_(positions_of(document, graph.ops())),
        values_(positions_of(document, graph.values())) {}

  Step read(std::span<const Slot> slots, size_t position) const {
    const Slot& run = slots[step_field::kRun];
    const Slot& drop = slots[step_field::kDrop];
    const Slot& over = slots[step_field::kOver];
    if (run.present == drop.present)
      fail_at_source(source_, where(position) + "must have exactly one of run and drop, found " +
                                  (run.present ? "both" : "neither"));
    if (over.present && !run.present)
      fail_at_source(source_, where(position) + "over goes only with run, found it with drop");
    if (drop.present) return Step::drop(static_cast<ValueId>(id(drop, values_, "drop", "a value", position)));
    const auto op = static_cast<OpId>(id(run, ops_, "run", "an op", position));
    if (!over.present) return Step::run(op);
    return Step::run_over(op, static_cast<ValueId>(id(over, values_, "over", "a value", position)));
  }

 private:
  static std::string where(size_t position) { return "steps[" + std::to_string(position) + "]: "; }
  int32_t id(const Slot& slot, const std::vector<int32_t>& ids, const char* key, const char* kind,
             size_t position) const {
    const int32_t found = ids[static_cast<size_t>(slot.number)];
    if (found == kNoId)
      fail_at_source(source_, where(position) + key + " names " + quote(document_.string(slot)) + ", which is not " +
                                  kind + " of the graph");
    return found;
  }

  const Document& document_;
  const std::string& source_;
  std::vector<int32_t> ops_;     // by name
  std::vector<int32_t> values_;  // by name
};

PlacedBuffer read_offset(const Document& document, const std::string& source, std::span<const Slot> slots,
                         const std::vector<int32_t>& values, size_t position) {
  const std::string where = "offsets[" + std::to_string(position) + "]: ";
  const Slot& value = slots[offset_field::kValue];
  const Slot& workspace = slots[offset_field::kWorkspace];
  if (workspace.present && workspace.number == 0) fail_at_source(source, where + "workspace must be true, found false");
  if (value.present == workspace.present)
    fail_at_source(
        source, where + "must have exactly one of value and workspace, found " + (value.present ? "both" : "neither"));
  PlacedBuffer buffer{static_cast<size_t>(slots[offset_field::kStep].number), {}, slots[offset_field::kOffset].number};
  if (workspace.present) return buffer;
  const int32_t id = values[static_cast<size_t>(value.number)];
  if (id == kNoId)
    fail_at_source(source,
                   where + "value names " + quote(document.string(value)) + ", which is not a value of the graph");
  buffer.value = static_cast<ValueId>(id);
  return buffer;
}

/// Reads a document that must have this format.
Document read_document_of(std::string_view format, std::string_view text, const std::string& source,
                          const RecordSchema& schema) {
  if (const std::string found = read_format(text, source); found != format) fail_format(source, quote(format), found);
  return read_document(text, source, schema);
}

void check_graph_name(const std::string& found, const Graph& graph, const char* noun, const std::string& source) {
  if (found != graph.name())
    fail_at_source(source, "graph must be " + quote(graph.name()) + ", the one that the " + noun +
                               " is read for, found " + quote(found));
}

void append_key(std::string& out, const char* key) {
  out += out.back() == '{' ? "\"" : ", \"";
  out += key;
  out += "\": ";
}

void append_field(std::string& out, const char* key, int64_t number) {
  append_key(out, key);
  out += std::to_string(number);
}

void append_field(std::string& out, const char* key, std::string_view name) {
  append_key(out, key);
  append_json_string(out, name);
}

void append_names(std::string& out, std::span<const ValueId> ids, std::span<const Value> values) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ", ";
    append_json_string(out, values[index(ids[i])].name);
  }
  out += ']';
}

void append_field(std::string& out, const char* key, std::span<const ValueId> ids, std::span<const Value> values) {
  append_key(out, key);
  append_names(out, ids, values);
}

/// Appends a JSON array with one line for each item.
template <typename Items, typename Append>
void append_lines(std::string& out, const Items& items, const Append& append) {
  out += '[';
  bool first = true;
  for (const auto& item : items) {
    out += first ? "\n    {" : ",\n    {";
    first = false;
    append(item);
    out += '}';
  }
  out += first ? "]" : "\n  ]";
}

std::string begin_object(std::string_view format, const char* name_key, std::string_view name) {
  std::string out = "{\n  \"format\": ";
  append_json_string(out, format);
  out += ",\n  \"" + std::string(name_key) + "\": ";
  append_json_string(out, name);
  return out + ",\n";
}

}  // namespace

Graph read_graph_json(std::string_view text, const std::string& source) {
  return make_graph(read_document_of(kGraphFormat, text, source, kGraphSchema), source);
}

Chain read_chain_json(std::string_view text, const std::string& source) {
  return make_chain(read_document_of(kChainFormat, text, source, kChainSchema), source);
}

std::variant<Graph, Chain> read_network_json(std::string_view text, const std::string& source) {
  const std::string format = read_format(text, source);
  if (format == kGraphFormat) return make_graph(read_document(text, source, kGraphSchema), source);
  if (format == kChainFormat) return make_chain(read_document(text, source, kChainSchema), source);
  fail_format(source, quote(kGraphFormat) + " or " + quote(kChainFormat), format);
}

Schedule read_schedule_json(std::string_view text, const std::string& source, const Graph& graph) {
  const Document document = read_document_of(kScheduleFormat, text, source, kScheduleSchema);
  check_graph_name(document.string(document.root[schedule_field::kGraph]), graph, "schedule", source);
  const StepReader reader(document, source, graph);
  const Table& steps = document.tables[schedule_field::kSteps];
  Schedule schedule;
  schedule.steps.reserve(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) schedule.steps.push_back(reader.read(steps[i], i));
  return schedule;
}

Placement read_placement_json(std::string_view text, const std::string& source, const Graph& graph) {
  const Document document = read_document_of(kPlacementFormat, text, source, kPlacementSchema);
  check_graph_name(document.string(document.root[placement_field::kGraph]), graph, "placement", source);
  Placement placement;
  placement.alignment = document.root[placement_field::kAlignment].number;
  placement.arena_bytes = document.root[placement_field::kArena].number;
  if (placement.alignment == 0) fail_at_source(source, "alignment must be at least 1, found 0");
  const std::vector<int32_t> values = positions_of(document, graph.values());
  const Table& offsets = document.tables[placement_field::kOffsets];
  placement.offsets.reserve(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i)
    placement.offsets.push_back(read_offset(document, source, offsets[i], values, i));
  return placement;
}

std::string write_json(const Graph& graph) {
  const std::span<const Value> values = graph.values();
  std::string out = begin_object(kGraphFormat, "name", graph.name());
  out += "  \"values\": ";
  append_lines(out, values, [&](const Value& value) {
    append_field(out, "name", value.name);
    append_field(out, "bytes", value.bytes);
    if (value.resident) {
      append_key(out, "resident");
      out += "true";
    }
    if (!value.holds.empty()) append_field(out, "holds", value.holds, values);
  });
  out += ",\n  \"ops\": ";
  append_lines(out, graph.ops(), [&](const Op& op) {
    append_field(out, "name", op.name);
    if (op.phase == Phase::kBackward) append_field(out, "phase", "backward");
    append_field(out, "inputs", op.inputs, values);
    append_field(out, "outputs", op.outputs, values);
    append_field(out, "time_ns", op.time_ns);
    if (op.workspace_bytes != 0) append_field(out, "workspace_bytes", op.workspace_bytes);
    if (!op.recompute) {
      append_key(out, "recompute");
      out += "false";
    }
    if (!op.overwrites.empty()) append_field(out, "overwrites", op.overwrites, values);
  });
  out += ",\n  \"outputs\": ";
  append_names(out, graph.outputs(), values);
  return out + "\n}\n";
}

std::string write_json(const Chain& chain) {
  check_chain_can_be_written(chain);
  std::string out = begin_object(kChainFormat, "name", chain.name);
  out += "  ";
  if (chain.resident_bytes != 0) out += "\"resident_bytes\": " + std::to_string(chain.resident_bytes) + ", ";
  out += "\"input_bytes\": " + std::to_string(chain.input_bytes);
  if (chain.input_gradient_bytes != chain.input_bytes)
    append_field(out, "input_gradient_bytes", chain.input_gradient_bytes);
  out += ",\n  \"stages\": ";
  append_lines(out, chain.stages, [&](const Stage& stage) {
    append_field(out, "name", stage.name);
    append_field(out, "forward_ns", stage.forward_ns);
    append_field(out, "backward_ns", stage.backward_ns);
    append_field(out, "output_bytes", stage.output_bytes);
    append_field(out, "tape_bytes", stage.tape_bytes);
    if (stage.forward_workspace_bytes != 0) append_field(out, "forward_workspace_bytes", stage.forward_workspace_bytes);
    if (stage.backward_workspace_bytes != 0)
      append_field(out, "backward_workspace_bytes", stage.backward_workspace_bytes);
    if (stage.gradient_bytes != 0) append_field(out, "gradient_bytes", stage.gradient_bytes);
  });
  return out + "\n}\n";
}

std::string write_json(const Graph& graph, const Schedule& schedule) {
  std::string out = begin_object(kScheduleFormat, "graph", graph.name());
  out += "  \"steps\": ";
  append_lines(out, schedule.steps, [&](const Step& step) {
    if (step.is_run()) append_field(out, "run", graph.op(step.op()).name);
    if (step.is_over()) append_field(out, "over", graph.value(step.value()).name);
    if (!step.is_run()) append_field(out, "drop", graph.value(step.value()).name);
  });
  return out + "\n}\n";
}

std::string write_json(const Graph& graph, const Placement& placement) {
  std::string out = begin_object(kPlacementFormat, "graph", graph.name());
  out += "  \"alignment\": " + std::to_string(placement.alignment);
  append_field(out, "arena_bytes", placement.arena_bytes);
  out += ",\n  \"offsets\": ";
  append_lines(out, placement.offsets, [&](const PlacedBuffer& buffer) {
    append_field(out, "step", static_cast<int64_t>(buffer.step));
    if (buffer.value) {
      append_field(out, "value", graph.value(*buffer.value).name);
    } else {
      append_key(out, "workspace");
      out += "true";
    }
    append_field(out, "offset", buffer.offset);
  });
  return out + "\n}\n";
}

}  // namespace headroom
