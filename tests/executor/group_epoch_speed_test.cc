// Deadlines of sleeps and wake-ups, from the times that the group was seen to take.

#include <atomic>
#include <memory>
#include <thread>

#include "coordinator/executor/transition_speeds.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

// A timeout that ends, and that calls which nobody holds keep on the busiest machine.
constexpr absl::Duration kShort = absl::Seconds(1);

class GroupSpeedTest : public GroupEpochTest {
 protected:
  std::string Health() { return std::string(epoch_->Health().message()); }
  // A load takes so long by the group's clock, which Connect must have got before. After the first load the
  // clock goes on by itself, so that calls have deadlines.
  void UseClock() {
    options_.now = [this] {
      const MonotonicTime loaded = absl::Nanoseconds(loaded_ns_.load());
      const bool goes_on = loaded > absl::ZeroDuration();
      return absl::Microseconds(clock_us_.load()) +
             (goes_on ? MonotonicNow() - loaded : absl::ZeroDuration());
    };
  }
  void LoadWithin(int world_size, absl::Duration time) {
    const int64_t end = clock_us_ + absl::ToInt64Microseconds(time);
    const auto loaded = epoch_->LoadModel(All(world_size), v1::LoadModelRequest(),
                                          [&](int64_t, int64_t) { clock_us_ = end; });
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    loaded_ns_ = absl::ToInt64Nanoseconds(MonotonicNow());
  }

  std::atomic<int64_t> clock_us_{0};
  std::atomic<int64_t> loaded_ns_{0};
};

// Without the measurement the wake-up would have the two hours of a load.
TEST_F(GroupSpeedTest, ARankThatHangsWhereOneWithItsSpeedHadReadItsWeightsIsLost) {
  UseClock();
  options_.measured_timeout = kShort;
  Connect(2);
  LoadWithin(2, kShort / 50);
  ASSERT_TRUE(Sleep(2).ok());
  committed_ = false;
  workers_[1]->HoldCalls();
  EXPECT_TRUE(absl::IsDeadlineExceeded(WakeUp().status()));
  EXPECT_NE(Health().find("rank 1 (pid 71)"), std::string::npos) << Health();
  EXPECT_FALSE(committed_);
  EXPECT_TRUE(epoch_->reads_weights()) << "for all that is known";
  workers_[1]->ReleaseCalls();
}

TEST_F(GroupSpeedTest, ARankThatReadsFiveTimesAsSlowlyAsItsLoadIsNotLost) {
  UseClock();
  options_.measured_timeout = kShort / 10;
  Connect(2);
  LoadWithin(2, kShort);
  ASSERT_TRUE(Sleep(2, {"weights"}).ok());
  workers_[1]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(5 * kShort);
    workers_[1]->ReleaseCalls();
  });
  const absl::Status woken = WakeUp({"weights"}).status();
  EXPECT_TRUE(woken.ok()) << woken;
  release.join();
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupSpeedTest, ARankThatHangsInACommitIsLostByTheSpeedOfTheLastOne) {
  options_.transition_timeout = absl::Hours(1);
  options_.measured_timeout = kShort;
  Connect(2);
  ASSERT_TRUE(Sleep(1).ok());
  ASSERT_TRUE(WakeUp().ok());
  workers_[1]->HoldCalls("commit");
  EXPECT_TRUE(absl::IsDeadlineExceeded(Sleep(1).status()));
  EXPECT_NE(Health().find("not every rank confirms it: rank 1 (pid 71)"), std::string::npos) << Health();
  EXPECT_TRUE(committed_);
  workers_[1]->ReleaseCalls();
}

// As a group's epochs do.
TEST_F(GroupSpeedTest, SpeedsOutliveAnEpoch) {
  UseClock();
  options_.speeds = std::make_shared<TransitionSpeeds>();
  options_.measured_timeout = kShort;
  Connect(1);
  EXPECT_EQ(options_.speeds->ReadTimeout(options_), options_.load_timeout);
  LoadWithin(1, absl::Seconds(2));
  EXPECT_EQ(options_.speeds->ReadTimeout(options_), kShort + absl::Seconds(20));
  const std::vector<WorkerLink> links = epoch_->workers();
  BeginEpoch(2, links);
  v1::LoadModelRequest reads_nothing;
  reads_nothing.set_load_format(v1::LOAD_FORMAT_NONE);
  ASSERT_TRUE(epoch_->LoadModel(All(1), reads_nothing, [&](int64_t, int64_t) { clock_us_ += 1000000; }).ok());
  EXPECT_EQ(options_.speeds->ReadTimeout(options_), kShort + absl::Seconds(20));
}

}  // namespace
}  // namespace somnus
