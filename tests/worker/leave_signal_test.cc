// Why and when a worker leaves: the first reason counts, and the grace after SIGTERM is a separate time.

#include "worker/leave_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "tests/fakes/jumping_clock.h"

namespace somnus {
namespace {

TEST(LeaveSignalTest, TheFirstReasonCounts) {
  LeaveSignal leave(/*parent=*/0);
  leave.Leave(1, "first");
  leave.Leave(0, "second");
  const LeaveSignal::Reason reason = leave.Wait();
  EXPECT_EQ(reason.exit_code, 1);
  EXPECT_EQ(reason.text, "first");
}

TEST(LeaveSignalTest, ASignalIsAReasonUnlessThereIsAGrace) {
  LeaveSignal leave(/*parent=*/0);
  ASSERT_EQ(raise(SIGTERM), 0);
  EXPECT_EQ(leave.Wait().exit_code, 0);

  leave.WaitAfterTerm(absl::Minutes(10));
  ASSERT_EQ(raise(SIGTERM), 0);
  std::thread coordinator([&] {
    absl::SleepFor(absl::Milliseconds(100));
    leave.Leave(0, "the coordinator said so");
  });
  EXPECT_EQ(leave.Wait().text, "the coordinator said so");
  coordinator.join();
}

TEST(LeaveSignalTest, TheEndOfAParentCountsWhileItIsWatched) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans become ours
  for (const bool watched : {true, false}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // A process whose own child uses the signal, and which then ends.
      int ready[2];
      if (pipe(ready) != 0) _exit(9);
      const pid_t parent = getpid();
      if (fork() != 0) {
        char byte;
        _exit(read(ready[0], &byte, 1) == 1 ? 0 : 9);
      }
      LeaveSignal leave(parent);
      if (!watched) leave.StopWatchingParent();
      if (write(ready[1], "x", 1) != 1) _exit(9);
      while (getppid() == parent) absl::SleepFor(absl::Milliseconds(1));
      if (!watched) leave.Leave(7, "the test");
      _exit(leave.Wait().exit_code);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_GT(waitpid(-1, &status, 0), 0);
    EXPECT_EQ(WEXITSTATUS(status), watched ? 1 : 7);
  }
}

TEST(LeaveSignalTest, AWallClockThatIsSetBackDoesNotProlongTheGrace) {
  LeaveSignal leave(/*parent=*/0);
  leave.WaitAfterTerm(absl::Milliseconds(500));
  ASSERT_EQ(raise(SIGTERM), 0);
  std::thread jump([] {
    absl::SleepFor(absl::Milliseconds(100));
    g_wall_clock_seconds = -3600;
  });
  const MonotonicTime start = MonotonicNow();
  EXPECT_EQ(leave.Wait().text, "SIGTERM, and the coordinator did not say otherwise");
  EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(500));
  jump.join();
  g_wall_clock_seconds = 0;
}

}  // namespace
}  // namespace somnus
