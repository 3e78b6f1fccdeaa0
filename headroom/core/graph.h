#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/ids.h"

namespace headroom {

/// A storage. A view is not a value of its own.
struct Value {
  std::string name;
  int64_t bytes = 0;
  bool resident = false;       ///< Whether it is live for the whole step; no op writes it.
  std::vector<ValueId> holds;  ///< Values whose memory cannot be freed while this value is live.
};

enum class Phase : uint8_t { kForward, kBackward };

struct Op {
  std::string name;
  Phase phase = Phase::kForward;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;      ///< Extra bytes while it runs; negative where it frees memory.
  bool recompute = true;            ///< Whether it may run more than once.
  std::vector<ValueId> overwrites;  ///< Inputs whose memory the first output may take over.
};

/// The contents of a graph, not yet checked.
struct GraphSpec {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<ValueId> outputs;  ///< Values that must be live at the end of the step.
};

/// Returns the first of these rules that `spec` breaks, or none:
/// - Names of values and of ops are not empty and are unique among their kind; every id exists; no list repeats one.
/// - A resident value has no producer, and any other value has at least one.
/// - Every op writes something, writes nothing that it reads, and in the order given reads only resident values and
///   values that an earlier op writes (so there is no cycle).
/// - What a value holds is read or written by every producer of it, and holding is not circular.
/// - What an op may overwrite is an input of it, not resident, with the bytes of its first output.
/// - Bytes and times are not negative, and their sums (all values and workspaces, all times) fit int64.
std::optional<std::string> lint(const GraphSpec& spec);

/// An immutable training step as ops over values. The order of `ops()` is the base order.
class Graph {
 public:
  /// Throws InvalidInput with what lint() finds.
  explicit Graph(GraphSpec spec);

  const std::string& name() const { return spec_.name; }
  std::span<const Value> values() const { return spec_.values; }
  std::span<const Op> ops() const { return spec_.ops; }
  std::span<const ValueId> outputs() const { return spec_.outputs; }
  const Value& value(ValueId id) const { return spec_.values[index(id)]; }
  const Op& op(OpId id) const { return spec_.ops[index(id)]; }
  const GraphSpec& spec() const { return spec_; }

  /// Return the ops that write and that read a value, and the values that hold it, ascending.
  std::span<const OpId> producers(ValueId id) const { return producers_[id]; }
  std::span<const OpId> consumers(ValueId id) const { return consumers_[id]; }
  std::span<const ValueId> holders(ValueId id) const { return holders_[id]; }

  int64_t resident_bytes() const { return resident_bytes_; }
  bool is_output(ValueId id) const { return is_output_[index(id)] != 0; }

 private:
  /// Lists of ids by value, in two flat arrays.
  template <typename Id>
  struct ByValue {
    std::vector<size_t> begin;
    std::vector<Id> ids;
    std::span<const Id> operator[](ValueId id) const {
      return std::span(ids).subspan(begin[index(id)], begin[index(id) + 1] - begin[index(id)]);
    }
  };
  template <typename Id, typename Lists>
  ByValue<Id> invert(size_t list_count, const Lists& lists) const;

  GraphSpec spec_;
  ByValue<OpId> producers_;
  ByValue<OpId> consumers_;
  ByValue<ValueId> holders_;
  std::vector<uint8_t> is_output_;
  int64_t resident_bytes_ = 0;
};

}  // namespace headroom
