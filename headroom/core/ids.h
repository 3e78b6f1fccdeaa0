#pragma once

#include <cstddef>
#include <cstdint>

namespace headroom {

/// Ids of values and ops: their positions in a graph's lists.
enum class ValueId : int32_t {};
enum class OpId : int32_t {};

constexpr size_t index(ValueId id) { return static_cast<size_t>(id); }
constexpr size_t index(OpId id) { return static_cast<size_t>(id); }
constexpr ValueId value_id(size_t position) { return static_cast<ValueId>(position); }
constexpr OpId op_id(size_t position) { return static_cast<OpId>(position); }

}  // namespace headroom
