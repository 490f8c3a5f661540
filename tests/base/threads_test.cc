#include "base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <string>

#include "absl/synchronization/notification.h"

namespace somnus {
namespace {

// Leaves this process no memory for the stack of a further thread. (A limit of processes does not hold for
// root.)
void ForbidThreads() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  const rlimit limit = {static_cast<rlim_t>(pages) * 4096 + (1 << 20), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(ThreadsTest, RunTogetherRunsAllAtOnce) {
  std::atomic<int> there{0};
  RunTogether(3, [&](size_t) {
    ++there;
    while (there < 3) std::this_thread::yield();
  });
  EXPECT_EQ(there, 3);
  RunTogether(0, [&](size_t) { ++there; });
  EXPECT_EQ(there, 3);
}

TEST(ThreadsTest, TasksGetThreadsAsTheyNeedThemUpToTheBound) {
  TaskThreads threads(2);
  absl::Notification go;
  std::atomic<int> begun{0}, ended{0};
  const auto task = [&] {
    ++begun;
    go.WaitForNotification();
    ++ended;
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(threads.Run(task).ok());
  while (begun < 2) std::this_thread::yield();
  EXPECT_EQ(begun, 2);
  go.Notify();
  threads.Join();
  EXPECT_EQ(ended, 3);
}

TEST(ThreadsDeathTest, WithoutThreadsNothingEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ForbidThreads();
        const bool refused = absl::IsResourceExhausted(StartThread([] {}).status());
        int sum = 0;
        RunTogether(3, [&](size_t i) { sum += 1 << i; });
        TaskThreads tasks(4);
        const bool no_task = absl::IsResourceExhausted(tasks.Run([] {}));
        _exit(refused && sum == 7 && no_task ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace somnus
