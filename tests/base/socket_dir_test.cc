// Directories of sockets end with their owners; the next owner removes directories of killed owners, and
// nothing else.

#include "base/socket_dir.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& path) { std::ofstream(path) << "text"; }

class SocketDirTest : public ::testing::Test {
 protected:
  // The directory, with a file in it, of a process that was killed.
  fs::path LeaveOne() {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto directory = SocketDir::Create(parent_.path());
      Write(directory->path() + "/coordinator.sock");
      if (write(ready[1], directory->path().data(), directory->path().size()) < 0) _exit(1);
      pause();
    }
    std::string path(200, '\0');
    const ssize_t size = read(ready[0], path.data(), path.size());
    path.resize(size > 0 ? static_cast<size_t>(size) : 0);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    return path;
  }
  // Makes a directory that looks left.
  fs::path Fake(const std::string& name, mode_t mode) {
    const fs::path path = fs::path(parent_.path()) / name;
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    Write(path / "locked");
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  const TempDir parent_;
};

TEST_F(SocketDirTest, ItIsPrivateAndEndsWithItsOwner) {
  std::string path;
  {
    const auto directory = SocketDir::Create(parent_.path());
    ASSERT_TRUE(directory.ok()) << directory.status();
    path = directory->path();
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    Write(path + "/coordinator.sock");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SocketDirTest, TheNextOneRemovesWhatWasLeft) {
  const fs::path left = LeaveOne();
  ASSERT_TRUE(fs::exists(left / "coordinator.sock"));
  const auto directory = SocketDir::Create(parent_.path());
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(SocketDirTest, NobodyElsesIsRemoved) {
  const auto living = SocketDir::Create(parent_.path());
  ASSERT_TRUE(living.ok()) << living.status();
  const fs::path open_to_others = Fake("somnus-aaaaaa", 0755), other_name = Fake("somnus-aaaaaaa", 0700);
  const fs::path target = Fake("target", 0700), link = fs::path(parent_.path()) / "somnus-bbbbbb";
  fs::create_directory_symlink(target, link);
  const fs::path unlocked = fs::path(parent_.path()) / "somnus-cccccc";  // the directory is just being made
  ASSERT_EQ(mkdir(unlocked.c_str(), 0700), 0);
  const fs::path left = Fake("somnus-dddddd", 0700);
  fs::create_symlink(target / "locked", left / "link");

  const auto next = SocketDir::Create(parent_.path());
  ASSERT_TRUE(next.ok()) << next.status();
  for (const fs::path& path : {fs::path(living->path()), open_to_others, other_name, link, unlocked})
    EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_FALSE(fs::exists(left)) << "it looks left, and is";
  EXPECT_TRUE(fs::exists(target / "locked")) << "links are not followed";
}

TEST_F(SocketDirTest, AParentThatIsMissingIsAnError) {
  const auto directory = SocketDir::Create(parent_.path() + "/none");
  EXPECT_NE(directory.status().message().find("/none"), absl::string_view::npos) << directory.status();
}

}  // namespace
}  // namespace somnus
