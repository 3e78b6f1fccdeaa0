#include "headroom/core/graph.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"

namespace headroom {
using namespace internal;
namespace {

using Problem = std::optional<std::string>;

/// Adds `amount` to `sum` and returns whether the result, or its negative, does not fit int64.
bool overflows(int64_t& sum, int64_t amount) {
  return __builtin_add_overflow(sum, amount, &sum) || sum == std::numeric_limits<int64_t>::min();
}

class Linter {
 public:
  explicit Linter(const GraphSpec& spec) : spec_(spec), mark_(spec.values.size(), 0) {}

  Problem run() {
    constexpr size_t kMost = std::numeric_limits<int32_t>::max();
    if (spec_.values.size() > kMost || spec_.ops.size() > kMost) return "more than 2^31-1 values or ops";
    if (Problem problem = check_values()) return problem;
    if (Problem problem = check_ops()) return problem;
    if (Problem problem = check_producers()) return problem;
    if (Problem problem = check_order()) return problem;
    if (Problem problem = check_holds()) return problem;
    if (Problem problem = check_ids("outputs of the graph", spec_.outputs)) return problem;
    return check_sums();
  }

 private:
  std::string value_name(ValueId id) const { return "value " + quote(spec_.values[index(id)].name); }

  Problem check_values() {
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i < spec_.values.size(); ++i) {
      const Value& value = spec_.values[i];
      if (value.name.empty()) return "value " + std::to_string(i) + " has an empty name";
      if (!names.insert(value.name).second) return "two values are named " + quote(value.name);
      if (value.bytes < 0)
        return "value " + quote(value.name) + ": bytes must not be negative, found " + std::to_string(value.bytes);
    }
    for (const Value& value : spec_.values) {
      const std::string where = "value " + quote(value.name) + ": holds";
      if (Problem problem = check_ids(where, value.holds)) return problem;
      if (value.resident && !value.holds.empty()) return where + " must be empty for a resident value";
    }
    return {};
  }

  Problem check_ops() {
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i < spec_.ops.size(); ++i) {
      const Op& op = spec_.ops[i];
      if (op.name.empty()) return "op " + std::to_string(i) + " has an empty name";
      const std::string where = "op " + quote(op.name);
      if (!names.insert(op.name).second) return "two ops are named " + quote(op.name);
      if (op.time_ns < 0) return where + ": time_ns must not be negative, found " + std::to_string(op.time_ns);
      if (Problem problem = check_ids(where + ": inputs", op.inputs)) return problem;
      if (Problem problem = check_ids(where + ": outputs", op.outputs)) return problem;
      if (Problem problem = check_ids(where + ": overwrites", op.overwrites)) return problem;
      if (op.outputs.empty()) return where + ": outputs must not be empty";
      if (Problem problem = check_overwrites(op)) return problem;
    }
    return {};
  }

  Problem check_overwrites(const Op& op) const {
    for (const ValueId id : op.overwrites) {
      const std::string where = "op " + quote(op.name) + ": overwrites " + value_name(id) + ", which ";
      const Value& value = spec_.values[index(id)];
      const Value& output = spec_.values[index(op.outputs.front())];
      if (std::ranges::find(op.inputs, id) == op.inputs.end()) return where + "is not among its inputs";
      if (value.resident) return where + "is resident";
      if (value.bytes != output.bytes)
        return where + "has " + std::to_string(value.bytes) + " bytes, not the " + std::to_string(output.bytes) +
               " of its first output " + quote(output.name);
    }
    return {};
  }

  /// Checks that every id exists and that none is repeated.
  Problem check_ids(const std::string& where, const std::vector<ValueId>& ids) {
    ++stamp_;
    for (const ValueId id : ids) {
      if (index(id) >= spec_.values.size())
        return where + ": there is no value number " + std::to_string(static_cast<int32_t>(id));
      if (mark_[index(id)] == stamp_) return where + ": " + value_name(id) + " is listed twice";
      mark_[index(id)] = stamp_;
    }
    return {};
  }

  Problem check_producers() {
    std::vector<uint8_t> produced(spec_.values.size(), 0);
    for (const Op& op : spec_.ops) {
      for (const ValueId id : op.outputs) {
        if (spec_.values[index(id)].resident)
          return "op " + quote(op.name) + " writes " + value_name(id) + ", which is resident";
        produced[index(id)] = 1;
      }
    }
    for (size_t i = 0; i < spec_.values.size(); ++i)
      if (produced[i] == 0 && !spec_.values[i].resident)
        return value_name(value_id(i)) + " is neither resident nor written by any op";
    return {};
  }

  Problem check_order() {
    std::vector<uint8_t> available(spec_.values.size(), 0);
    for (size_t i = 0; i < spec_.values.size(); ++i) available[i] = spec_.values[i].resident ? 1 : 0;
    for (const Op& op : spec_.ops) {
      for (const ValueId id : op.outputs)
        if (std::ranges::find(op.inputs, id) != op.inputs.end())
          return "op " + quote(op.name) + " both reads and writes " + value_name(id);
      for (const ValueId id : op.inputs)
        if (available[index(id)] == 0)
          return "op " + quote(op.name) + " reads " + value_name(id) + ", which no earlier op writes" +
                 describe_cycle().value_or(": ops must be listed in an order in which the step can run");
      for (const ValueId id : op.outputs) available[index(id)] = 1;
    }
    return {};
  }

  /// Returns the ops of a cycle, where some ops cannot run in any order. Runs every op that can run, in any order. Each
  /// of the others reads a value that only ops among them write, so that going from one to the next ends in a cycle.
  Problem describe_cycle() const {
    std::vector<std::vector<size_t>> readers(spec_.values.size());
    std::vector<size_t> missing(spec_.ops.size(), 0);
    std::vector<size_t> ready;
    std::vector<size_t> producer(spec_.values.size());
    for (size_t i = 0; i < spec_.ops.size(); ++i) {
      for (const ValueId id : spec_.ops[i].outputs) producer[index(id)] = i;
      for (const ValueId id : spec_.ops[i].inputs) {
        if (spec_.values[index(id)].resident) continue;
        readers[index(id)].push_back(i);
        ++missing[i];
      }
      if (missing[i] == 0) ready.push_back(i);
    }
    std::vector<uint8_t> available(spec_.values.size(), 0);
    for (size_t next = 0; next < ready.size(); ++next)
      for (const ValueId id : spec_.ops[ready[next]].outputs)
        if (std::exchange(available[index(id)], 1) == 0)
          for (const size_t reader : readers[index(id)])
            if (--missing[reader] == 0) ready.push_back(reader);
    auto stuck = static_cast<size_t>(std::ranges::find_if(missing, [](size_t n) { return n > 0; }) - missing.begin());
    if (stuck == missing.size()) return {};
    std::vector<uint8_t> is_seen(spec_.ops.size(), 0);
    std::vector<std::pair<size_t, ValueId>> path;  // Ops, and the value of the next one that each reads.
    while (is_seen[stuck] == 0) {
      is_seen[stuck] = 1;
      const Op& op = spec_.ops[stuck];
      const auto is_missing = [&](ValueId id) {
        return !spec_.values[index(id)].resident && available[index(id)] == 0;
      };
      path.emplace_back(stuck, *std::ranges::find_if(op.inputs, is_missing));
      stuck = producer[index(path.back().second)];
    }
    std::string text = ", and no order is possible, because of a cycle of ops:";
    const auto first = std::ranges::find(path, stuck, [](const auto& member) { return member.first; });
    for (auto member = first; member != path.end(); ++member)
      text += std::string(member == first ? " " : ", ") + quote(spec_.ops[member->first].name) + " reads " +
              quote(spec_.values[index(member->second)].name) + " of " +
              quote(spec_.ops[producer[index(member->second)]].name);
    return text;
  }

  Problem check_holds() {
    for (const Op& op : spec_.ops) {
      ++stamp_;
      for (const ValueId id : op.inputs) mark_[index(id)] = stamp_;
      for (const ValueId id : op.outputs) mark_[index(id)] = stamp_;
      for (const ValueId id : op.outputs)
        for (const ValueId held : spec_.values[index(id)].holds)
          if (mark_[index(held)] != stamp_)
            return value_name(id) + " holds " + value_name(held) + ", which its producer op " + quote(op.name) +
                   " neither reads nor writes";
    }
    return check_circular_holds();
  }

  /// Returns a problem if holding is circular. Removes values that hold no remaining value until none is left to
  /// remove; the values that remain hold each other.
  Problem check_circular_holds() const {
    std::vector<std::vector<ValueId>> holders(spec_.values.size());
    std::vector<size_t> open(spec_.values.size());
    std::vector<ValueId> done;
    for (size_t i = 0; i < spec_.values.size(); ++i) {
      open[i] = spec_.values[i].holds.size();
      if (open[i] == 0) done.push_back(value_id(i));
      for (const ValueId held : spec_.values[i].holds) holders[index(held)].push_back(value_id(i));
    }
    for (size_t next = 0; next < done.size(); ++next)
      for (const ValueId holder : holders[index(done[next])])
        if (--open[index(holder)] == 0) done.push_back(holder);
    for (size_t i = 0; i < open.size(); ++i)
      if (open[i] != 0)
        return value_name(value_id(i)) + " holds, directly or through others, a value that holds itself";
    return {};
  }

  Problem check_sums() const {
    int64_t most_bytes = 0;
    int64_t least_bytes = 0;
    int64_t time_ns = 0;
    for (const Value& value : spec_.values)
      if (overflows(most_bytes, value.bytes)) return "the bytes of all values and workspaces do not fit 64 bits";
    for (const Op& op : spec_.ops) {
      if (overflows(op.workspace_bytes > 0 ? most_bytes : least_bytes, op.workspace_bytes))
        return "the bytes of all values and workspaces do not fit 64 bits";
      if (overflows(time_ns, op.time_ns)) return "the times of all ops do not fit 64 bits";
    }
    return {};
  }

  const GraphSpec& spec_;
  std::vector<uint32_t> mark_;  ///< By value: number of the last list in which it was seen.
  uint32_t stamp_ = 0;
};

}  // namespace

std::optional<std::string> lint(const GraphSpec& spec) { return Linter(spec).run(); }

/// Returns for each value the positions of the lists that contain it. `lists(i)` is list i.
template <typename Id, typename Lists>
Graph::ByValue<Id> Graph::invert(size_t list_count, const Lists& lists) const {
  ByValue<Id> result;
  result.begin.assign(spec_.values.size() + 1, 0);
  for (size_t i = 0; i < list_count; ++i)
    for (const ValueId id : lists(i)) ++result.begin[index(id) + 1];
  for (size_t v = 0; v < spec_.values.size(); ++v) result.begin[v + 1] += result.begin[v];
  result.ids.resize(result.begin.back());
  std::vector<size_t> next(result.begin.begin(), result.begin.end() - 1);
  for (size_t i = 0; i < list_count; ++i)
    for (const ValueId id : lists(i)) result.ids[next[index(id)]++] = static_cast<Id>(i);
  return result;
}

Graph::Graph(GraphSpec spec) : spec_(std::move(spec)) {
  if (const std::optional<std::string> problem = lint(spec_)) throw InvalidInput(*problem);
  producers_ = invert<OpId>(
      spec_.ops.size(), [&](size_t i) -> const auto& { return spec_.ops[i].outputs; });
  consumers_ = invert<OpId>(
      spec_.ops.size(), [&](size_t i) -> const auto& { return spec_.ops[i].inputs; });
  holders_ = invert<ValueId>(
      spec_.values.size(), [&](size_t i) -> const auto& { return spec_.values[i].holds; });
  is_output_.assign(spec_.values.size(), 0);
  for (const ValueId id : spec_.outputs) is_output_[index(id)] = 1;
  for (const Value& value : spec_.values)
    if (value.resident) resident_bytes_ += value.bytes;
}

}  // namespace headroom
