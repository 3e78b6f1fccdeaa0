#include "headroom/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "headroom/core/error.h"

namespace headroom {
namespace {

[[noreturn]] void fail(const std::string& path, const char* message, int error) {
  throw InvalidInput(path + ": " + message + ": " + std::generic_category().message(error));
}

/// Owns an open file.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (is_open()) ::close(fd_);
  }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Returns false if written data could not be stored.
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0;
  }

 private:
  int fd_;
};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// Creates a new file in the folder of `path` and stores its name in `temporary`.
int open_temporary(const std::string& path, std::string& temporary) {
  constexpr int kMaxTries = 1000;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (int i = 0;; ++i) {
    temporary = (folder / (".headroom-" + std::to_string(::getpid()) + "-" + std::to_string(i))).string();
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST || i == kMaxTries) return fd;
  }
}

/// Returns the target of a chain of links, which need not exist.
std::string follow_links(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(path, error); ++i) {
    const std::filesystem::path next = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;
  }
  return path.string();
}

void write_in_place(const std::string& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open() || !write_all(file.get(), text) || !file.close()) fail(path, "cannot write", errno);
}

void write_and_rename(const std::string& path, std::string_view text, const struct stat* existing) {
  std::string temporary;
  Descriptor file(open_temporary(path, temporary));
  if (!file.is_open()) fail(path, "cannot write", errno);
  const bool done = (existing == nullptr || ::fchmod(file.get(), existing->st_mode & 07777U) == 0) &&
                    write_all(file.get(), text) && ::fsync(file.get()) == 0 && file.close() &&
                    ::rename(temporary.c_str(), path.c_str()) == 0;
  if (done) return;
  const int error = errno;
  ::unlink(temporary.c_str());
  fail(path, "cannot write", error);
}

}  // namespace

std::string read_file(const std::string& path, size_t max_bytes) {
  constexpr size_t kChunk = size_t{1} << 16U;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, "cannot read", errno);
  std::string text;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
    text.reserve(std::min(static_cast<size_t>(status.st_size), max_bytes) + kChunk);
  for (;;) {
    const size_t size = text.size();
    text.resize(size + kChunk);
    const ssize_t count = ::read(file.get(), text.data() + size, kChunk);
    text.resize(size + static_cast<size_t>(count < 0 ? 0 : count));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "cannot read", errno);
    if (count == 0) return text;
    if (text.size() > max_bytes)
      throw InvalidInput(path + ": larger than the " + std::to_string(max_bytes) + " bytes that a file may have");
  }
}

void write_file_atomically(const std::string& path, std::string_view text) {
  const std::string target = follow_links(path);
  struct stat status {};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(path, "cannot write", EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    write_in_place(target, text);
  } else {
    write_and_rename(target, text, exists ? &status : nullptr);
  }
}

}  // namespace headroom
