#include "base/running_clock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
namespace somnus {
namespace {

class RunningClockTest : public ::testing::Test {
 protected:
  MonotonicTime now_ = absl::Hours(5);
  RunningClock clock_{[this] { return now_; }, absl::Milliseconds(500)};
};

TEST_F(RunningClockTest, CountsWhatPassesWhileItIsRead) {
  const MonotonicTime start = clock_.Now();
  for (int i = 0; i < 100; ++i) {
    now_ += absl::Milliseconds(100);
    clock_.Now();
  }
  EXPECT_EQ(clock_.Now() - start, absl::Seconds(10));
  EXPECT_EQ(clock_.stood_still(), absl::ZeroDuration());
}

TEST_F(RunningClockTest, CountsLittleOfAStandstillWhoeverReadsFirst) {
  const MonotonicTime start = clock_.Now();
  now_ += absl::Seconds(6);
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(500));
  EXPECT_EQ(clock_.stood_still(), absl::Milliseconds(5500));
  now_ += absl::Milliseconds(20);
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(520));
  now_ += absl::Hours(6);
  EXPECT_EQ(clock_.stood_still(), absl::Hours(6) + absl::Seconds(5));
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(1020));
}

TEST(ProcessClockTest, RunsWithoutAnybodyWhoReads) {
  const MonotonicTime start = RunningNow();
  const absl::Duration before = StoodStill();
  StopSignal().WaitFor(absl::Seconds(1));
  // On a starved machine the process may have stood still, and the clock counts the standstill.
  EXPECT_GE(RunningNow() - start + (StoodStill() - before), absl::Seconds(1));
}

TEST(ProcessClockTest, AForkedChildHasAReaderOfItsOwn) {
  RunningNow();
  const pid_t child = fork();
  if (child == 0) {
    RunningNow();
    int num_threads = 0;
    for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
      ++num_threads;
    _exit(num_threads);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace somnus
