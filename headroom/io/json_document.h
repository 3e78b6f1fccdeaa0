#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/io/names.h"

namespace headroom::internal {

/// The kind of a field. A file is one JSON object whose fields are numbers, strings, lists of names or lists of records; a
/// record is an object without fields of records. A schema lists the fields, and a document holds their contents.
enum class FieldKind : uint8_t {
  kCount,    ///< a non-negative integer
  kInteger,  ///< any integer that fits int64
  kBoolean,
  kString,
  kNames,    ///< a list of strings
  kRecords,  ///< a list of records
};

struct RecordSchema;

struct Field {
  std::string_view key;
  FieldKind kind;
  bool required;
  const RecordSchema* records = nullptr;  ///< the schema of its records, for kRecords
};

struct RecordSchema {
  std::string_view noun;  ///< what messages call a record, whose first field is its name; if empty, they give its index
  std::span<const Field> fields;
};

/// The contents of one field.
struct Slot {
  int64_t number = -1;  ///< an integer, a boolean as 0 or 1, a string's index in `names`, or a list's start in `lists`
  int32_t count = 0;    ///< length of a list
  bool present = false;
};

/// The records of one list, in order, with a slot for each field of their schema.
struct Table {
  size_t width = 0;
  std::vector<Slot> slots;
  size_t size() const { return width == 0 ? 0 : slots.size() / width; }
  std::span<const Slot> operator[](size_t row) const { return std::span(slots).subspan(row * width, width); }
};

struct Document {
  NameTable names;  ///< all strings of the file except keys
  std::vector<int32_t> lists;
  std::vector<Slot> root;
  std::vector<Table> tables;  ///< one for each field of the root, empty unless the field is of kRecords

  std::span<const int32_t> list(const Slot& slot) const {
    return slot.count == 0
               ? std::span<const int32_t>()
               : std::span(lists).subspan(static_cast<size_t>(slot.number), static_cast<size_t>(slot.count));
  }
  const std::string& string(const Slot& slot) const { return names[static_cast<int32_t>(slot.number)]; }
};

/// Returns the string under "format" of the object in `text`, and reads no further. Messages begin with `source`. Throws
/// InvalidInput if there is none.
std::string read_format(std::string_view text, const std::string& source);

/// Reads `text` by `schema`. Throws InvalidInput at the first violation: bad JSON, an unknown, duplicate or missing key, a
/// wrong type, an empty string field, or a number that is not an int64. Does not recurse and stores expected fields only, so
/// memory is at most a few times the size of the text.
Document read_document(std::string_view text, const std::string& source, const RecordSchema& schema);

}  // namespace headroom::internal
