#include "base/monotonic.h"

#include <gtest/gtest.h>

#include <thread>

namespace somnus {
namespace {

TEST(MonotonicTest, TheClockNeverGoesBack) {
  MonotonicTime last = MonotonicNow();
  for (int i = 0; i < 1000; ++i) {
    const MonotonicTime now = MonotonicNow();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(StopSignalTest, AWaitLastsAsLongAsAskedUnlessStopped) {
  StopSignal stop;
  const MonotonicTime start = MonotonicNow();
  EXPECT_FALSE(stop.WaitFor(absl::Milliseconds(5)));
  EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(5));
  EXPECT_FALSE(stop.WaitFor(-absl::Hours(1)));
  EXPECT_FALSE(stop.stopped());
}

TEST(StopSignalTest, StopEndsEveryWaitNowAndLater) {
  StopSignal stop;
  std::thread first([&] { EXPECT_TRUE(stop.WaitFor(absl::InfiniteDuration())); });
  std::thread second([&] { EXPECT_TRUE(stop.WaitFor(absl::Hours(1))); });
  stop.Stop();
  first.join();
  second.join();
  EXPECT_TRUE(stop.stopped());
  EXPECT_TRUE(stop.WaitFor(absl::InfiniteDuration()));
}

}  // namespace
}  // namespace somnus
