#include "headroom/io/size.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/io/support.h"

namespace headroom::internal {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(ParseBytes, TakesUnits) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("1073741824"), 1073741824);
  EXPECT_EQ(parse_bytes("007"), 7);
  EXPECT_EQ(parse_bytes("512B"), 512);
  EXPECT_EQ(parse_bytes("3KB"), 3'000);
  EXPECT_EQ(parse_bytes("512MB"), 512'000'000);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("1TB"), 1'000'000'000'000);
  EXPECT_EQ(parse_bytes("3KiB"), 3072);
  EXPECT_EQ(parse_bytes("1MiB"), 1048576);
  EXPECT_EQ(parse_bytes("8GiB"), int64_t{8} << 30U);
  EXPECT_EQ(parse_bytes("1TiB"), int64_t{1} << 40U);
  EXPECT_EQ(parse_bytes("8gib"), int64_t{8} << 30U);
  EXPECT_EQ(parse_bytes("8 GIB"), int64_t{8} << 30U);
  EXPECT_EQ(parse_bytes("1 \t kB"), 1000);
}

TEST(ParseBytes, RoundsDecimalsDownExactly) {
  EXPECT_EQ(parse_bytes("1.5GiB"), (int64_t{3} << 30U) / 2);
  EXPECT_EQ(parse_bytes("0.1KiB"), 102);     // 102.4
  EXPECT_EQ(parse_bytes("0.999KiB"), 1022);  // 1022.976
  EXPECT_EQ(parse_bytes("1.9999999999KB"), 1999);
  EXPECT_EQ(parse_bytes("0.1GB"), 100'000'000);  // not exact in binary floating point
  EXPECT_EQ(parse_bytes("0.0009765625KiB"), 1);
  EXPECT_EQ(parse_bytes("0.00097656249999999999999999999999999999999999999999KiB"), 0);
  EXPECT_EQ(parse_bytes("1." + std::string(10000, '9') + "TiB"), (int64_t{2} << 40U) - 1);
  EXPECT_EQ(parse_bytes("1." + std::string(10000, '0') + "TiB"), int64_t{1} << 40U);
}

TEST(ParseBytes, EqualsLongDivision) {
  // The value with k decimals is floor(digits * unit / 10^k), in 128 bits.
  __extension__ using Wide = unsigned __int128;
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t whole = random() % 100000;
    const uint64_t decimals = random() % 1'000'000'000;
    const std::string digits = std::to_string(decimals);
    const std::string text = std::to_string(whole) + "." + std::string(9 - digits.size(), '0') + digits + "GiB";
    const Wide expected = (Wide{whole} * 1'000'000'000 + decimals) * (uint64_t{1} << 30U) / 1'000'000'000;
    ASSERT_EQ(parse_bytes(text), static_cast<int64_t>(expected)) << text;
  }
}

TEST(ParseBytes, KnowsItsLimit) {
  EXPECT_EQ(parse_bytes("9223372036854775807"), kMost);
  EXPECT_EQ(parse_bytes("8388607TiB"), kMost - (int64_t{1} << 40U) + 1);
  for (const std::string text : {"9223372036854775808", "8388608TiB", "9223373TB", "1180591620717411303424",
                                 "99999999999999999999999999999999999999999TB"})
    EXPECT_TRUE(message_of([&] { parse_bytes(text); }).ends_with(" is more than 9223372036854775807 bytes")) << text;
  EXPECT_EQ(message_of([] { parse_bytes("8388608TiB"); }), "'8388608TiB' is more than 9223372036854775807 bytes");
}

TEST(ParseBytes, RefusesTheRest) {
  const std::string expected =
      "expected bytes (1073741824) or a size (512MB, 1.5GiB; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), found ";
  for (const std::string text :
       {"",      " ",     "GiB",     "-1",       "-1GiB", "+1",   "8G",    "8GiBs", "8 G iB", "1,5GiB", "1e9",
        ".5GiB", "5.GiB", "1..5GiB", "1.5.5GiB", "0x10",  "0.5x", "8GiB ", "nan",   "inf",    " 8GiB"})
    EXPECT_EQ(message_of([&] { parse_bytes(text); }), expected + "'" + text + "'");
  EXPECT_EQ(message_of([] { parse_bytes("1.5"); }),
            "a number of bytes without a larger unit must be whole, found '1.5'");
  EXPECT_EQ(message_of([] { parse_bytes("1.0B"); }),
            "a number of bytes without a larger unit must be whole, found '1.0B'");
  EXPECT_NE(message_of([] { parse_bytes(std::string_view("8\0GiB", 5)); }), "accepted");
}

TEST(ParseBudget, TakesSizesAndShares) {
  EXPECT_EQ(parse_budget("8GiB", 100), int64_t{8} << 30U);
  EXPECT_EQ(parse_budget("77", 100), 77);
  EXPECT_EQ(parse_budget("0.5x", 101), 50);
  EXPECT_EQ(parse_budget("1x", 101), 101);
  EXPECT_EQ(parse_budget("1.25X", 100), 125);
  EXPECT_EQ(parse_budget("0.5 x", 100), 50);
  EXPECT_EQ(parse_budget("0x", 100), 0);
  EXPECT_EQ(parse_budget("3x", 0), 0);
  // A tenth of 2^63-1 is 922337203685477580.7; a double would say 922337203685477581 or ...632.
  EXPECT_EQ(parse_budget("0.1x", kMost), 922337203685477580);
  EXPECT_EQ(parse_budget("1.0x", kMost), kMost);
}

TEST(ParseBudget, RefusesTheRest) {
  const std::string expected =
      "expected bytes (1073741824), a size (512MB, 1.5GiB; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB) or a share of the "
      "peak of "
      "store-all (0.5x), found ";
  for (const std::string text : {"", "x", "half", "-0.5x", "0.5xx", "50%"})
    EXPECT_EQ(message_of([&] { parse_budget(text, 100); }), expected + "'" + text + "'");
  EXPECT_EQ(message_of([] { parse_budget("1.1x", kMost); }), "'1.1x' is more than 9223372036854775807 bytes");
  EXPECT_EQ(message_of([] { parse_budget("0.5", 100); }),
            "a number of bytes without a larger unit must be whole, found '0.5'");
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1034), "1.01 KiB");  // 1.0097...
  EXPECT_EQ(format_bytes(1048570), "1023.99 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.00 MiB");  // 1023.999 KiB would be shown as 1024.00
  EXPECT_EQ(format_bytes((int64_t{3} << 30U) / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 40U), "5.00 TiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 50U), "5.00 PiB");
  EXPECT_EQ(format_bytes(kMost), "8.00 EiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::min()), "-8.00 EiB");
}

TEST(FormatNs, ChoosesTheUnit) {
  EXPECT_EQ(format_ns(0), "0 ns");
  EXPECT_EQ(format_ns(999), "999 ns");
  EXPECT_EQ(format_ns(1500), "1.50 us");
  EXPECT_EQ(format_ns(999'994), "999.99 us");
  EXPECT_EQ(format_ns(999'996), "1.00 ms");
  EXPECT_EQ(format_ns(20'000'000), "20.00 ms");
  EXPECT_EQ(format_ns(3'250'000'000), "3.25 s");
  EXPECT_EQ(format_ns(7'200'000'000'000), "7200.00 s");
  EXPECT_EQ(format_ns(-1500), "-1.50 us");
}

}  // namespace
}  // namespace headroom::internal
