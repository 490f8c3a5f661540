// The words for a worker's end: the cause, and the way out.

#include "coordinator/executor/worker_end.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/match.h"

namespace somnus {
namespace {

// Statuses of waitpid on Linux.
constexpr int Killed(int signal) { return signal; }
constexpr int Exited(int code) { return code << 8; }

WorkerEnd Describe(int wait_status, const LastWords& last = {}, bool killed_for_memory = false) {
  return DescribeEnd(wait_status, "/opt/worker", last, killed_for_memory);
}

TEST(WorkerEndTest, ASignalIsNamedAndAnotherOneMayTakeThePlace) {
  const WorkerEnd end = Describe(Killed(SIGKILL));
  EXPECT_EQ(end.words, "was killed by signal 9 (Killed)");
  EXPECT_FALSE(end.recurs || end.refuses);
  EXPECT_EQ(Describe(Killed(SIGSEGV)).words, "was killed by signal 11 (Segmentation fault)");
  EXPECT_FALSE(Describe(Killed(SIGSEGV)).recurs);
}

TEST(WorkerEndTest, AKillWhileMemoryHasRunOutSaysSo) {
  EXPECT_EQ(
      Describe(Killed(SIGKILL), {}, true).words,
      "was killed by signal 9 (Killed); the system has killed for lack of memory meanwhile (see dmesg)");
  EXPECT_EQ(Describe(Killed(SIGTERM), {}, true).words, "was killed by signal 15 (Terminated)");
  EXPECT_GE(NumKilledForMemory(), 0);
}

TEST(WorkerEndTest, AnInstructionThatTheCpuLacksNamesTheSetAndTheWayOut) {
  const WorkerEnd end = Describe(Killed(SIGILL), {.cpu_isa = "avx512_bf16"});
  EXPECT_TRUE(end.recurs);
  EXPECT_TRUE(absl::StartsWith(
      end.words, "was killed by signal 4 (Illegal instruction) while it computed with avx512_bf16"))
      << end.words;
  EXPECT_TRUE(absl::StrContains(end.words, "SOMNUS_CPU_ISA=")) << end.words;
  EXPECT_TRUE(absl::StrContains(Describe(Killed(SIGILL)).words, "before it had chosen an instruction set"));
}

TEST(WorkerEndTest, WhatTheWorkerHasToldIsTheCause) {
  const WorkerEnd error = Describe(Exited(1), {.error = "no memory"});
  EXPECT_EQ(error.words, "exited with code 1: no memory");
  EXPECT_FALSE(error.recurs || error.refuses);
  const WorkerEnd refusal = Describe(Exited(1), {.error = "--device=cuda: no GPU", .recurs = true});
  EXPECT_EQ(refusal.words, "exited with code 1: --device=cuda: no GPU");
  EXPECT_TRUE(refusal.refuses);
  EXPECT_EQ(Describe(Exited(1)).words, "exited with code 1");
}

TEST(WorkerEndTest, AProgramThatCannotRunIsNamed) {
  for (const int code : {2, 126, 127}) {
    const WorkerEnd end = Describe(Exited(code));
    EXPECT_TRUE(end.recurs) << code;
    EXPECT_TRUE(absl::StrContains(end.words, "/opt/worker")) << end.words;
  }
  EXPECT_TRUE(absl::StrContains(Describe(Exited(127)).words, "a library that it needs"));
}

}  // namespace
}  // namespace somnus
