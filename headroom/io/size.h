#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headroom {

/// Parses a number of bytes: `1073741824`, `512MB`, `8 GiB`, `1.5gib`. B, KB, MB, GB, TB count by 1000, KiB, MiB, GiB, TiB
/// by 1024, in any case. Decimals need a unit above B; they are exact, and the result is rounded down. Throws InvalidInput
/// for anything else and for a result that does not fit int64.
int64_t parse_bytes(std::string_view text);

/// Parses a number of bytes as parse_bytes() does, or a share of `store_all_peak_bytes` (not negative) such as `0.5x`,
/// rounded down.
int64_t parse_budget(std::string_view text, int64_t store_all_peak_bytes);

/// Returns bytes for display, rounded to two decimals: "512 B", "1.50 GiB".
std::string format_bytes(int64_t bytes);

/// Returns a time for display, rounded to two decimals: "512 ns", "1.50 us", "20.00 ms", "3.25 s".
std::string format_ns(int64_t time_ns);

}  // namespace headroom
