#include "headroom/plan/auto/blocks.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

constexpr ValueId kNone{-1};
/// Maximum number of ops in a block, which bounds the time to search a long graph.
constexpr int32_t kMaxBlockLength = 2'000;

size_t at(int32_t i) { return static_cast<size_t>(i); }

/// Returns all that must be equal in two equal ops, except the sources of their inputs.
std::vector<int64_t> label_of(const Graph& graph, const Op& op) {
  std::vector<int64_t> label = {op.time_ns,
                                op.workspace_bytes,
                                op.recompute ? 1 : 0,
                                std::ssize(op.inputs),
                                std::ssize(op.outputs),
                                std::ssize(op.overwrites)};
  for (const ValueId id : op.outputs) {
    label.push_back(graph.value(id).bytes);
    label.push_back(graph.is_output(id) ? 1 : 0);
  }
  return label;
}

struct Repeat {
  int32_t first = 0;
  int32_t length = 0;
  int32_t count = 0;
};

/// Returns the sequence of labels that repeats at least `least` times in a row and covers the most ops; the shortest of
/// several such sequences.
Repeat find_repeat(std::span<const size_t> labels, int32_t least) {
  const auto size = static_cast<int32_t>(labels.size());
  Repeat best;
  for (int32_t length = 1; length <= std::min(size / least, kMaxBlockLength); ++length) {
    int32_t same = 0;
    for (int32_t i = 0; i + length <= size; ++i) {
      if (i + length < size && labels[at(i)] == labels[at(i + length)]) {
        ++same;
        continue;
      }
      const int32_t count = same / length + 1;
      if (count >= least && count * length > best.count * best.length) best = {i - same, length, count};
      same = 0;
    }
  }
  return best;
}

struct Source {
  OpId op;
  size_t output;
};

Source source_of(const Graph& graph, ValueId id) {
  const OpId op = graph.producers(id).front();
  const std::vector<ValueId>& outputs = graph.op(op).outputs;
  return {op, static_cast<size_t>(std::ranges::find(outputs, id) - outputs.begin())};
}

/// Adds to `seen` the sources of what an op reads and of what its outputs hold, relative to the op's block.
void add_reads(const Graph& graph, const Blocks& blocks, size_t op, std::vector<int64_t>& seen) {
  const auto add = [&](std::span<const ValueId> ids) {
    seen.push_back(std::ssize(ids));
    for (const ValueId id : ids) {
      if (graph.value(id).resident) {
        seen.insert(seen.end(), {-1, graph.value(id).bytes});
        continue;
      }
      const Source source = source_of(graph, id);
      const Blocks::Place& place = blocks.places[index(source.op)];
      const bool is_in = place.block >= 0;
      seen.insert(seen.end(),
                  {static_cast<int64_t>(source.output), is_in ? 1 : 0, place.is_backward ? 1 : 0, place.offset,
                   is_in ? place.block - blocks.places[op].block : static_cast<int64_t>(source.op)});
    }
  };
  add(graph.ops()[op].inputs);
  add(graph.ops()[op].overwrites);
  for (const ValueId id : graph.ops()[op].outputs) add(graph.value(id).holds);
}

bool has_alternatives(const Graph& graph) {
  for (size_t i = 0; i < graph.values().size(); ++i)
    if (graph.producers(value_id(i)).size() > 1) return true;
  return false;
}

/// Returns the value that an op of the folded graph reads or holds instead of `id`: that of the block at the same
/// distance in the folded graph. Returns kNone where an op in no block reads a block that is left out, or where there
/// is no such block.
ValueId read_instead(const Graph& graph, const Blocks& blocks, const Gap& gap, ValueId id,
                     const Blocks::Place& reader) {
  if (graph.value(id).resident) return id;
  const Source source = source_of(graph, id);
  Blocks::Place place = blocks.places[index(source.op)];
  if (place.block < 0) return id;
  if (reader.block < 0) return gap.is_out(place.block) ? kNone : id;
  place.block = gap.whole(gap.folded(reader.block) + place.block - reader.block);
  if (place.block < 0 || place.block >= blocks.count) return kNone;
  return graph.ops()[at(blocks.op_at(place))].outputs[source.output];
}

GraphSpec folded_spec(const Graph& graph, const Blocks& blocks, const Gap& gap, const std::vector<int32_t>& op_of) {
  GraphSpec spec;
  spec.name = graph.name();
  std::vector<ValueId> new_id(graph.values().size(), kNone);
  const auto add = [&](ValueId id) {
    new_id[index(id)] = value_id(spec.values.size());
    spec.values.push_back(graph.value(id));
  };
  for (size_t i = 0; i < graph.values().size(); ++i)
    if (graph.values()[i].resident) add(value_id(i));
  for (const int32_t op : op_of)
    for (const ValueId id : graph.ops()[at(op)].outputs) add(id);
  for (const int32_t i : op_of) {
    const auto replace = [&](std::vector<ValueId>& ids) {
      for (ValueId& id : ids) {
        const ValueId read = read_instead(graph, blocks, gap, id, blocks.places[at(i)]);
        id = read == kNone ? kNone : new_id[index(read)];
      }
      std::erase(ids, kNone);
    };
    Op op = graph.ops()[at(i)];
    replace(op.inputs);
    replace(op.overwrites);
    for (ValueId& id : op.outputs) {
      id = new_id[index(id)];
      replace(spec.values[index(id)].holds);
    }
    spec.ops.push_back(std::move(op));
  }
  for (const ValueId id : graph.outputs())
    if (new_id[index(id)] != kNone) spec.outputs.push_back(new_id[index(id)]);
  return spec;
}

/// Reruns by the op of the whole graph before whose first run they are; the last entry has those at the end.
using Reruns = std::vector<std::vector<int32_t>>;

Reruns reruns_of(const Folding& folding, const std::vector<int32_t>& runs) {
  Reruns before(folding.blocks.places.size() + 1);
  std::vector<int32_t> waiting;
  size_t next = 0;
  for (const int32_t run : runs) {
    const int32_t op = folding.op_of[at(run)];
    if (at(run) == next) {
      before[at(op)] = std::exchange(waiting, {});
      ++next;
    } else {
      waiting.push_back(op);
    }
  }
  before.back() = std::move(waiting);
  return before;
}

}  // namespace

std::optional<Blocks> find_blocks(const Graph& graph, int32_t least) {
  if (has_alternatives(graph)) return std::nullopt;
  std::map<std::vector<int64_t>, size_t> numbers;
  std::vector<size_t> labels;
  for (const Op& op : graph.ops())
    labels.push_back(numbers.try_emplace(label_of(graph, op), numbers.size()).first->second);
  const auto is_backward = [](const Op& op) { return op.phase == Phase::kBackward; };
  const auto split = static_cast<size_t>(std::ranges::find_if(graph.ops(), is_backward) - graph.ops().begin());
  const Repeat forward = find_repeat(std::span(labels).first(split), least);
  const Repeat backward = find_repeat(std::span(labels).subspan(split), least);

  Blocks blocks;
  blocks.forward = {forward.first, forward.length};
  blocks.backward = {static_cast<int32_t>(split) + backward.first, backward.length};
  blocks.count = std::min(forward.count, backward.count);
  blocks.places.resize(labels.size());
  for (int32_t block = 0; block < blocks.count; ++block) {
    for (const bool is_back : {false, true}) {
      for (int32_t i = 0; i < (is_back ? backward.length : forward.length); ++i) {
        const Blocks::Place place{block, i, is_back};
        blocks.places[at(blocks.op_at(place))] = place;
      }
    }
  }
  std::vector<std::vector<int64_t>> reads(at(blocks.count));
  for (size_t op = 0; op < blocks.places.size(); ++op)
    if (blocks.places[op].block >= 0) add_reads(graph, blocks, op, reads[at(blocks.places[op].block)]);
  for (int32_t first = 0, end = 1; first < blocks.count; first = end++) {
    while (end < blocks.count && reads[at(end)] == reads[at(first)]) ++end;
    if (end - first <= blocks.equal_count) continue;
    blocks.first_equal = first;
    blocks.equal_count = end - first;
  }
  if (blocks.equal_count < least) return std::nullopt;
  return blocks;
}

std::optional<Folding> fold(const Graph& graph, int32_t most, int32_t least) {
  HEADROOM_ASSERT(2 <= most && most < least);
  std::optional<Blocks> blocks = find_blocks(graph, least);
  if (!blocks) return std::nullopt;
  const Gap gap{blocks->first_equal + most / 2 - 1, blocks->equal_count - most};
  std::vector<int32_t> op_of;
  for (size_t i = 0; i < graph.ops().size(); ++i)
    if (!gap.is_out(blocks->places[i].block)) op_of.push_back(static_cast<int32_t>(i));
  try {
    Graph folded(folded_spec(graph, *blocks, gap, op_of));
    return Folding{std::move(folded), std::move(op_of), std::move(*blocks), gap};
  } catch (const InvalidInput&) {
    // The blocks left on both sides of the gap do not fit together.
    return std::nullopt;
  }
}

std::vector<int32_t> unfold(const Folding& folding, const std::vector<int32_t>& runs,
                            const std::vector<int32_t>& others, int percent) {
  const Blocks& blocks = folding.blocks;
  const Reruns reruns = reruns_of(folding, runs);
  const Reruns other_reruns = reruns_of(folding, others);
  const int64_t left_count = blocks.equal_count - folding.gap.out_count;
  std::vector<int32_t> unfolded;
  std::vector<uint8_t> has_run(blocks.places.size(), 0);
  for (size_t i = 0; i <= blocks.places.size(); ++i) {
    const Blocks::Place place = i < blocks.places.size() ? blocks.places[i] : Blocks::Place{};
    size_t model = i;
    int32_t folded = folding.gap.folded(place.block);
    bool is_other = false;
    if (const int32_t k = place.block - blocks.first_equal; place.block >= 0 && k >= 0 && k < blocks.equal_count) {
      folded = blocks.first_equal + static_cast<int32_t>(k * left_count / blocks.equal_count);
      is_other = k * left_count % blocks.equal_count * 100 >= percent * blocks.equal_count;
      model = at(blocks.op_at({folding.gap.whole(folded), place.offset, place.is_backward}));
    }
    for (int32_t op : (is_other ? other_reruns : reruns)[model]) {
      Blocks::Place again = blocks.places[at(op)];
      if (place.block >= 0 && again.block >= 0) {
        again.block = place.block + folding.gap.folded(again.block) - folded;
        if (again.block < 0 || again.block >= blocks.count) continue;
        op = blocks.op_at(again);
      }
      if (has_run[at(op)] != 0) unfolded.push_back(op);
    }
    if (i == blocks.places.size()) break;
    unfolded.push_back(static_cast<int32_t>(i));
    has_run[i] = 1;
  }
  return unfolded;
}

}  // namespace headroom::internal
