#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headroom {

inline constexpr size_t kMostFileBytes = size_t{1} << 30U;

/// All of a file. Throws InvalidInput, with the path and the reason, where it cannot be read or is larger than
/// `most_bytes`.
std::string read_file(const std::string& path, size_t most_bytes = kMostFileBytes);

/// Makes `path` hold `text`, at once: the text goes to a temporary file in the same folder, is flushed to disk, and
/// then takes the place of `path`. A link is followed, an existing file's permissions stay. What is no regular file
/// (/dev/stdout, a pipe) is written straight away.
/// On failure the temporary is removed, `path` is as it was, and InvalidInput names the path and the reason.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace headroom
