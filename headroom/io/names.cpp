#include "headroom/io/names.h"

#include <nlohmann/json.hpp>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"

namespace headroom::internal {
namespace {

unsigned byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

/// Returns the length of the UTF-8 sequence at `i` in bytes, or 0 if it is malformed.
size_t sequence_length(std::string_view text, size_t i) {
  const unsigned lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || text.size() - i < length) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte_at(text, i + k) & 0xC0U) != 0x80U) return 0;
  const unsigned second = byte_at(text, i + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_large = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

void append_escaped(std::string& out, char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20) {
    out += c;
    return;
  }
  out += "\\u00";
  out += kHex[byte >> 4U];
  out += kHex[byte & 15U];
}

}  // namespace

int32_t NameTable::intern(std::string_view name) {
  if (const std::optional<int32_t> known = find(name)) return *known;
  const auto id = static_cast<int32_t>(names_.size());
  ids_.emplace(names_.emplace_back(name), id);
  return id;
}

std::optional<int32_t> NameTable::find(std::string_view name) const {
  const auto entry = ids_.find(name);
  return entry == ids_.end() ? std::nullopt : std::optional(entry->second);
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

void append_json_string(std::string& out, std::string_view name) {
  if (name.empty()) throw InvalidInput("cannot write an empty name");
  if (!is_utf8(name)) throw InvalidInput("cannot write the name " + quote(name) + ": it is not UTF-8");
  out += '"';
  for (const char c : name) append_escaped(out, c);
  out += '"';
}

std::optional<std::string> parse_json_string(std::string_view literal) {
  const nlohmann::json parsed =
      nlohmann::json::parse(literal.begin(), literal.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_string()) return std::nullopt;
  return parsed.get<std::string>();
}

void check_chain_can_be_written(const Chain& chain) {
  for (int i = 1; i <= chain.length(); ++i) {
    const Stage& stage = chain.stage(i);
    if (stage.effective_record_workspace_bytes() == stage.forward_workspace_bytes) continue;
    throw InvalidInput("stage " + std::to_string(i) + " " + quote(stage.name) + ": recording needs a workspace of " +
                       std::to_string(stage.effective_record_workspace_bytes()) + " bytes, an unrecorded forward " +
                       std::to_string(stage.forward_workspace_bytes) +
                       ": a chain file has one for both; write the chain's graph instead");
  }
}

}  // namespace headroom::internal
