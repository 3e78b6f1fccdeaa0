#include "headroom/io/text_scanner.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "headroom/core/quote.h"
#include "headroom/io/names.h"
#include "headroom/io/source_error.h"

namespace headroom::internal {
namespace {

constexpr std::string_view kMarks = ":=,/-";

bool is_word_character(char c) {
  constexpr std::string_view kOthers = "_.+*@$()[]-";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kOthers.find(c) != std::string_view::npos;
}

/// Returns the length of the word at the beginning of `text`. "->" ends a word.
size_t word_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_word_character(text[length]) && !text.substr(length).starts_with("->")) ++length;
  return length;
}

}  // namespace

TextScanner::TextScanner(std::string_view text, const std::string& source) : rest_(text), source_(source) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) fail("larger than 2 GiB");
  advance();
}

void TextScanner::fail_at_line(int line, const std::string& message) const {
  fail_at_source(source_, "line " + std::to_string(line) + ": " + message);
}

void TextScanner::fail_expected(const std::string& expected) const {
  std::string found;
  switch (kind_) {
    case Kind::kLineEnd:
      found = "the end of the line";
      break;
    case Kind::kEnd:
      found = "the end";
      break;
    default:
      found = quote(next_text_);
  }
  fail("expected " + expected + ", found " + found);
}

void TextScanner::advance() {
  if (kind_ == Kind::kLineEnd && !next_text_.empty()) ++line_;
  while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\r')) rest_.remove_prefix(1);
  if (rest_.starts_with('#')) rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
  next_text_ = rest_.substr(0, 1);
  if (rest_.empty()) {
    kind_ = Kind::kEnd;
  } else if (rest_[0] == '\n') {
    kind_ = Kind::kLineEnd;
    rest_.remove_prefix(1);
  } else if (rest_[0] == '"') {
    scan_string();
  } else if (rest_.starts_with("->")) {
    kind_ = Kind::kArrow;
    next_text_ = "->";
    rest_.remove_prefix(2);
  } else if (kMarks.find(rest_[0]) != std::string_view::npos) {
    kind_ = Kind::kMark;
    rest_.remove_prefix(1);
  } else {
    scan_word();
  }
}

void TextScanner::scan_word() {
  const size_t length = word_length(rest_);
  if (length == 0) {
    const auto byte = static_cast<unsigned char>(rest_[0]);
    fail("unexpected " + (byte < 0x80 ? quote(rest_.substr(0, 1)) : "character outside ASCII") +
         "; a name with such a character is written in double quotes");
  }
  kind_ = Kind::kWord;
  next_text_ = rest_.substr(0, length);
  rest_.remove_prefix(length);
}

void TextScanner::scan_string() {
  size_t end = 1;
  while (end < rest_.size() && rest_[end] != '"' && rest_[end] != '\n')
    end += rest_[end] == '\\' ? size_t{2} : size_t{1};
  if (end >= rest_.size() || rest_[end] != '"') fail("a string has no end on its line");
  std::optional<std::string> text = parse_json_string(rest_.substr(0, end + 1));
  if (!text) fail("not a string as JSON has them");
  kind_ = Kind::kString;
  next_text_ = std::move(*text);
  rest_.remove_prefix(end + 1);
}

bool TextScanner::accept(char mark) {
  if (!at(mark)) return false;
  advance();
  return true;
}

void TextScanner::expect(char mark) {
  if (!accept(mark)) fail_expected(std::string("'") + mark + "'");
}

void TextScanner::expect_arrow() {
  if (!at_arrow()) fail_expected("'->'");
  advance();
}

std::string TextScanner::take_word(const char* expected) {
  if (kind_ != Kind::kWord) fail_expected(expected);
  std::string word = std::move(next_text_);
  advance();
  return word;
}

std::string TextScanner::take_name(const char* expected) {
  if (kind_ != Kind::kWord && (kind_ != Kind::kString || next_text_.empty())) fail_expected(expected);
  std::string name = std::move(next_text_);
  advance();
  return name;
}

int64_t TextScanner::take_integer(const char* expected) {
  const std::string sign = accept('-') ? "-" : "";
  const std::string digits = sign + (kind_ == Kind::kWord ? next_text_ : "");
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (kind_ != Kind::kWord || end != digits.data() + digits.size() || error != std::errc())
    fail_expected(std::string(expected) + ", an integer that fits 64 bits");
  advance();
  return number;
}

int64_t TextScanner::take_count(const char* expected) {
  const int line = line_;
  const int64_t number = take_integer(expected);
  if (number < 0) fail_at_line(line, std::string(expected) + " must not be negative, found " + std::to_string(number));
  return number;
}

void TextScanner::end_line() {
  if (!at_line_end()) fail_expected("the end of the line");
  skip_line_ends();
}

void TextScanner::skip_line_ends() {
  while (kind_ == Kind::kLineEnd) advance();
}

void append_text_name(std::string& out, std::string_view name) {
  if (!name.empty() && name[0] != '-' && word_length(name) == name.size()) {
    out += name;
  } else {
    append_json_string(out, name);
  }
}

}  // namespace headroom::internal
