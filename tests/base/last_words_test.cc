#include "base/last_words.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace somnus {
namespace {

// The last words of a child process that runs `tell`, read after the child's end.
LastWords TellInAChild(const std::function<void()>& tell, bool told_where = true) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], kLastWordsFd);
    if (told_where) setenv("SOMNUS_LAST_WORDS", "3", 1);
    tell();
    _exit(0);
  }
  close(ends[1]);
  waitpid(pid, nullptr, 0);
  const LastWords words = ReadLastWords(ends[0]);
  close(ends[0]);
  return words;
}

TEST(LastWordsTest, TheSetAndTheErrorArrive) {
  const LastWords words = TellInAChild([] {
    TellCpuIsa("avx2");
    TellError(absl::FailedPreconditionError("--device=cuda:\nno GPU"));
  });
  EXPECT_EQ(words.cpu_isa, "avx2");
  EXPECT_EQ(words.error, "--device=cuda: no GPU");
  EXPECT_TRUE(words.recurs);
}

TEST(LastWordsTest, AnErrorThatMayPassDoesNotRecur) {
  const LastWords words = TellInAChild([] { TellError(absl::UnavailableError("cannot listen")); });
  EXPECT_EQ(words.error, "cannot listen");
  EXPECT_FALSE(words.recurs);
  EXPECT_EQ(words.cpu_isa, "");
}

TEST(LastWordsTest, LongTextsAreCutAndAFullPipeIsNotWaitedFor) {
  const LastWords words = TellInAChild([] {
    for (int i = 0; i < 100; ++i) TellError(absl::InternalError(std::string(1 << 20, 'x')));
  });
  EXPECT_EQ(words.error.substr(0, 4), "xxxx");
  EXPECT_LT(words.error.size(), 1u << 13);
}

TEST(LastWordsTest, AProcessThatWasNotStartedSoTellsNobody) {
  const LastWords words = TellInAChild([] { TellCpuIsa("avx2"); }, /*told_where=*/false);
  EXPECT_EQ(words.cpu_isa, "");
}

}  // namespace
}  // namespace somnus
