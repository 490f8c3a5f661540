// How long requests wait for weights that only a reload or an update brings.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class StaleWeightsTest : public ::testing::Test {
 protected:
  StaleWeightsTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    options_.weights.path = "old";
    options_.stale_weights_timeout = kTimeout;
    options_.monotonic_now = [this] {
      ++num_looks_;
      return absl::Seconds(now_s_.load());
    };
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    engine_ = std::make_unique<EngineLoop>(options_, &executor_, nullptr);
  }

  Ticket Submit(const std::string& id) {
    Ticket ticket = MakeTicket(id, 5, 5);
    const absl::Status status = engine_->Submit(ticket.request);
    EXPECT_TRUE(status.ok()) << status;
    return ticket;
  }
  // Time passes, and the loop looks at the clock.
  void Pass(absl::Duration time) {
    now_s_ += absl::ToInt64Seconds(time);
    EXPECT_TRUE(engine_->Resume().ok());
    EXPECT_TRUE(engine_->Resume().ok()) << "what the first one has led to is done";
  }
  // As Pass, while a change is under way, for which Resume would wait.
  void PassInChange(absl::Duration time) {
    now_s_ += absl::ToInt64Seconds(time);
    const Ticket gone = Submit("gone");
    engine_->Abort("gone");
    ASSERT_TRUE(gone.sink->Wait());
    EXPECT_EQ(gone.sink->reason(), FinishReason::kAbort);
  }
  void FailReload() {
    executor_.SetNextWeightsOutcome({.status = absl::InternalError("rank 1: the file is too short")});
    EXPECT_FALSE(engine_->ReloadWeights({}).ok());
  }
  void ExpectServed(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  void ExpectRefuses() {
    const absl::Status refused = absl::UnavailableError(kStaleForTooLong);
    EXPECT_EQ(engine_->Submit(MakeTicket("refused", 5, 5).request), refused);
    EXPECT_EQ(What(engine_->Health()), kStaleForTooLong);
  }

  std::atomic<int64_t> now_s_{0};
  std::atomic<int64_t> num_looks_{0};  // at the time
  EngineOptions options_;
  FakeExecutor executor_;
  std::unique_ptr<EngineLoop> engine_;
};

TEST_F(StaleWeightsTest, AfterAFailedChangeRequestsWaitForTheTimeout) {
  FailReload();
  const Ticket waiting = Submit("waiting");
  Pass(kTimeout - absl::Seconds(1));
  EXPECT_FALSE(waiting.sink->done());
  Submit("later");
  Pass(absl::Seconds(1));
  ASSERT_TRUE(waiting.sink->Wait());
  EXPECT_EQ(waiting.sink->reason(), FinishReason::kError);
  EXPECT_EQ(waiting.sink->error(), absl::UnavailableError(kStaleForTooLong));
  ExpectRefuses();
  EXPECT_EQ(engine_->Stats().num_waiting, 0);
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  EXPECT_TRUE(engine_->Health().ok());
  ExpectServed(Submit("after"));
}

TEST_F(StaleWeightsTest, RequestsWaitForAChangeThatIsUnderWay) {
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  const Ticket waiting = Submit("waiting");
  PassInChange(100 * kTimeout);
  EXPECT_FALSE(waiting.sink->done());
  ASSERT_TRUE((*update)->Finish().ok());
  ExpectServed(waiting);
}

TEST_F(StaleWeightsTest, ANewChangeAdmitsRequestsAgain) {
  FailReload();
  Pass(kTimeout);
  ExpectRefuses();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  const Ticket waiting = Submit("waiting");
  PassInChange(100 * kTimeout);
  ASSERT_TRUE((*update)->Finish().ok());
  ExpectServed(waiting);
}

TEST_F(StaleWeightsTest, TheLoopRestsWhileAChangeIsUnderWay) {
  FailReload();
  Pass(kTimeout);
  ExpectRefuses();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  const int64_t before = num_looks_;
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_LT(num_looks_ - before, 100) << "it waits for the next call, and for nothing that has passed";
  ASSERT_TRUE((*update)->Finish().ok());
}

TEST_F(StaleWeightsTest, EveryFailedChangeBeginsTheTimeoutAgain) {
  FailReload();
  Pass(kTimeout - absl::Seconds(1));
  FailReload();
  const Ticket waiting = Submit("waiting");
  Pass(kTimeout - absl::Seconds(1));
  EXPECT_FALSE(waiting.sink->done());
  Pass(absl::Seconds(1));
  EXPECT_TRUE(waiting.sink->Wait());
}

TEST_F(StaleWeightsTest, AnOperatorWhoWakesWithoutWeightsHasAllTime) {
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine_->WakeUp({}, /*load_weights=*/false).ok());
  const Ticket waiting = Submit("waiting");
  Pass(100 * kTimeout);
  EXPECT_FALSE(waiting.sink->done());
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServed(waiting);
}

TEST_F(StaleWeightsTest, ALostWorkerBeginsTheTimeout) {
  Weights updated = options_.weights;
  updated.overwritten = true;
  Residency stale;
  stale.SetWeightsStale(true);
  executor_.SetRecovered({stale, updated});
  executor_.Lose(absl::UnavailableError("rank 0 was killed"));
  while (engine_->Stats().num_recoveries == 0) std::this_thread::yield();
  const Ticket waiting = Submit("waiting");
  Pass(kTimeout - absl::Seconds(1));
  EXPECT_FALSE(waiting.sink->done());
  Pass(absl::Seconds(1));
  ASSERT_TRUE(waiting.sink->Wait());
  ExpectRefuses();
}

}  // namespace
}  // namespace somnus
