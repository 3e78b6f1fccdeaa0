#include "headroom/plan/blocks.h"

#include <algorithm>
#include <span>
#include <utility>

#include "headroom/core/error.h"

namespace headroom {
namespace {

constexpr ValueId kNone{-1};
constexpr int32_t kMostLength = 2'000;  ///< of blocks, so that very long graphs are searched quickly

size_t at(int32_t i) { return static_cast<size_t>(i); }

class Hash {
 public:
  Hash& add(int64_t x) {
    state_ = (state_ ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15U;
    state_ ^= state_ >> 29U;
    return *this;
  }
  uint64_t get() const { return state_; }

 private:
  uint64_t state_ = 1;
};

/// What an op is, without what it reads.
uint64_t label_of(const Graph& graph, const Op& op) {
  Hash hash;
  hash.add(op.time_ns).add(op.workspace_bytes).add(op.recompute ? 1 : 0);
  hash.add(std::ssize(op.inputs)).add(std::ssize(op.outputs)).add(std::ssize(op.overwrites));
  for (const ValueId id : op.outputs) hash.add(graph.value(id).bytes).add(graph.is_output(id) ? 1 : 0);
  return hash.get();
}

struct Repeat {
  int32_t first = 0;
  int32_t length = 0;
  int32_t count = 0;
};

/// Of all pieces that come at least `least` times in a row the one that is the most ops so; of such the shortest.
Repeat find_repeat(std::span<const uint64_t> labels, int32_t least) {
  const auto size = static_cast<int32_t>(labels.size());
  Repeat best;
  for (int32_t length = 1; length <= std::min(size / least, kMostLength); ++length) {
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

/// What an op reads and what it has held, as seen from its block.
void add_reads(const Graph& graph, const Blocks& blocks, size_t op, Hash& hash) {
  const auto add = [&](std::span<const ValueId> ids) {
    hash.add(std::ssize(ids));
    for (const ValueId id : ids) {
      if (graph.value(id).resident) {
        hash.add(graph.value(id).bytes);
        continue;
      }
      const Source source = source_of(graph, id);
      const Blocks::Place& place = blocks.places[index(source.op)];
      hash.add(static_cast<int64_t>(source.output)).add(place.is_backward ? 1 : 0).add(place.offset);
      hash.add(place.block < 0 ? static_cast<int64_t>(source.op) : place.block - blocks.places[op].block);
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

/// What an op of the folded graph has instead of a value: of the block that is as far away there. None where only an
/// op in no block reads what is left out.
ValueId read_instead(const Graph& graph, const Folding& folding, ValueId id, const Blocks::Place& reader) {
  if (graph.value(id).resident) return id;
  const Source source = source_of(graph, id);
  Blocks::Place place = folding.blocks.places[index(source.op)];
  if (place.block < 0) return id;
  if (reader.block < 0) return folding.is_out(place.block) ? kNone : id;
  place.block = folding.whole(folding.folded(reader.block) + place.block - reader.block);
  if (place.block < 0 || place.block >= folding.blocks.count) return kNone;
  return graph.ops()[at(folding.blocks.op_at(place))].outputs[source.output];
}

GraphSpec folded_spec(const Graph& graph, const Folding& folding) {
  GraphSpec spec;
  spec.name = graph.name();
  std::vector<ValueId> new_id(graph.values().size(), kNone);
  const auto add = [&](ValueId id) {
    new_id[index(id)] = value_id(spec.values.size());
    spec.values.push_back(graph.value(id));
  };
  for (size_t i = 0; i < graph.values().size(); ++i)
    if (graph.values()[i].resident) add(value_id(i));
  for (const int32_t op : folding.op_of)
    for (const ValueId id : graph.ops()[at(op)].outputs) add(id);
  for (const int32_t i : folding.op_of) {
    const auto replace = [&](std::vector<ValueId>& ids) {
      for (ValueId& id : ids) {
        const ValueId read = read_instead(graph, folding, id, folding.blocks.places[at(i)]);
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

/// By the op of the whole graph before which the folded one has them; the last: at the end.
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
  std::vector<uint64_t> labels;
  for (const Op& op : graph.ops()) labels.push_back(label_of(graph, op));
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
  std::vector<Hash> hashes(at(blocks.count));
  for (size_t op = 0; op < blocks.places.size(); ++op)
    if (blocks.places[op].block >= 0) add_reads(graph, blocks, op, hashes[at(blocks.places[op].block)]);
  for (int32_t first = 0, end = 1; first < blocks.count; first = end++) {
    while (end < blocks.count && hashes[at(end)].get() == hashes[at(first)].get()) ++end;
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
  const int32_t last_before = blocks->first_equal + most / 2 - 1;
  const int32_t out_count = blocks->equal_count - most;
  Folding folding{graph, {}, std::move(*blocks), last_before, out_count};
  for (size_t i = 0; i < graph.ops().size(); ++i)
    if (!folding.is_out(folding.blocks.places[i].block)) folding.op_of.push_back(static_cast<int32_t>(i));
  GraphSpec spec = folded_spec(graph, folding);
  if (lint(spec)) return std::nullopt;
  folding.graph = Graph(std::move(spec));
  return folding;
}

std::vector<int32_t> unfold(const Folding& folding, const std::vector<int32_t>& runs,
                            const std::vector<int32_t>& others, int percent) {
  const Blocks& blocks = folding.blocks;
  const Reruns reruns = reruns_of(folding, runs);
  const Reruns other_reruns = reruns_of(folding, others);
  const int64_t left_count = blocks.equal_count - folding.out_count;
  std::vector<int32_t> unfolded;
  std::vector<uint8_t> has_run(blocks.places.size(), 0);
  for (size_t i = 0; i <= blocks.places.size(); ++i) {
    const Blocks::Place place = i < blocks.places.size() ? blocks.places[i] : Blocks::Place{};
    size_t model = i;
    int32_t folded = folding.folded(place.block);
    bool is_other = false;
    if (const int32_t k = place.block - blocks.first_equal; place.block >= 0 && k >= 0 && k < blocks.equal_count) {
      folded = blocks.first_equal + static_cast<int32_t>(k * left_count / blocks.equal_count);
      is_other = k * left_count % blocks.equal_count * 100 >= percent * blocks.equal_count;
      model = at(blocks.op_at({folding.whole(folded), place.offset, place.is_backward}));
    }
    for (int32_t op : (is_other ? other_reruns : reruns)[model]) {
      Blocks::Place again = blocks.places[at(op)];
      if (place.block >= 0 && again.block >= 0) {
        again.block = place.block + folding.folded(again.block) - folded;
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

}  // namespace headroom
