#include "headroom/io/json_document.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

#include "headroom/core/quote.h"
#include "headroom/io/source_error.h"

namespace headroom::internal {
namespace {

constexpr int kMaxLevels = 16;  // Our files have five levels.

/// Returns the position of the byte at `offset`, such as "line 3, column 7". Columns count bytes.
std::string line_and_column(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line = 1 + static_cast<size_t>(std::ranges::count(before, '\n'));
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? offset + 1 : offset - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// Returns the word or character at `offset`, quoted, or an empty text if there is none or it is not UTF-8.
std::string found_at(std::string_view text, size_t offset) {
  constexpr size_t kMaxDistance = 40;
  const auto in_word = [&](size_t i) {
    return (std::isalnum(static_cast<unsigned char>(text[i])) != 0) ||
           std::string_view("+-._").find(text[i]) != std::string_view::npos;
  };
  if (offset >= text.size()) return "";
  size_t begin = offset;
  size_t end = offset + 1;
  if (in_word(offset)) {
    while (begin > 0 && offset - begin < kMaxDistance && in_word(begin - 1)) --begin;
    while (end < text.size() && end - offset < kMaxDistance && in_word(end)) ++end;
  }
  const std::string_view word = text.substr(begin, end - begin);
  return is_utf8(word) ? quote(word) : "";
}

/// Extracts REASON from a message of the parser: "[…] parse error at …: syntax error while parsing value - REASON; last
/// read: '…'". The text after "last read" can be of any length.
std::string reason_of(std::string_view message, const std::string& found) {
  if (const size_t dash = message.find(" - "); dash != std::string_view::npos) message.remove_prefix(dash + 3);
  const size_t last_read = message.find("; last read: ");
  const std::string reason(message.substr(0, last_read));
  return last_read == std::string_view::npos || found.empty() ? reason : reason + ", found " + found;
}

std::string shown_number(const std::string& digits) {
  constexpr size_t kMaxDigits = 40;
  return digits.size() <= kMaxDigits ? digits : digits.substr(0, kMaxDigits) + "...";
}

/// Receives the events of nlohmann's parser and throws at the first that is not allowed. A subclass handles the others.
class Events {
 public:
  Events(std::string_view text, const std::string& source) : text_(text), source_(source) {}
  virtual ~Events() = default;

  void parse() {
    if (text_.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) fail("larger than 2 GiB");
    // The parser would treat a NUL byte as the end of its input.
    if (const size_t nul = text_.find('\0'); nul != std::string_view::npos)
      fail(line_and_column(text_, nul) + ": not valid JSON: found a NUL byte");
    if (text_.find_first_not_of(" \t\r\n") == std::string_view::npos) fail("must be a JSON object, found nothing");
    nlohmann::json::sax_parse(text_.begin(), text_.end(), this);
  }

  virtual bool null() = 0;
  virtual bool boolean(bool flag) = 0;
  virtual bool number_integer(int64_t number) = 0;
  virtual bool string(std::string& text) = 0;
  virtual bool key(std::string& key) = 0;
  virtual bool start_object(size_t) = 0;
  virtual bool end_object() = 0;
  virtual bool start_array(size_t) = 0;
  virtual bool end_array() = 0;
  /// A number that is not an int64, with its digits as the file has them.
  virtual bool number_other(const std::string& digits) = 0;

  bool number_unsigned(uint64_t number) {
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return number_other(std::to_string(number));
    return number_integer(static_cast<int64_t>(number));
  }
  bool number_float(double, const std::string& digits) { return number_other(digits); }
  bool binary(std::vector<uint8_t>&) { return false; }  // JSON text has no binary values.

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::json::exception& error) {
    constexpr int kNumberOverflow = 406;
    const size_t offset = std::min(position == 0 ? 0 : position - 1, text_.size());
    if (error.id == kNumberOverflow) {
      number_other(last_token);  // Throws a better message if the key is known.
      fail(line_and_column(text_, offset) + ": expected an integer that fits 64 bits, found " +
           shown_number(last_token));
    }
    fail(line_and_column(text_, offset) + ": not valid JSON: " + reason_of(error.what(), found_at(text_, offset)));
  }

 protected:
  [[noreturn]] void fail(const std::string& message) const { fail_at_source(source_, message); }

 private:
  std::string_view text_;
  const std::string& source_;
};

class FormatFinder final : public Events {
 public:
  using Events::Events;
  std::string format;

  bool null() override { return scalar("null"); }
  bool boolean(bool flag) override { return scalar(flag ? "true" : "false"); }
  bool number_integer(int64_t number) override { return scalar(std::to_string(number)); }
  bool number_other(const std::string& digits) override { return scalar(shown_number(digits)); }
  bool string(std::string& text) override {
    if (!expected_) return scalar(quote(text));
    format = std::move(text);
    return false;  // Stops the parser.
  }
  bool key(std::string& key) override {
    expected_ = level_ == 1 && key == "format";
    return true;
  }
  bool start_object(size_t) override { return open("an object"); }
  bool start_array(size_t) override {
    if (level_ == 0) scalar("an array");
    return open("an array");
  }
  bool end_array() override { return close(); }
  bool end_object() override {
    if (level_ == 1) fail("key 'format' is missing");
    return close();
  }

 private:
  bool scalar(const std::string& found) const {
    if (level_ == 0) fail("must be a JSON object, found " + found);
    if (expected_) fail("format must be a string, found " + found);
    return true;
  }
  bool open(const char* found) {
    if (expected_) fail(std::string("format must be a string, found ") + found);
    if (++level_ > kMaxLevels) fail("nested deeper than " + std::to_string(kMaxLevels) + " levels");
    return true;
  }
  bool close() {
    --level_;
    return true;
  }

  int level_ = 0;
  bool expected_ = false;
};

const char* expected_of(FieldKind kind) {
  switch (kind) {
    case FieldKind::kCount:
      return "an integer from 0 to 9223372036854775807";
    case FieldKind::kInteger:
      return "an integer from -9223372036854775808 to 9223372036854775807";
    case FieldKind::kBoolean:
      return "true or false";
    case FieldKind::kString:
      return "a string";
    case FieldKind::kNames:
      return "an array of strings";
    case FieldKind::kRecords:
      return "an array of objects";
  }
  return "";
}

class DocumentReader final : public Events {
 public:
  DocumentReader(std::string_view text, const std::string& source, const RecordSchema& schema)
      : Events(text, source), root_schema_(schema) {
    document.root.resize(schema.fields.size());
    document.tables.resize(schema.fields.size());
  }
  Document document;

  bool null() override { wrong("null"); }
  bool boolean(bool flag) override {
    if (!takes(FieldKind::kBoolean)) wrong(flag ? "true" : "false");
    slot().number = flag ? 1 : 0;
    return true;
  }
  bool number_integer(int64_t number) override {
    if (!takes(FieldKind::kInteger) && !(takes(FieldKind::kCount) && number >= 0)) wrong(std::to_string(number));
    slot().number = number;
    return true;
  }
  bool number_other(const std::string& digits) override { wrong(shown_number(digits)); }

  bool string(std::string& text) override {
    if (place_ == Place::kNames) {
      document.lists.push_back(document.names.intern(text));
      ++slot().count;
      return true;
    }
    if (!takes(FieldKind::kString)) wrong(quote(text));
    if (text.empty()) fail(where() + std::string(field().key) + " must not be empty");
    slot().number = document.names.intern(text);
    return true;
  }

  bool key(std::string& key) override {
    const std::span<const Field> fields = schema().fields;
    const auto field = std::ranges::find(fields, std::string_view(key), &Field::key);
    if (field == fields.end()) {
      std::string keys;
      for (const Field& known : fields) keys += (keys.empty() ? "" : ", ") + std::string(known.key);
      fail(where() + "unknown key " + quote(key) + ", expected one of " + keys);
    }
    const auto position = static_cast<size_t>(field - fields.begin());
    (place_ == Place::kRecord ? field_ : root_field_) = position;
    if (slot().present) fail(where() + "key " + quote(key) + " is given twice");
    slot().present = true;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kRoot;
      return true;
    }
    if (place_ != Place::kTable) wrong("an object");
    place_ = Place::kRecord;
    table().slots.resize(table().slots.size() + table().width);
    return true;
  }

  bool end_object() override {
    const std::span<const Slot> slots = current_slots();
    const std::span<const Field> fields = schema().fields;
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].required && !slots[i].present)
        fail(where() + "key '" + std::string(fields[i].key) + "' is missing");
    if (std::ranges::none_of(slots, &Slot::present)) fail(where() + "must have a key, found {}");
    place_ = place_ == Place::kRecord ? Place::kTable : Place::kOutside;
    return true;
  }

  bool start_array(size_t) override {
    if (takes(FieldKind::kRecords)) {
      table().width = field().records->fields.size();
      place_ = Place::kTable;
      return true;
    }
    if (!takes(FieldKind::kNames)) wrong("an array");
    slot().number = static_cast<int64_t>(document.lists.size());
    around_names_ = place_;
    place_ = Place::kNames;
    return true;
  }

  bool end_array() override {
    place_ = place_ == Place::kNames ? around_names_ : Place::kRoot;
    return true;
  }

 private:
  enum class Place : uint8_t { kOutside, kRoot, kTable, kRecord, kNames };

  bool in_record() const {
    return place_ == Place::kRecord || (place_ == Place::kNames && around_names_ == Place::kRecord);
  }
  Table& table() { return document.tables[root_field_]; }
  const Table& table() const { return document.tables[root_field_]; }
  const RecordSchema& schema() const { return in_record() ? *root_schema_.fields[root_field_].records : root_schema_; }
  const Field& field() const { return schema().fields[in_record() ? field_ : root_field_]; }
  std::span<const Slot> current_slots() const {
    return in_record() ? table()[table().size() - 1] : std::span(document.root);
  }
  Slot& slot() {
    return in_record() ? table().slots[table().slots.size() - table().width + field_] : document.root[root_field_];
  }
  /// Returns whether a value of this kind is allowed here.
  bool takes(FieldKind kind) const {
    return (place_ == Place::kRoot || place_ == Place::kRecord) && field().kind == kind;
  }

  /// Returns the position for messages: "op 'f1': ", "ops[3]: " if the name is not known yet, or "" in the root.
  std::string where() const {
    if (place_ != Place::kTable && !in_record()) return "";
    const size_t rows = table().size();
    const std::string_view noun = root_schema_.fields[root_field_].records->noun;
    if (in_record() && !noun.empty() && current_slots().front().number >= 0)
      return std::string(noun) + " " + quote(document.string(current_slots().front())) + ": ";
    return std::string(root_schema_.fields[root_field_].key) + "[" + std::to_string(in_record() ? rows - 1 : rows) +
           "]: ";
  }

  [[noreturn]] void wrong(const std::string& found) const {
    switch (place_) {
      case Place::kOutside:
        fail("must be a JSON object, found " + found);
      case Place::kTable:
        fail(where() + "must be an object, found " + found);
      case Place::kNames:
        fail(where() + std::string(field().key) + " must list strings, found " + found);
      default:
        fail(where() + std::string(field().key) + " must be " + expected_of(field().kind) + ", found " + found);
    }
  }

  const RecordSchema& root_schema_;
  Place place_ = Place::kOutside;
  Place around_names_ = Place::kRoot;
  size_t root_field_ = 0;
  size_t field_ = 0;  // The field of the current record.
};

}  // namespace

std::string read_format(std::string_view text, const std::string& source) {
  FormatFinder finder(text, source);
  finder.parse();
  return std::move(finder.format);
}

Document read_document(std::string_view text, const std::string& source, const RecordSchema& schema) {
  DocumentReader reader(text, source, schema);
  reader.parse();
  return std::move(reader.document);
}

}  // namespace headroom::internal
