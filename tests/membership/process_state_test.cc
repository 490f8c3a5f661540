#include "coordinator/membership/process_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace somnus {
namespace {

TEST(ProcessStateTest, SaysWhatKeepsAProcessFromRunning) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_NAME, "a) T (b");  // what /proc shows before the state
    raise(SIGSTOP);
    while (true) pause();
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(WhyNotRunning(child), "it is stopped by a signal");
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, WCONTINUED), child);
  EXPECT_EQ(WhyNotRunning(child), "");
  kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(WhyNotRunning(child), "it has ended");
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WhyNotRunning(child), "") << "there is no such process";
  EXPECT_EQ(WhyNotRunning(getpid()), "");
}

}  // namespace
}  // namespace somnus
