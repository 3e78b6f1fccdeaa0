#include "headroom/io/size.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "headroom/core/error.h"
#include "headroom/core/quote.h"

namespace headroom {
using namespace internal;
namespace {

__extension__ using Wide = unsigned __int128;

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array kByteUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"kb", 1'000},
    Unit{"mb", 1'000'000},
    Unit{"gb", 1'000'000'000},
    Unit{"tb", 1'000'000'000'000},
    Unit{"kib", uint64_t{1} << 10U},
    Unit{"mib", uint64_t{1} << 20U},
    Unit{"gib", uint64_t{1} << 30U},
    Unit{"tib", uint64_t{1} << 40U},
};

constexpr const char* kSizes = "bytes (1073741824) or a size (512MB, 1.5GiB; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)";
constexpr const char* kBudgets =
    "bytes (1073741824), a size (512MB, 1.5GiB; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB) or a share of the peak of "
    "store-all (0.5x)";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A decimal number with its unit in lower case.
struct Quantity {
  std::string_view whole;
  std::string_view decimals;
  std::string unit;
};

std::string_view take_digits(std::string_view& text) {
  const auto count = static_cast<size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

[[noreturn]] void fail_expected(const char* expected, std::string_view text) {
  throw InvalidInput(std::string("expected ") + expected + ", found " + quote(text));
}

Quantity split(std::string_view text, const char* expected) {
  std::string_view rest = text;
  Quantity quantity;
  quantity.whole = take_digits(rest);
  if (quantity.whole.empty()) fail_expected(expected, text);
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    quantity.decimals = take_digits(rest);
    if (quantity.decimals.empty()) fail_expected(expected, text);
  }
  if (const size_t blank = rest.find_first_not_of(" \t"); blank != std::string_view::npos) rest.remove_prefix(blank);
  for (const char c : rest) quantity.unit += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return quantity;
}

/// Returns floor(quantity * factor), exact for any number of decimals.
int64_t scale(const Quantity& quantity, uint64_t factor, std::string_view text) {
  constexpr Wide kMax = std::numeric_limits<int64_t>::max();
  const auto fail = [&] { throw InvalidInput(quote(text) + " is more than 9223372036854775807 bytes"); };
  Wide whole = 0;
  for (const char digit : quantity.whole) {
    whole = whole * 10 + static_cast<unsigned>(digit - '0');
    if (whole > kMax) fail();
  }
  // floor((x + n) / 10) = floor((floor(x) + n) / 10) for integers n, so working from the last decimal is exact.
  Wide part = 0;
  for (size_t i = quantity.decimals.size(); i-- > 0;)
    part = (part + Wide{static_cast<unsigned>(quantity.decimals[i] - '0')} * factor) / 10;
  const Wide product = whole * factor + part;
  if (product > kMax) fail();
  return static_cast<int64_t>(product);
}

/// Scales the quantity of `text` by its unit. Fails with `expected` if there is no such unit.
int64_t parse_with_units(const Quantity& quantity, std::string_view text, const char* expected) {
  const auto unit = std::ranges::find(kByteUnits, std::string_view(quantity.unit), &Unit::name);
  if (unit == kByteUnits.end()) fail_expected(expected, text);
  if (unit->factor == 1 && !quantity.decimals.empty())
    throw InvalidInput("a number of bytes without a larger unit must be whole, found " + quote(text));
  return scale(quantity, unit->factor, text);
}

/// Formats an amount in the largest unit in which it is at least 1 after rounding. `units` ascend from a factor of 1.
std::string format(int64_t amount, std::span<const Unit> units) {
  const bool negative = amount < 0;
  const uint64_t magnitude = negative ? ~static_cast<uint64_t>(amount) + 1 : static_cast<uint64_t>(amount);
  const auto hundredths = [&](const Unit& unit) { return (Wide{magnitude} * 100 + unit.factor / 2) / unit.factor; };
  size_t chosen = 0;
  while (chosen + 1 < units.size() &&
         hundredths(units[chosen]) >= Wide{units[chosen + 1].factor / units[chosen].factor} * 100)
    ++chosen;
  std::string text = negative ? "-" : "";
  const auto shown = static_cast<uint64_t>(hundredths(units[chosen]));
  text += std::to_string(shown / 100);
  if (chosen > 0) {
    const std::string decimals = std::to_string(shown % 100);
    text += (decimals.size() == 1 ? ".0" : ".") + decimals;
  }
  return text + " " + std::string(units[chosen].name);
}

}  // namespace

int64_t parse_bytes(std::string_view text) { return parse_with_units(split(text, kSizes), text, kSizes); }

int64_t parse_budget(std::string_view text, int64_t store_all_peak_bytes) {
  HEADROOM_ASSERT(store_all_peak_bytes >= 0);
  const Quantity quantity = split(text, kBudgets);
  if (quantity.unit == "x") return scale(quantity, static_cast<uint64_t>(store_all_peak_bytes), text);
  return parse_with_units(quantity, text, kBudgets);
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array kUnits = {
      Unit{"B", 1},
      Unit{"KiB", uint64_t{1} << 10U},
      Unit{"MiB", uint64_t{1} << 20U},
      Unit{"GiB", uint64_t{1} << 30U},
      Unit{"TiB", uint64_t{1} << 40U},
      Unit{"PiB", uint64_t{1} << 50U},
      Unit{"EiB", uint64_t{1} << 60U},
  };
  return format(bytes, kUnits);
}

std::string format_ns(int64_t time_ns) {
  constexpr std::array kUnits = {Unit{"ns", 1}, Unit{"us", 1'000}, Unit{"ms", 1'000'000}, Unit{"s", 1'000'000'000}};
  return format(time_ns, kUnits);
}

}  // namespace headroom
