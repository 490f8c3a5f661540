// A loop that calls workers may wait for as long as the call may take, and hangs beyond that.

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/heartbeat.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

TEST_F(GroupEpochTest, ACallAnnouncesItsDeadlineToWhoWatchesTheLoop) {
  Connect(1);
  std::atomic<int64_t> now_s{1000};
  Heartbeats all([&] { return absl::Seconds(now_s.load()); });
  all.Watch(absl::Seconds(60));
  workers_[0]->HoldCalls("prepare sleep 1");
  std::thread look([&] {
    const auto calls = [this] { return workers_[0]->calls(); };
    for (auto seen = calls(); std::find(seen.begin(), seen.end(), "prepare sleep 1") == seen.end();
         seen = calls()) {
      std::this_thread::yield();
    }
    now_s += absl::ToInt64Seconds(options_.transition_timeout) + 60;
    EXPECT_TRUE(all.Check().ok()) << all.Check();
    now_s += 5;  // the time for the bytes, too
    EXPECT_FALSE(all.Check().ok());
    workers_[0]->ReleaseCalls();
  });
  const Heartbeat heartbeat("", "recovery", nullptr, &all);
  EXPECT_TRUE(Sleep(1).ok());
  look.join();
  EXPECT_TRUE(all.Check().ok());
}

}  // namespace
}  // namespace somnus
