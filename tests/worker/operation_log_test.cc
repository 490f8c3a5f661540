// A lifecycle call that is sent again is not done again.

#include "worker/operation_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace somnus {
namespace {

bool Never() { return false; }

class OperationLogTest : public testing::Test {
 protected:
  OperationLogTest() { log_.BeginEpoch(1); }

  // Runs an operation whose result is the number of operations done before.
  absl::StatusOr<std::string> Run(uint64_t id, const char* call = "Sleep", int64_t epoch = 1) {
    return log_.Run({epoch, id, call}, Never, [this] { return absl::StrCat("result ", done_++); });
  }

  OperationLog log_;
  int done_ = 0;
};

TEST_F(OperationLogTest, TheSameIdReturnsTheSameResult) {
  EXPECT_EQ(*Run(7), "result 0");
  EXPECT_EQ(*Run(8), "result 1");
  EXPECT_EQ(*Run(7), "result 0");
  EXPECT_EQ(done_, 2);
}

TEST_F(OperationLogTest, AnErrorIsARecordToo) {
  const auto fail = [this]() -> absl::StatusOr<std::string> {
    ++done_;
    return absl::ResourceExhaustedError("no memory");
  };
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(log_.Run({1, 7, "WakeUp"}, Never, fail).status(), absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(done_, 1);
  const auto fail_at_length = []() -> absl::StatusOr<std::string> {
    return absl::InternalError(std::string(1 << 20, 'x'));
  };
  EXPECT_EQ(log_.Run({1, 8, "WakeUp"}, Never, fail_at_length).status().message().size(),
            OperationLog::kMaxMessageBytes);
}

TEST_F(OperationLogTest, ARepeatedCallWaitsForTheFirst) {
  absl::Notification started, go_on;
  std::thread first([&] {
    const auto result = log_.Run({1, 7, "LoadModel"}, Never, [&]() -> absl::StatusOr<std::string> {
      started.Notify();
      go_on.WaitForNotification();
      return "loaded";
    });
    EXPECT_EQ(*result, "loaded");
  });
  started.WaitForNotification();
  std::atomic<int> asked{0};
  std::thread second([&] {
    const auto asks = [&] {
      ++asked;
      return false;
    };
    const auto result = log_.Run({1, 7, "LoadModel"}, asks, []() -> absl::StatusOr<std::string> {
      ADD_FAILURE() << "done twice";
      return "";
    });
    EXPECT_EQ(*result, "loaded");
  });
  while (asked == 0) std::this_thread::yield();  // the second caller waits
  EXPECT_TRUE(
      absl::IsCancelled(log_.Run(
                                {1, 7, "LoadModel"}, [] { return true; }, [] { return std::string(); })
                            .status()));
  go_on.Notify();
  first.join();
  second.join();
}

TEST_F(OperationLogTest, BadIdsAreRefusedAndNotDone) {
  EXPECT_EQ(Run(0).status(), absl::InvalidArgumentError("operation_id: must not be 0"));
  ASSERT_TRUE(Run(7, "Sleep").ok());
  EXPECT_EQ(Run(7, "WakeUp").status(),
            absl::InvalidArgumentError("operation_id: 7 is of a Sleep, not of a WakeUp"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Run(8, "Sleep", 2).status()));
  EXPECT_EQ(done_, 1);
}

TEST_F(OperationLogTest, ANewEpochForgets) {
  ASSERT_TRUE(Run(7).ok());
  log_.BeginEpoch(1);  // the same epoch
  EXPECT_EQ(*Run(7), "result 0");
  log_.BeginEpoch(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Run(7).status()));
  EXPECT_EQ(*Run(7, "Sleep", 2), "result 1");
}

TEST_F(OperationLogTest, TheOldestRecordsGo) {
  for (uint64_t id = 100; id > 100 - OperationLog::kMaxOperations; --id) ASSERT_TRUE(Run(id).ok());
  EXPECT_EQ(*Run(100), "result 0");
  ASSERT_TRUE(Run(1).ok());
  EXPECT_EQ(*Run(99), "result 1");
  EXPECT_EQ(*Run(100), absl::StrCat("result ", OperationLog::kMaxOperations + 1)) << "it was forgotten";
}

TEST_F(OperationLogTest, OperationsUnderWayAreKeptAndBounded) {
  absl::Notification go_on;
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= OperationLog::kMaxOperations; ++id) {
    threads.emplace_back([&, id] {
      const auto result = log_.Run({1, id, "Sleep"}, Never, [&]() -> absl::StatusOr<std::string> {
        ++started;
        go_on.WaitForNotification();
        return "";
      });
      EXPECT_TRUE(result.ok());
    });
  }
  while (started < OperationLog::kMaxOperations) std::this_thread::yield();
  EXPECT_TRUE(absl::IsResourceExhausted(Run(100).status()));
  go_on.Notify();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Run(100).ok());
}

}  // namespace
}  // namespace somnus
