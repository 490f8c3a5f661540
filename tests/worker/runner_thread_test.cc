// The runner thread's signs of life: a task may take as long as the task's bound, and a thread that waits for
// tasks lives.

#include "worker/runner_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace somnus {
namespace {

class RunnerThreadTest : public ::testing::Test {
 protected:
  RunnerThreadTest() { all_.Watch(absl::Seconds(60)); }

  bool Lives() const { return all_.Check().ok(); }
  // Begins a task that ends with `end`, and returns once the task runs.
  void Begin(RunnerThread* thread, absl::Duration bound) {
    absl::Notification begun;
    thread->Post(
        [&] {
          begun.Notify();
          end_.WaitForNotification();
        },
        bound);
    begun.WaitForNotification();
  }

  std::atomic<int64_t> now_s_{1000};
  Heartbeats all_{[this] { return absl::Seconds(now_s_.load()); }};
  absl::Notification end_;
};

TEST_F(RunnerThreadTest, AStepMayTakeItsTimeAndThenHangs) {
  RunnerThread thread(&all_);
  Begin(&thread, absl::Minutes(5));
  now_s_ += 5 * 60 + 60;
  EXPECT_TRUE(Lives()) << all_.Check();
  now_s_ += 1;
  EXPECT_EQ(std::string(all_.Check().message()).rfind("runner thread: no sign of life since ", 0), 0u);
  end_.Notify();
  EXPECT_TRUE(thread.WaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(Lives()) << "it goes on";
}

TEST_F(RunnerThreadTest, ACallOfTheCoordinatorMayTakeAsLongAsAnyDeadline) {
  RunnerThread thread(&all_);
  Begin(&thread, RunnerThread::kLongestCall);
  now_s_ += 2 * 60 * 60;
  EXPECT_TRUE(Lives()) << all_.Check();
  now_s_ += 61;
  EXPECT_FALSE(Lives());
  end_.Notify();
}

TEST_F(RunnerThreadTest, WhoWaitsForTasksLives) {
  all_.Watch(absl::Milliseconds(40));  // a tick is a quarter of the limit
  RunnerThread thread(&all_);
  EXPECT_TRUE(thread.WaitIdle(absl::InfiniteDuration()));
  now_s_ += 3600;
  while (!Lives()) absl::SleepFor(absl::Milliseconds(1));  // a sign comes by itself
}

TEST_F(RunnerThreadTest, TasksRunInOrderAndTheLastOnesBeforeTheEnd) {
  std::string ran;
  {
    RunnerThread thread(&all_);
    thread.Post([&] { ran += 'a'; });
    thread.Run([&] { ran += 'b'; });
    EXPECT_EQ(ran, "ab");
    Begin(&thread, absl::Minutes(5));
    EXPECT_FALSE(thread.WaitIdle(absl::ZeroDuration()));
    thread.Post([&] { ran += 'c'; });
    end_.Notify();
  }
  EXPECT_EQ(ran, "abc");
}

}  // namespace
}  // namespace somnus
