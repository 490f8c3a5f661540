#include "base/heartbeat.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace somnus {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() { all_.Watch(kLimit); }

  std::string Late() const { return std::string(all_.Check().message()); }

  MonotonicTime now_ = absl::Hours(5);
  Heartbeats all_{[this] { return now_; }};
};

TEST_F(HeartbeatTest, ALoopThatTakesTurnsLives) {
  const Heartbeat loop("", "engine loop", nullptr, &all_);
  for (int i = 0; i < 10; ++i) {
    now_ += kLimit;
    EXPECT_TRUE(all_.Check().ok()) << Late();
    loop.Beat();
  }
  EXPECT_EQ(all_.LongestSilence(), absl::ZeroDuration());
}

TEST_F(HeartbeatTest, ALoopThatHangsIsNamedUntilItGoesOn) {
  const Heartbeat other("", "residency", nullptr, &all_);
  const Heartbeat loop("llama: ", "engine loop", nullptr, &all_);
  now_ += absl::Seconds(61);
  other.Beat();
  EXPECT_EQ(all_.Check().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Late().rfind("llama: engine loop: no sign of life since 20", 0), 0u) << Late();
  EXPECT_NE(Late().find("Z, for 1m1s (the limit is 1m); if that lasts, only a restart"), std::string::npos)
      << Late();
  EXPECT_EQ(all_.LongestSilence(), absl::Seconds(61));
  loop.Beat();
  EXPECT_TRUE(all_.Check().ok()) << Late();
}

TEST_F(HeartbeatTest, TheOneThatHasBeenSilentForLongestIsNamed) {
  const Heartbeat first("", "first", nullptr, &all_);
  now_ += absl::Seconds(1);
  const Heartbeat second("", "second", nullptr, &all_);
  now_ += kLimit + absl::Seconds(1);
  EXPECT_EQ(Late().rfind("first: ", 0), 0u) << Late();
  first.Beat();
  EXPECT_EQ(Late().rfind("second: ", 0), 0u) << Late();
}

TEST_F(HeartbeatTest, AWaitForAPeerHasItsOwnBoundBesides) {
  const Heartbeat loop("", "engine loop", nullptr, &all_);
  {
    const Heartbeat::Wait wait(absl::Minutes(5));
    now_ += absl::Minutes(6);
    EXPECT_TRUE(all_.Check().ok()) << Late();
    EXPECT_EQ(all_.LongestSilence(), absl::Minutes(1));
    now_ += absl::Seconds(1);
    EXPECT_FALSE(all_.Check().ok()) << "nothing has ended the wait";
  }
  EXPECT_TRUE(all_.Check().ok()) << Late();
  now_ += absl::Seconds(61);
  EXPECT_FALSE(all_.Check().ok()) << "the bound was the wait's alone";
}

TEST_F(HeartbeatTest, AWaitWithoutABoundHoldsATurnWithOne) {
  const Heartbeat loop("", "recovery", nullptr, &all_);
  const Heartbeat::Wait rest(absl::InfiniteDuration());
  now_ += absl::Hours(1000);
  EXPECT_TRUE(all_.Check().ok()) << Late();
  {
    const Heartbeat::Wait turn(absl::ZeroDuration());
    EXPECT_TRUE(all_.Check().ok()) << Late();
    now_ += absl::Seconds(61);
    EXPECT_FALSE(all_.Check().ok());
  }
  now_ += absl::Hours(1000);
  EXPECT_TRUE(all_.Check().ok()) << Late();
}

TEST_F(HeartbeatTest, APoolLivesWhileOneOfItsThreadsDoes) {
  const int pool = 0;
  const Heartbeat first("", "output threads", &pool, &all_);
  const Heartbeat second("", "output threads", &pool, &all_);
  now_ += absl::Seconds(61);
  first.Beat();
  EXPECT_TRUE(all_.Check().ok()) << Late();
  now_ += absl::Seconds(61);
  EXPECT_EQ(Late().rfind("output threads: ", 0), 0u) << Late();
  second.Beat();
  EXPECT_TRUE(all_.Check().ok()) << Late();
}

TEST_F(HeartbeatTest, ALoopThatHasEndedIsNotMissed) {
  std::thread([this] { const Heartbeat loop("", "engine loop", nullptr, &all_); }).join();
  now_ += absl::Hours(1);
  EXPECT_TRUE(all_.Check().ok()) << Late();
}

TEST_F(HeartbeatTest, AThreadHasTheHeartbeatThatBeganLast) {
  EXPECT_EQ(Heartbeat::OfThread(), nullptr);
  const Heartbeat outer("", "outer", nullptr, &all_);
  {
    const Heartbeat inner("", "inner", nullptr, &all_);
    EXPECT_EQ(Heartbeat::OfThread(), &inner);
    std::thread([] { EXPECT_EQ(Heartbeat::OfThread(), nullptr); }).join();
  }
  EXPECT_EQ(Heartbeat::OfThread(), &outer);
}

TEST_F(HeartbeatTest, WithoutALimitNobodyIsWatched) {
  Heartbeats off([this] { return now_; });
  const Heartbeat loop("", "engine loop", nullptr, &off);
  EXPECT_EQ(Heartbeat::OfThread(), nullptr);
  now_ += absl::Hours(1);
  EXPECT_TRUE(off.Check().ok());
  EXPECT_EQ(off.LongestSilence(), absl::ZeroDuration());
}

// A loop that waits for work gives signs meanwhile, and the wait ends with the condition.
TEST(WaitBeatingTest, GivesSignsWhileItWaits) {
  std::atomic<int> looks{0};
  Heartbeats all([&looks] { return absl::Nanoseconds(++looks); });
  all.Watch(absl::Milliseconds(4));  // a tick is a quarter of the limit
  std::mutex mu;
  std::condition_variable changed;
  bool done = false;
  std::thread waiter([&] {
    const Heartbeat loop("", "engine loop", nullptr, &all);
    std::unique_lock<std::mutex> lock(mu);
    WaitBeating(&changed, &lock, absl::InfiniteDuration(), [&] { return done; });
    EXPECT_TRUE(done);
    done = false;
    WaitBeating(&changed, &lock, absl::Milliseconds(3), [&] { return done; });
    EXPECT_FALSE(done);
  });
  while (looks < 10) std::this_thread::yield();
  {
    const std::lock_guard<std::mutex> lock(mu);
    done = true;
  }
  changed.notify_one();
  waiter.join();
}

}  // namespace
}  // namespace somnus
