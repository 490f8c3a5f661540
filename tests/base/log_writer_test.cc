// A log without a reader holds up no process, and says afterwards how many lines are missing.

#include "base/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/log.h"

namespace somnus {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Pipe() {
    CloseReader();
    CloseWriter();
  }

  int writer() const { return ends_[1]; }
  // Fills the pipe, so that a write waits for a read. Returns the bytes that went into the pipe.
  size_t Fill() {
    fcntl(writer(), F_SETFL, O_NONBLOCK);
    size_t total = 0;
    const std::string zeros(4096, '\0');
    for (ssize_t size = 0; (size = write(writer(), zeros.data(), zeros.size())) > 0;)
      total += static_cast<size_t>(size);
    fcntl(writer(), F_SETFL, 0);
    return total;
  }
  // Reads until `last` has come, or to the end of the pipe.
  std::string ReadUntil(const std::string& last) {
    std::string text;
    char piece[4096];
    while (text.find(last) == std::string::npos) {
      const ssize_t size = read(ends_[0], piece, sizeof(piece));
      if (size <= 0) break;
      text.append(piece, static_cast<size_t>(size));
    }
    return text;
  }
  void CloseReader() { Close(&ends_[0]); }
  void CloseWriter() { Close(&ends_[1]); }

 private:
  static void Close(int* end) {
    if (*end >= 0) close(*end);
    *end = -1;
  }

  int ends_[2] = {-1, -1};
};

std::string Line(int i) { return absl::StrCat("line ", i, "\n"); }

// The lines of a text after the zeros that filled the pipe.
std::vector<std::string> Lines(std::string text) {
  text.erase(0, text.find_first_not_of('\0'));
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST(LogWriterTest, LinesComeInTheirOrder) {
  Pipe pipe;
  LogWriter writer(pipe.writer(), 1 << 20);
  for (int i = 0; i < 3; ++i) writer.Add(Line(i));
  EXPECT_TRUE(writer.Flush(kPatience));
  EXPECT_EQ(pipe.ReadUntil("line 2\n"), "line 0\nline 1\nline 2\n");
  EXPECT_EQ(writer.num_dropped(), 0);
}

TEST(LogWriterTest, WhoeverLogsDoesNotWaitForAFullPipe) {
  Pipe pipe;
  pipe.Fill();
  constexpr int kLines = 1000;
  LogWriter writer(pipe.writer(), /*max_bytes=*/100);
  for (int i = 0; i < kLines; ++i) writer.Add(Line(i));  // blocking writes would never end
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(1)));
  const int64_t dropped = writer.num_dropped();
  EXPECT_GT(dropped, kLines - 30);
  EXPECT_LT(dropped, kLines);
  const std::string notice = absl::StrCat(dropped, " lines were dropped here: the log was not read");
  const std::vector<std::string> lines = Lines(pipe.ReadUntil(notice + "\n"));
  ASSERT_EQ(static_cast<int64_t>(lines.size()), kLines - dropped + 1);
  for (size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_EQ(lines[i] + "\n", Line(static_cast<int>(i)));
  EXPECT_EQ(lines.back(), notice);
  writer.Add("and on\n");
  EXPECT_EQ(pipe.ReadUntil("and on\n"), "and on\n");
}

TEST(LogWriterTest, LinesThatAreRefusedAreCountedAndTheProcessLives) {
  Pipe pipe;
  pipe.CloseReader();
  LogWriter writer(pipe.writer(), 1 << 20);  // a SIGPIPE would end the test
  writer.Add(Line(0));
  writer.Add(Line(1));
  while (writer.num_dropped() < 2) usleep(1000);
  EXPECT_EQ(writer.num_dropped(), 2);
}

// The text that a child process writes to stderr, which is `pipe`, before `end` ends the child, and the
// child's status of waitpid.
template <typename End>
std::pair<std::string, int> RunUntil(Pipe* pipe, bool read, const End& end) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe->writer(), STDERR_FILENO);
    end();
    _exit(99);
  }
  pipe->CloseWriter();
  std::string text;
  if (read) text = pipe->ReadUntil("\xff");
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {text, status};
}

void LogAndBreak() {
  (void)InitLogging("test", "info", 1 << 20);
  LogInfo("the last words");
  SOMNUS_CHECK(1 + 1 == 3);
}

TEST(LogWriterTest, ABrokenInvariantComesAfterWhatWasLogged) {
  Pipe pipe;
  const auto [text, status] = RunUntil(&pipe, /*read=*/true, LogAndBreak);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
  const std::vector<std::string> lines = Lines(text);
  ASSERT_EQ(lines.size(), 2u) << text;
  EXPECT_NE(lines[0].find("[test] the last words"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("broken invariant: 1 + 1 == 3"), std::string::npos) << lines[1];
}

TEST(LogWriterTest, ABrokenInvariantEndsAProcessWhoseLogNobodyReads) {
  Pipe pipe;
  pipe.Fill();
  const auto [text, status] = RunUntil(&pipe, /*read=*/false, LogAndBreak);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
}

TEST(LogWriterTest, NoTextCanBeginALineOfItsOwn) {
  Pipe pipe;
  const auto [text, status] = RunUntil(&pipe, /*read=*/true, [] {
    (void)InitLogging("test", "info", 1 << 20);
    LogWarning("request {} ended", "a\nb\r\x1b[31m\x7f\u00e9");
    exit(0);
  });
  const std::vector<std::string> lines = Lines(text);
  ASSERT_EQ(lines.size(), 1u) << text;
  EXPECT_NE(lines[0].find(R"(request a\x0ab\x0d\x1b[31m\x7f)"
                          "\u00e9 ended"),
            std::string::npos)
      << lines[0];
}

TEST(LogWriterTest, WhatWasLoggedBeforeAFaultOrAnExitIsThere) {
  for (const bool faults : {false, true}) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (faults) break;  // the sanitizer's handler is in the place of the log's
#endif
    Pipe pipe;
    const auto [text, status] = RunUntil(&pipe, /*read=*/true, [faults] {
      (void)InitLogging("test", "info", 1 << 20);
      for (int i = 0; i < 100; ++i) LogInfo("line {}", i);
      fprintf(stderr, "%s end\n", "the");
      if (faults) raise(SIGBUS);
      exit(3);
    });
    const std::vector<std::string> lines = Lines(text);
    ASSERT_EQ(lines.size(), 101u) << text;
    EXPECT_EQ(lines.back(), "the end");
    EXPECT_EQ(status, faults ? SIGBUS : 3 << 8) << "as waitpid has it";
  }
}

}  // namespace
}  // namespace somnus
