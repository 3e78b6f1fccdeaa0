#include "headroom/io/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/io/support.h"

namespace headroom::internal {
namespace {

namespace fs = std::filesystem;

/// Gives each test an empty folder.
class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "headroom_file_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t file_count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  std::string text = "line\r\n\0\xFF";
  text += std::string(300000, 'x');
  for (const std::string& content : {std::string(), std::string("short"), text, std::string("shorter")}) {
    write_file_atomically(path("f"), content);
    EXPECT_EQ(read_file(path("f")), content);
    EXPECT_EQ(file_count(), 1U);
  }
}

TEST_F(FileTest, SaysWhyItCannotRead) {
  EXPECT_EQ(message_of([&] { read_file(path("none")); }), path("none") + ": cannot read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(folder_.string()); }), folder_.string() + ": cannot read: Is a directory");
  EXPECT_EQ(message_of([&] { read_file(""); }), ": cannot read: No such file or directory");
  write_file_atomically(path("f"), "12345");
  EXPECT_EQ(message_of([&] { read_file(path("f/g")); }), path("f/g") + ": cannot read: Not a directory");
  EXPECT_EQ(read_file(path("f"), 5), "12345");
  EXPECT_EQ(message_of([&] { read_file(path("f"), 4); }), path("f") + ": larger than the 4 bytes that a file may have");
  EXPECT_NE(message_of([&] { read_file("/dev/zero", 100000); }), "accepted");
  if (::geteuid() != 0) {
    fs::permissions(path("f"), fs::perms::none);
    EXPECT_EQ(message_of([&] { read_file(path("f")); }), path("f") + ": cannot read: Permission denied");
  }
}

TEST_F(FileTest, SaysWhyItCannotWrite) {
  EXPECT_EQ(message_of([&] { write_file_atomically(path("none/f"), "x"); }),
            path("none/f") + ": cannot write: No such file or directory");
  EXPECT_EQ(message_of([&] { write_file_atomically(folder_.string(), "x"); }),
            folder_.string() + ": cannot write: Is a directory");
  EXPECT_EQ(message_of([&] { write_file_atomically("", "x"); }), ": cannot write: No such file or directory");
  EXPECT_EQ(message_of([&] { write_file_atomically("/dev/full", "x"); }),
            "/dev/full: cannot write: No space left on device");
  EXPECT_EQ(file_count(), 0U);
}

TEST_F(FileTest, LeavesTheOldFileWhenWritingFails) {
  write_file_atomically(path("f"), "old");
  // Limits files to 1000 bytes during the write.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] { write_file_atomically(path("f"), std::string(5000, 'x')); });
  const std::string fresh = message_of([&] { write_file_atomically(path("g"), std::string(5000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, path("f") + ": cannot write: File too large");
  EXPECT_EQ(fresh, path("g") + ": cannot write: File too large");
  EXPECT_EQ(read_file(path("f")), "old");
  EXPECT_EQ(file_count(), 1U);
}

TEST_F(FileTest, FollowsLinksAndKeepsPermissions) {
  write_file_atomically(path("f"), "old");
  fs::permissions(path("f"), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink("f", path("link"));
  fs::create_symlink("fresh", path("to_nothing"));
  write_file_atomically(path("link"), "new");
  write_file_atomically(path("to_nothing"), "made");
  EXPECT_EQ(read_file(path("f")), "new");
  EXPECT_EQ(read_file(path("fresh")), "made");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_TRUE(fs::is_symlink(path("to_nothing")));
  EXPECT_EQ(fs::status(path("f")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  EXPECT_EQ(file_count(), 4U);
}

TEST_F(FileTest, StepsAsideForLeftTemporaries) {
  const std::string left = path(".headroom-" + std::to_string(::getpid()) + "-0");
  write_file_atomically(left, "left");
  write_file_atomically(path("f"), "new");
  EXPECT_EQ(read_file(path("f")), "new");
  EXPECT_EQ(read_file(left), "left");
}

TEST_F(FileTest, WritesDevicesStraightAway) {
  write_file_atomically("/dev/null", "x");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

}  // namespace
}  // namespace headroom::internal
