#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/io/names.h"

namespace headroom {

/// A JSON file of ours is one object whose keys take numbers, strings, lists of names, or lists of records; a record is
/// an object whose keys take anything but records. A schema says which keys, and a document holds what was found.
enum class FieldKind : uint8_t {
  kCount,    ///< an integer that is not negative
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
  const RecordSchema* records = nullptr;  ///< of kRecords
};

struct RecordSchema {
  std::string_view noun;  ///< how messages call a record, whose first field is then its name; empty: by its position
  std::span<const Field> fields;
};

/// What a key was given.
struct Slot {
  int64_t number = -1;  ///< the integer; 0 or 1; the string's number in `names`; where in `lists` a list begins
  int32_t count = 0;    ///< of a list
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
  NameTable names;  ///< every string of the file but its keys
  std::vector<int32_t> lists;
  std::vector<Slot> root;
  std::vector<Table> tables;  ///< one for each field of the root, empty but for kRecords

  std::span<const int32_t> list(const Slot& slot) const {
    return slot.count == 0
               ? std::span<const int32_t>()
               : std::span(lists).subspan(static_cast<size_t>(slot.number), static_cast<size_t>(slot.count));
  }
  const std::string& string(const Slot& slot) const { return names[static_cast<int32_t>(slot.number)]; }
};

/// The string under "format" in the object that `text` is. Reads no further than that. `source` begins every message.
/// Throws InvalidInput where there is none.
std::string read_format(std::string_view text, const std::string& source);

/// Reads `text` by `schema`, whose string fields must not be empty. Throws InvalidInput at the first thing that is
/// not as it says: bad JSON, an unknown, duplicate or missing key, a wrong type, a number that is no integer or does
/// not fit. No recursion, and what it does not expect it does not store, so that memory stays within a few times the
/// text.
Document read_document(std::string_view text, const std::string& source, const RecordSchema& schema);

}  // namespace headroom
