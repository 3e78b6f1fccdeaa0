#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headroom {

/// The size up to which files are read: larger ones are no graphs, and would exhaust memory.
inline constexpr size_t kMaxFileBytes = size_t{1} << 30U;

/// Returns the contents of a file. Throws InvalidInput, with the path and the reason, if the file cannot be read or is
/// larger than `max_bytes`.
std::string read_file(const std::string& path, size_t max_bytes = kMaxFileBytes);

/// Replaces the contents of `path` by `text` atomically: writes a temporary file in the same folder, flushes it to disk
/// and renames it. Follows links and keeps an existing file's permissions. Writes directly to anything that is not a
/// regular file (/dev/stdout, a pipe). On failure the temporary file is removed, `path` is unchanged, and InvalidInput
/// names the path and the reason.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace headroom
