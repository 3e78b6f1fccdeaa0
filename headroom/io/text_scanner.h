#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headroom {

/// The words, strings and marks of the text form (io/text.h), one ahead. Everything that fails throws InvalidInput with
/// the source and the line.
class TextScanner {
 public:
  /// Both must outlive the scanner.
  TextScanner(std::string_view text, const std::string& source);

  int line() const { return line_; }  ///< of what comes next
  bool at_end() const { return kind_ == Kind::kEnd; }
  bool at_line_end() const { return kind_ == Kind::kLineEnd || kind_ == Kind::kEnd; }
  bool at(char mark) const { return kind_ == Kind::kMark && text_of_next_[0] == mark; }
  bool at_arrow() const { return kind_ == Kind::kArrow; }

  bool accept(char mark);  ///< one of : = , / -
  void expect(char mark);
  void expect_arrow();
  std::string take_word(const char* expected);  ///< a keyword
  std::string take_name(const char* expected);  ///< a word or a string that is not empty
  int64_t take_count(const char* expected);     ///< an integer that is not negative
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
  std::string text_of_next_;
};

/// Appends `name` so that take_name() reads it back. Throws InvalidInput where it is empty or not UTF-8.
void append_text_name(std::string& out, std::string_view name);

}  // namespace headroom
