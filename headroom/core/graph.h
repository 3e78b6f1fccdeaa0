#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/ids.h"

namespace headroom {

/// One piece of memory: a storage. A view is not a value of its own.
struct Value {
  std::string name;
  int64_t bytes = 0;
  bool resident = false;       ///< alive for the whole step, written by no op
  std::vector<ValueId> holds;  ///< memory that cannot be returned while this value lives
};

enum class Phase : uint8_t { kForward, kBackward };

struct Op {
  std::string name;
  Phase phase = Phase::kForward;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;      ///< on top while it runs; negative where it gives memory back
  bool recompute = true;            ///< may run more than once
  std::vector<ValueId> overwrites;  ///< inputs whose memory the first output may take over
};

/// What a graph is made of, not yet checked.
struct GraphSpec {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<ValueId> outputs;  ///< alive at the end of the step
};

/// The first thing that keeps `spec` from being a training step, or nothing. It must be so that:
/// - names of values and of ops are not empty and are unique among their kind; every id exists; no list repeats one;
/// - a resident value has no producer, any other value at least one;
/// - every op writes something, writes nothing that it reads, and in the order given reads only resident
///   values and values that an earlier op writes (so there is no cycle);
/// - what a value holds is read or written by every producer of it, and holding is not circular;
/// - what an op may overwrite is an input of it, not resident, with the bytes of its first output;
/// - bytes and times are not negative, and their sums (all values and workspaces, all times) fit int64.
std::optional<std::string> lint(const GraphSpec& spec);

/// One training step as ops over values, immutable. The order of `ops()` is the base order.
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

  /// Ops that write and that read a value, and values that hold it, ascending.
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
