// Deadlines, and requests that are refused because the first token would come too late.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr MonotonicTime At(int64_t seconds) { return absl::Seconds(seconds); }

class ExpiryObserver : public PassingObserver {
 public:
  ExpiryObserver() : PassingObserver(nullptr) {}
  void OnRequestScheduled(const EngineRequest&) override { ++num_scheduled; }
  void OnRequestExpired(ExpiryCause cause) override {
    absl::MutexLock lock(&mu_);
    causes_.push_back(cause);
  }
  std::vector<ExpiryCause> causes() const {
    absl::MutexLock lock(&mu_);
    return causes_;
  }
  std::atomic<int> num_scheduled{0};

 private:
  mutable absl::Mutex mu_;
  std::vector<ExpiryCause> causes_ ABSL_GUARDED_BY(mu_);
};

// The monotonic clock stands still, except for Pass, or each look takes 50 ms.
class EngineExpiryTest : public ::testing::TestWithParam<bool> {
 protected:
  EngineExpiryTest() : options_(SmallEngine(GetParam())), executor_(SmallWorker(options_)) {
    options_.monotonic_now = [this] { return absl::Milliseconds(looks_ ? now_ms_ += 50 : now_ms_.load()); };
    executor_.SetRecovery(FakeExecutor::Recovery::kWaits);
  }
  ~EngineExpiryTest() override { executor_.Hold(false); }

  void Start() { engine_ = std::make_unique<EngineLoop>(options_, &executor_, &observer_); }
  Ticket Submit(Ticket ticket) {
    const absl::Status status = engine_->Submit(ticket.request);
    EXPECT_TRUE(status.ok()) << status;
    return ticket;
  }
  static Ticket WithDeadline(Ticket ticket, MonotonicTime deadline) {
    ticket.request.deadline = deadline;
    return ticket;
  }
  static Ticket WithFirstTokenBy(Ticket ticket, MonotonicTime time) {
    ticket.request.first_token_by = time;
    return ticket;
  }
  MonotonicTime Now() const { return absl::Milliseconds(now_ms_.load()); }
  // Time passes, and a command makes the loop look at the time.
  void Pass(int64_t seconds) {
    now_ms_ += 1000 * seconds;
    ASSERT_TRUE(engine_->Resume().ok());
  }
  // A step with the first request is under way.
  void AwaitScheduled() {
    while (observer_.num_scheduled == 0) std::this_thread::yield();
  }
  void ExpectServed(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  void ExpectExpired(const Ticket& ticket, const std::vector<ExpiryCause>& causes) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
    EXPECT_EQ(ticket.sink->error(), ExpiryError(causes.back()));
    EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
    EXPECT_EQ(observer_.causes(), causes);
  }

  EngineOptions options_;
  std::atomic<int64_t> now_ms_{1'000'000};
  std::atomic<bool> looks_{false};
  FakeExecutor executor_;
  ExpiryObserver observer_;
  std::unique_ptr<EngineLoop> engine_;
};
INSTANTIATE_TEST_SUITE_P(OffAndOn, EngineExpiryTest, ::testing::Bool());

TEST_P(EngineExpiryTest, ARunningRequestEndsAtItsDeadlineAndItsNeighbourGoesOn) {
  executor_.Hold(true);
  Start();
  const Ticket expires = Submit(WithDeadline(MakeTicket("expires", 10, 190), At(1060)));
  AwaitScheduled();
  const Ticket neighbour = Submit(MakeTicket("neighbour", 10, 100, 500));
  now_ms_ += 60'000;
  executor_.Hold(false);
  ExpectExpired(expires, {ExpiryCause::kDeadlineRunning});
  EXPECT_LT(expires.sink->tokens().size(), 190u);
  std::vector<int32_t> beginning = Reference(expires);
  beginning.resize(expires.sink->tokens().size());
  EXPECT_EQ(expires.sink->tokens(), beginning);
  ExpectServed(neighbour);
  EXPECT_EQ(engine_->Stats().used_blocks, 0);
  EXPECT_TRUE(engine_->Submit(MakeTicket("expires", 5, 5).request).ok()) << "the id is free again";
}

TEST_P(EngineExpiryTest, TimeThatPassesAsleepCounts) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  const Ticket expires = Submit(WithDeadline(MakeTicket("expires", 5, 5), At(1010)));
  const Ticket refused = Submit(WithFirstTokenBy(MakeTicket("refused", 5, 5), At(1010)));
  const Ticket patient = Submit(WithDeadline(MakeTicket("patient", 5, 5), At(1020)));
  Pass(10);
  ASSERT_TRUE(refused.sink->Wait());
  EXPECT_EQ(refused.sink->error(), ExpiryError(ExpiryCause::kTtftPassed));
  ASSERT_TRUE(expires.sink->Wait());
  EXPECT_EQ(expires.sink->error(), ExpiryError(ExpiryCause::kDeadlineWaiting));
  EXPECT_FALSE(patient.sink->done());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServed(patient);
}

TEST_P(EngineExpiryTest, TimeThatPassesInARecoveryCounts) {
  executor_.Hold(true);
  Start();
  const Ticket expires = Submit(WithDeadline(MakeTicket("expires", 10, 150), At(1010)));
  AwaitScheduled();
  const Ticket patient = Submit(MakeTicket("patient", 10, 150, 500));
  executor_.Lose(absl::UnavailableError("rank 0 was killed"));
  while (engine_->state() != EngineState::kRecovering) std::this_thread::yield();
  now_ms_ += 10'000;
  executor_.Hold(false);
  executor_.FinishRecovery(absl::OkStatus());
  ExpectExpired(expires, {ExpiryCause::kDeadlineRunning});
  ExpectServed(patient);
}

TEST_P(EngineExpiryTest, WhatIsHeldBackExpires) {
  executor_.SetStepTime(absl::Milliseconds(10));
  Start();
  const Ticket runs = Submit(MakeTicket("runs", 10, 180));
  ASSERT_TRUE(runs.sink->WaitForTokens(1));
  std::thread waits([&] { EXPECT_TRUE(engine_->Pause({.mode = SleepMode::kWait}).ok()); });
  while (engine_->state() != EngineState::kPausing) std::this_thread::yield();
  const Ticket expires = Submit(WithDeadline(MakeTicket("expires", 5, 5, 300), At(1010)));
  now_ms_ += 10'000;
  ExpectExpired(expires, {ExpiryCause::kDeadlineWaiting});
  waits.join();
  ExpectServed(runs);
}

// The clock is set right by years, both ways, at each look.
TEST_P(EngineExpiryTest, TheWallClockSaysNothing) {
  std::atomic<int> looks{0};
  options_.now = [&] { return absl::FromUnixSeconds(1'700'000'000) + ++looks % 3 * absl::Hours(100'000); };
  Start();
  ExpectServed(Submit(WithDeadline(WithFirstTokenBy(MakeTicket("a", 10, 50), At(1001)), At(1001))));
  EXPECT_GT(looks, 0);
  engine_.reset();
}

TEST_P(EngineExpiryTest, ADeadlineThatIsOverEndsTheRequestBeforeAStep) {
  Start();
  const Ticket late = Submit(WithDeadline(MakeTicket("late", 5, 5), At(1000)));
  ExpectExpired(late, {ExpiryCause::kDeadlineWaiting});
  EXPECT_EQ(executor_.num_computed_tokens(), 0);
}

class HopelessTest : public EngineExpiryTest {
 protected:
  // Three steps of 16 tokens, and the rest; each step takes at least a look.
  void Measure() {
    looks_ = true;
    ExpectServed(Submit(MakeTicket("measure", 50, 1, 300)));
    ASSERT_TRUE(engine_->Resume().ok());
    looks_ = false;
  }
};
INSTANTIATE_TEST_SUITE_P(OffAndOn, HopelessTest, ::testing::Bool());

TEST_P(HopelessTest, ARequestWhoseFirstTokenCannotComeInTimeIsRefusedAtOnce) {
  Start();
  Measure();
  executor_.Hold(true);
  const int64_t computed = executor_.num_computed_tokens();
  // Ten steps, of at least 50 ms each.
  const Ticket hopeless =
      Submit(WithFirstTokenBy(MakeTicket("hopeless", 160, 2), Now() + absl::Milliseconds(200)));
  ExpectExpired(hopeless, {ExpiryCause::kTtftEstimate});
  EXPECT_TRUE(absl::IsUnavailable(hopeless.sink->error()));
  EXPECT_EQ(executor_.num_computed_tokens(), computed);
  executor_.Hold(false);
  ExpectServed(Submit(WithFirstTokenBy(MakeTicket("may be", 160, 2), Now() + absl::Hours(1))));
}

TEST_P(HopelessTest, ChoicesShareTheFateOfTheFirst) {
  Start();
  Measure();
  std::vector<Ticket> choices;
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 3; ++i) {
    choices.push_back(
        WithFirstTokenBy(MakeTicket(std::to_string(i), 160, 2), Now() + absl::Milliseconds(200)));
    if (i > 0) choices.back().request.fork_of = "0";
    requests.push_back(choices.back().request);
  }
  ASSERT_TRUE(engine_->SubmitAll(requests).ok());
  for (const Ticket& choice : choices) {
    ASSERT_TRUE(choice.sink->Wait());
    EXPECT_EQ(choice.sink->error(), ExpiryError(ExpiryCause::kTtftEstimate));
  }
  EXPECT_EQ(engine_->Stats().num_waiting, 0);
}

}  // namespace
}  // namespace somnus
