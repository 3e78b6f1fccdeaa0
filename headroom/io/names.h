#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "headroom/core/chain.h"

namespace headroom::internal {

/// Numbers names 0, 1, 2, … in the order of their first use.
class NameTable {
 public:
  int32_t intern(std::string_view name);
  std::optional<int32_t> find(std::string_view name) const;
  const std::string& operator[](int32_t id) const { return names_[static_cast<size_t>(id)]; }
  size_t size() const { return names_.size(); }

 private:
  std::deque<std::string> names_;  // A deque does not move its elements, which the keys of ids_ point to.
  std::unordered_map<std::string_view, int32_t> ids_;
};

/// Returns whether `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text);

/// Appends `name` as a JSON string. Throws InvalidInput if the name is empty or not UTF-8, which the readers refuse.
void append_json_string(std::string& out, std::string_view name);

/// Returns the text of a JSON string literal, quotes included, or nothing if the literal is malformed.
std::optional<std::string> parse_json_string(std::string_view literal);

/// Throws InvalidInput if the recording of a stage has another workspace than its forward, which chain files cannot
/// express.
void check_chain_can_be_written(const Chain& chain);

}  // namespace headroom::internal
