#include "headroom/core/quote.h"

namespace headroom::internal {
namespace {

constexpr size_t kLongestShown = 80;
constexpr size_t kShownEnd = 36;

bool continues_utf8(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

std::string shortened(std::string_view name) {
  if (name.size() <= kLongestShown) return std::string(name);
  size_t head = kShownEnd;
  while (head > 0 && continues_utf8(name[head])) --head;
  size_t tail = name.size() - kShownEnd;
  while (tail < name.size() && continues_utf8(name[tail])) ++tail;
  return std::string(name.substr(0, head)) + "..." + std::string(name.substr(tail));
}

}  // namespace

std::string quote(std::string_view name) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : shortened(name)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += "\\x";
      text += kHex[byte >> 4U];
      text += kHex[byte & 15U];
    } else {
      text += c;
    }
  }
  return text + "'";
}

}  // namespace headroom::internal
