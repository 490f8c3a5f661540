#include "coordinator/structured/work_meter.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace somnus {
namespace {

#define SKIP_WITH_SANITIZERS() \
  if (!kWorkMetersThrow) GTEST_SKIP() << "sanitizers keep their own operator new"

TEST(WorkMeter, AllocationsThatAreTooLargeThrow) {
  SKIP_WITH_SANITIZERS();
  WorkMeter meter({1 << 20, absl::InfiniteDuration()});
  std::vector<std::vector<char>> pieces;
  EXPECT_THROW(
      {
        while (true) pieces.emplace_back(100'000);
      },
      WorkExceeded);
  EXPECT_EQ(pieces.size(), 10u);
  EXPECT_EQ(meter.End().code(), absl::StatusCode::kResourceExhausted);
}

TEST(WorkMeter, FreedMemoryDoesNotCount) {
  SKIP_WITH_SANITIZERS();
  WorkMeter meter({1 << 20, absl::InfiniteDuration()});
  for (int i = 0; i < 100; ++i) std::vector<char>(100'000).swap(*std::make_unique<std::vector<char>>());
  EXPECT_TRUE(meter.End().ok());
  EXPECT_LT(meter.allocated(), 1000);
}

TEST(WorkMeter, StringsOfTheLibraryCountToo) {
  SKIP_WITH_SANITIZERS();
  WorkMeter meter({1 << 20, absl::InfiniteDuration()});
  std::string text;
  EXPECT_THROW(
      {
        while (true) text += "0123456789";
      },
      WorkExceeded);
}

TEST(WorkMeter, WorkThatAllocatesEndsWhenTheTimeIsOver) {
  SKIP_WITH_SANITIZERS();
  WorkMeter meter({1 << 20, absl::Milliseconds(5)});
  EXPECT_THROW(
      {
        while (true) std::vector<int>(10).push_back(1);
      },
      WorkExceeded);
  EXPECT_EQ(meter.End().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(WorkMeter, AfterAnExceptionThereIsMemoryToCleanUpWith) {
  SKIP_WITH_SANITIZERS();
  WorkMeter meter({1 << 20, absl::InfiniteDuration()});
  EXPECT_THROW(std::vector<char>(2 << 20), WorkExceeded);
  EXPECT_NO_THROW(std::vector<char>(1 << 19));
  EXPECT_FALSE(meter.End().ok());
}

TEST(WorkMeter, OtherThreadsAndTheTimeAfterAreFree) {
  SKIP_WITH_SANITIZERS();
  {
    WorkMeter meter({1 << 20, absl::InfiniteDuration()});
    // The thread's own memory is what the meter sees.
    std::thread([] { std::vector<char> large(4 << 20); }).join();
    EXPECT_TRUE(meter.End().ok());
  }
  EXPECT_EQ(WorkMeter::OfThread(), nullptr);
  EXPECT_NO_THROW(std::vector<char>(4 << 20));
}

TEST(WorkMeter, TheInnermostMeterCounts) {
  SKIP_WITH_SANITIZERS();
  WorkMeter outer({1 << 20, absl::InfiniteDuration()});
  {
    WorkMeter inner({8 << 20, absl::InfiniteDuration()});
    EXPECT_NO_THROW(std::vector<char>(4 << 20));
  }
  EXPECT_EQ(WorkMeter::OfThread(), &outer);
}

}  // namespace
}  // namespace somnus
