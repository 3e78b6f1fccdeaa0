#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "headroom/core/error.h"

/// The entry point that each fuzz_*.cpp defines, called by libFuzzer or run_seeds.cpp.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace headroom {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return std::string_view(reinterpret_cast<const char*>(data), size);
}

/// Runs `call`, which may throw InvalidInput. The message must be one line of bounded length that begins with the source
/// "f".
template <typename Call>
void unless_invalid(const Call& call) {
  try {
    call();
  } catch (const InvalidInput& error) {
    const std::string_view message = error.what();
    HEADROOM_ASSERT(message.starts_with("f: ") && message.size() < 1000);
    for (const char c : message) HEADROOM_ASSERT(static_cast<unsigned char>(c) >= 0x20);
  }
}

}  // namespace headroom
