// Only a regular file is read, and of a secret only a file that is closed to others; nothing is waited for.

#include "base/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

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

TEST_F(SmallFileTest, TextComesFromAFifoUpToTheEndOfItsWriter) {
  const std::string path = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] {
    absl::SleepFor(absl::Milliseconds(20));  // the reader comes first, most times
    std::ofstream fifo(path);
    fifo << "one " << std::flush;
    absl::SleepFor(absl::Milliseconds(20));
    fifo << "two";
  });
  EXPECT_EQ(*ReadPipedFile(path, 100), "one two");
  writer.join();
  EXPECT_EQ(*ReadPipedFile(Write("text", "12345"), 5), "12345");
  EXPECT_EQ(*ReadPipedFile(Write("empty", ""), 5), "");
  EXPECT_EQ(*ReadPipedFile("/dev/null", 5), "");
}

// As a shell's <(...) whose command has ended.
TEST_F(SmallFileTest, APipeWithoutWritersHasAnEnd) {
  for (const std::string text : {"", "text"}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    EXPECT_EQ(*ReadPipedFile(absl::StrCat("/dev/fd/", ends[0]), 100), text);
    close(ends[0]);
  }
}

TEST_F(SmallFileTest, AFifoThatNobodyWritesToIsSaidAndThenAnError) {
  const std::string path = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const PipePatience patience = {.notice = absl::Milliseconds(1), .limit = absl::Milliseconds(30)};
  testing::internal::CaptureStderr();
  const auto text = ReadPipedFile(path, 100, patience);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::IsDeadlineExceeded(text.status())) << text.status();
  EXPECT_THAT(said, HasSubstr(absl::StrCat("waiting for text from ", path, ", for at most 30ms\n")));
}

TEST_F(SmallFileTest, ATextThatDoesNotEndIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    while (!ended) {
      EXPECT_EQ(write(ends[1], "x", 1), 1);
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  const PipePatience patience = {.total = absl::Milliseconds(30)};
  const absl::Status status = ReadPipedFile(absl::StrCat("/dev/fd/", ends[0]), 1 << 16, patience).status();
  EXPECT_EQ(status, absl::DeadlineExceededError("has not ended within 30ms"));
  ended = true;
  writer.join();
  for (const int end : ends) close(end);
}

TEST_F(SmallFileTest, ATextHasItsBoundAndIsNoFolder) {
  const auto problem = [](const std::string& path) {
    return std::string(ReadPipedFile(path, 4).status().message());
  };
  EXPECT_EQ(problem(Write("text", "12345")), "has more than 4 bytes");
  EXPECT_EQ(problem("/dev/zero"), "has more than 4 bytes");
  EXPECT_EQ(problem(folder_.path()), "cannot be read: Is a directory");
  EXPECT_TRUE(absl::IsNotFound(ReadPipedFile(folder_.path() + "/none", 4).status()));
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
