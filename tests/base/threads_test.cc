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

TEST(ThreadsTest, ForEachRunsEachOnceThoughHelpersAreBusy) {
  TaskThreads threads(2);
  std::vector<std::atomic<int>> calls(100);
  // Two calls at once take two threads.
  std::atomic<int> there{0};
  threads.ForEach(2, 1, [&](size_t i) {
    ++calls[i];
    ++there;
    while (there < 2) std::this_thread::yield();
  });
  absl::Notification go;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(threads.Run([&] { go.WaitForNotification(); }).ok());
  threads.ForEach(calls.size(), 2, [&](size_t i) { ++calls[i]; });
  go.Notify();
  threads.ForEach(calls.size(), 5, [&](size_t i) { ++calls[i]; });
  threads.ForEach(0, 2, [&](size_t) { ADD_FAILURE(); });
  threads.Join();
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], i < 2 ? 3 : 2) << i;
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
