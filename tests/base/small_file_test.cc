// Only a regular file is read, and of a secret only a file that is closed to others; nothing is waited for.

#include "base/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using ::testing::EndsWith;

class SmallFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  const TempDir folder_;
};

std::string Problem(const absl::StatusOr<std::string>& text, const std::string& path) {
  EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << text.status();
  const std::string message(text.status().message());
  EXPECT_EQ(message.substr(0, path.size()), path);
  return message.substr(path.size());
}

TEST_F(SmallFileTest, AFileOfAtMostSoManyBytesIsRead) {
  const std::string path = Write("text", "12345");
  EXPECT_EQ(*ReadSmallFile(path, 5), "12345");
  EXPECT_EQ(Problem(ReadSmallFile(path, 4), path), " is longer than 4 bytes");
  EXPECT_EQ(*ReadSmallFile(Write("empty", ""), 4), "");
}

TEST_F(SmallFileTest, NobodyWaitsForAFifo) {
  const std::string path = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(Problem(ReadSmallFile(path, 4), path), " is not a regular file");
  EXPECT_EQ(Problem(ReadPrivateFile(path, 4), path), " is not a regular file");
  EXPECT_EQ(Problem(ReadSmallFile("/dev/zero", 4), "/dev/zero"), " is not a regular file");
  EXPECT_EQ(Problem(ReadSmallFile(folder_.path(), 4), folder_.path()), " is not a regular file");
}

TEST_F(SmallFileTest, AFileThatIsNotThereIsSaid) {
  const std::string path = folder_.path() + "/none";
  EXPECT_EQ(Problem(ReadSmallFile(path, 4), path), " cannot be read: No such file or directory");
}

TEST_F(SmallFileTest, ASecretIsClosedToOthers) {
  for (const mode_t mode : {0600, 0640, 0400}) EXPECT_EQ(*ReadPrivateFile(Write("key", "k", mode), 1), "k");
  for (const mode_t mode : {0604, 0602, 0620}) {
    const std::string path = Write("key", "k", mode);
    EXPECT_THAT(Problem(ReadPrivateFile(path, 1), path), EndsWith("chmod 600")) << mode;
    EXPECT_EQ(*ReadSmallFile(path, 1), "k");
  }
}

}  // namespace
}  // namespace somnus
