#include "coordinator/executor/transition_speeds.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

constexpr int64_t kGb = 1000 * 1000 * 1000;
using Kind = MovementKind;

ExecutorOptions Options() {
  ExecutorOptions options{.measured_timeout = absl::Seconds(10)};
  return options;
}

class TransitionSpeedsTest : public testing::Test {
 protected:
  absl::Duration Timeout(const std::vector<TransitionSpeeds::Movement>& movements) const {
    return Microseconds(speeds_.Timeout(movements, options_));
  }
  absl::Duration ReadTimeout() const { return Microseconds(speeds_.ReadTimeout(options_)); }
  // Rounded: speeds are floating-point numbers.
  static absl::Duration Microseconds(absl::Duration time) {
    return absl::Trunc(time + absl::Nanoseconds(500), absl::Microseconds(1));
  }

  // Without measurements a minute, at 100 MB/s, and two hours for a read.
  const ExecutorOptions options_ = Options();
  TransitionSpeeds speeds_;
};

TEST_F(TransitionSpeedsTest, WithoutMeasurementsTheConstantsCount) {
  EXPECT_EQ(Timeout({{Kind::kBackup, 0}}), absl::Minutes(1));
  EXPECT_EQ(Timeout({{Kind::kBackup, kGb}}), absl::Seconds(70));
  EXPECT_EQ(Timeout({{Kind::kMap, kGb}, {Kind::kRestore, kGb}}), absl::Seconds(80));
  EXPECT_EQ(Timeout({{Kind::kMap, kGb}, {Kind::kRead, kGb}}), absl::Seconds(70) + absl::Hours(2));
  EXPECT_EQ(ReadTimeout(), absl::Hours(2));
}

TEST_F(TransitionSpeedsTest, TenTimesWhatTheSlowestRankTook) {
  speeds_.Note(Kind::kRelease, {{2 * kGb, 0.1}, {2 * kGb, 0.4}, {kGb, 0.1}});  // 20, 5 and 10 GB/s
  EXPECT_EQ(Timeout({{Kind::kRelease, 5 * kGb}}), absl::Seconds(10 + 10));
  EXPECT_EQ(Timeout({{Kind::kBackup, 5 * kGb}}), absl::Minutes(1) + absl::Seconds(50)) << "another kind";
  speeds_.Note(Kind::kRelease, {{kGb, 0.1}});
  EXPECT_EQ(Timeout({{Kind::kRelease, 5 * kGb}}), absl::Seconds(10 + 5)) << "the last one counts";
}

TEST_F(TransitionSpeedsTest, NeverMoreThanTheConstants) {
  speeds_.Note(Kind::kRelease, {{kGb, 1000}});
  EXPECT_EQ(Timeout({{Kind::kRelease, kGb}}), absl::Seconds(70));
  EXPECT_EQ(Timeout({{Kind::kRelease, 1}}), absl::Seconds(10) + absl::Microseconds(10))
      << "nor less than the floor";
}

TEST_F(TransitionSpeedsTest, WhatIsDoneAtOnceSaysNothing) {
  speeds_.Note(Kind::kRelease, {{kGb, 0.009}, {0, 1}});
  EXPECT_EQ(Timeout({{Kind::kRelease, kGb}}), absl::Seconds(70));
}

TEST_F(TransitionSpeedsTest, AReadHasTheTimeOfASlowDisk) {
  speeds_.Note(Kind::kRead, {{4 * kGb, 2}});  // 2 GB/s: out of the page cache
  EXPECT_EQ(Timeout({{Kind::kRead, 4 * kGb}}), absl::Seconds(10 + 40));
  EXPECT_EQ(Timeout({{Kind::kRead, 0}}), absl::Seconds(10 + 40)) << "as much as the last time";
  EXPECT_EQ(ReadTimeout(), absl::Seconds(10 + 40));
  speeds_.Note(Kind::kRead, {{4 * kGb, 8}});  // 500 MB/s
  EXPECT_EQ(Timeout({{Kind::kRead, 4 * kGb}}), absl::Seconds(10 + 80));
}

TEST_F(TransitionSpeedsTest, ALoadSaysHowFastMemoryIsMapped) {
  speeds_.Note(Kind::kRead, {{kGb, 2}});
  EXPECT_EQ(Timeout({{Kind::kMap, 3 * kGb}, {Kind::kRead, kGb}}), absl::Seconds(10 + 60 + 20));
  speeds_.Note(Kind::kMap, {{3 * kGb, 0.3}});
  EXPECT_EQ(Timeout({{Kind::kMap, 3 * kGb}, {Kind::kRead, kGb}}), absl::Seconds(10 + 3 + 20));
}

TEST_F(TransitionSpeedsTest, WhatIsNotKnownHasItsConstants) {
  speeds_.Note(Kind::kMap, {{kGb, 0.1}});
  EXPECT_EQ(Timeout({{Kind::kMap, kGb}, {Kind::kRestore, kGb}}), absl::Seconds(60 + 1 + 10));
  EXPECT_EQ(Timeout({{Kind::kMap, kGb}, {Kind::kRestore, 0}}), absl::Seconds(10 + 1));
  EXPECT_EQ(Timeout({{Kind::kMap, kGb}, {Kind::kRead, kGb}}), absl::Seconds(60 + 1) + absl::Hours(2));
}

}  // namespace
}  // namespace somnus
