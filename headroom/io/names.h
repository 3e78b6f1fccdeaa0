#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "headroom/core/chain.h"

namespace headroom {

/// Numbers names 0, 1, 2, … in the order in which they are first seen.
class NameTable {
 public:
  int32_t intern(std::string_view name);
  std::optional<int32_t> find(std::string_view name) const;
  const std::string& operator[](int32_t id) const { return names_[static_cast<size_t>(id)]; }
  size_t size() const { return names_.size(); }

 private:
  std::deque<std::string> names_;  // a deque, so that the keys below stay where they are
  std::unordered_map<std::string_view, int32_t> ids_;
};

/// Whether `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text);

/// Appends `name` as a JSON string. Throws InvalidInput where no reader would take the name back: when it is
/// empty or not UTF-8.
void append_json_string(std::string& out, std::string_view name);

/// What a JSON string, its quotes included, stands for, or nothing where it is not one.
std::optional<std::string> parse_json_string(std::string_view literal);

/// Throws InvalidInput where a stage's recording has a workspace other than its forward's: no chain file says that.
void check_chain_can_be_written(const Chain& chain);

}  // namespace headroom
