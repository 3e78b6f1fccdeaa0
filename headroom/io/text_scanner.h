#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headroom::internal {

/// Splits the text form (io/text.h) into words, strings and marks, with one token of lookahead. Errors throw InvalidInput
/// with the source and the line.
class TextScanner {
 public:
  /// Both must outlive the scanner.
  TextScanner(std::string_view text, const std::string& source);

  int line() const { return line_; }  ///< line of the next token
  bool at_end() const { return kind_ == Kind::kEnd; }
  bool at_line_end() const { return kind_ == Kind::kLineEnd || kind_ == Kind::kEnd; }
  bool at(char mark) const { return kind_ == Kind::kMark && next_text_[0] == mark; }
  bool at_arrow() const { return kind_ == Kind::kArrow; }

  bool accept(char mark);  ///< takes one of : = , / - if it is next
  void expect(char mark);
  void expect_arrow();
  std::string take_word(const char* expected);  ///< a keyword
  std::string take_name(const char* expected);  ///< a word or a non-empty string
  int64_t take_count(const char* expected);     ///< a non-negative integer
  int64_t take_integer(const char* expected);
  void end_line();
  void skip_line_ends();

  [[noreturn]] void fail(const std::string& message) const { fail_at_line(line_, message); }
  [[noreturn]] void fail_at_line(int line, const std::string& message) const;

 private:
  enum class Kind : uint8_t { kWord, kString, kMark, kArrow, kLineEnd, kEnd };

  void advance();
  void scan_string();
  void scan_word();
  [[noreturn]] void fail_expected(const std::string& expected) const;

  std::string_view rest_;
  const std::string& source_;
  int line_ = 1;
  Kind kind_ = Kind::kLineEnd;
  std::string next_text_;
};

/// Appends `name` in a form that take_name() reads. Throws InvalidInput if it is empty or not UTF-8.
void append_text_name(std::string& out, std::string_view name);

}  // namespace headroom::internal
