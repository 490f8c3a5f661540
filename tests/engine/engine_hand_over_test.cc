// An engine that is a replica: requests that are open when the group is lost or restarted, or when the engine
// fails, are handed over with their progress, and go on at another engine with exactly the same tokens.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Recovery = FakeExecutor::Recovery;

const absl::Status kLoss = absl::UnavailableError("rank 1 (pid 77) was killed by signal 9 (Killed)");

// Two engines. Requests that the first engine hands over are kept until somebody takes them.
class HandOverTest : public ::testing::TestWithParam<bool> {
 protected:
  HandOverTest() : options_(SmallEngine(GetParam())) {
    executor_.SetRecovery(Recovery::kWaits);
    other_executor_.SetRecovery(Recovery::kSucceeds);
    options_.hand_over = [this](std::vector<EngineRequest> requests) {
      absl::MutexLock lock(&mu_);
      ++num_calls_;
      for (EngineRequest& request : requests) handed_over_.push_back(std::move(request));
    };
  }

  std::vector<EngineRequest> Take(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return handed_over_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1)));
    return std::exchange(handed_over_, {});
  }
  void AwaitState(const EngineLoop& engine, EngineState state) {
    while (engine.state() != state) absl::SleepFor(absl::Milliseconds(1));
  }

  EngineOptions options_;
  FakeExecutor executor_{SmallWorker(SmallEngine())}, other_executor_{SmallWorker(SmallEngine())};
  absl::Mutex mu_;
  int num_calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<EngineRequest> handed_over_ ABSL_GUARDED_BY(mu_);
};
INSTANTIATE_TEST_SUITE_P(Overlap, HandOverTest, ::testing::Bool());

TEST_P(HandOverTest, TokensGoOnElsewhereWhereTheyStopped) {
  EngineLoop engine(options_, &executor_, nullptr), other(SmallEngine(GetParam()), &other_executor_, nullptr);
  executor_.FailStep(25, kLoss);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 6; ++i) {  // two requests wait
    tickets.push_back(MakeTicket(std::to_string(i), 5 + i, 60, 100 * i + 1));
    ASSERT_TRUE(engine.Submit(tickets[i].request).ok());
  }
  for (EngineRequest& request : Take(6)) ASSERT_TRUE(other.Offer(&request));
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
  }
  EXPECT_EQ(engine.state(), EngineState::kRecovering);
  EXPECT_EQ(engine.Stats().num_waiting, 0);
  EXPECT_EQ(engine.Stats().generation_tokens + other.Stats().generation_tokens, 6 * 60);
  EXPECT_EQ(engine.Stats().prompt_tokens + other.Stats().prompt_tokens, 5 + 6 + 7 + 8 + 9 + 10);
}

// The engine is as good as new after the recovery: ids that the engine gave away may come back.
TEST_P(HandOverTest, TheSameEngineTakesThemBackAfterTheRecovery) {
  EngineLoop engine(options_, &executor_, nullptr);
  executor_.FailStep(10, kLoss);
  const Ticket ticket = MakeTicket("a", 5, 60);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  std::vector<EngineRequest> requests = Take(1);
  EXPECT_FALSE(engine.Offer(&requests[0])) << "it is recovering";
  EXPECT_EQ(requests[0].id, "a") << "a request that is not taken is left alone";
  executor_.FinishRecovery(absl::OkStatus());
  AwaitState(engine, EngineState::kAwake);
  ASSERT_TRUE(engine.Offer(&requests[0]));
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
}

// The request is served, or handed over, or was not taken: no request waits for a recovery.
TEST_P(HandOverTest, ARequestThatComesDuringTheLossIsNotStranded) {
  for (int round = 0; round < 20; ++round) {
    FakeExecutor executor(SmallWorker(options_));
    executor.SetRecovery(Recovery::kWaits);
    EngineLoop engine(options_, &executor, nullptr);
    std::thread loss([&] { executor.Lose(kLoss); });
    Ticket ticket = MakeTicket("a", 5, 150);
    const bool taken = engine.Offer(&ticket.request);
    loss.join();
    AwaitState(engine, EngineState::kRecovering);
    const auto has_left = [&] {
      absl::MutexLock lock(&mu_);
      return ticket.sink->done() || !handed_over_.empty();
    };
    while (taken && !has_left()) absl::SleepFor(absl::Milliseconds(1));
    Take(0);
  }
}

// A request that kills every engine ends after as many failures as at a single engine.
TEST_P(HandOverTest, FailuresOfARequestAreCountedOverEngines) {
  options_.max_recoveries_per_request = 2;
  EngineOptions options = options_;
  Ticket ticket = MakeTicket("poison", 5, 60);
  int num_failures = 0;
  for (; !ticket.sink->done() && num_failures < 10; ++num_failures) {
    FakeExecutor executor(SmallWorker(options));
    executor.SetRecovery(Recovery::kSucceeds);
    executor.FailStep(2, kLoss);
    EngineLoop engine(options, &executor, nullptr);
    ASSERT_TRUE(engine.Offer(&ticket.request));
    while (engine.Stats().num_recoveries == 0) absl::SleepFor(absl::Milliseconds(1));
    if (!ticket.sink->done()) ticket.request = std::move(Take(1)[0]);
  }
  EXPECT_EQ(num_failures, 3);
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
}

TEST_P(HandOverTest, AnEngineThatIsGivenUpHandsOver) {
  EngineLoop engine(options_, &executor_, nullptr);
  executor_.SetRecovery(Recovery::kFails);
  executor_.FailStep(10, kLoss);
  const Ticket ticket = MakeTicket("a", 5, 60);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  std::vector<EngineRequest> requests = Take(1);
  AwaitState(engine, EngineState::kFailed);
  EXPECT_FALSE(engine.Offer(&requests[0]));
  EXPECT_FALSE(ticket.sink->done());
}

// A worker's token beyond the vocabulary may be the fault of a request in the step: that request ends.
TEST_P(HandOverTest, WhatMayHaveBrokenTheEngineIsNotHandedOver) {
  options_.vocab_size = 400;  // the fake samples ids up to 1000
  options_.scheduler.max_num_seqs = 1;
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket computing = MakeTicket("a", 5, 60), waiting = MakeTicket("b", 5, 60);
  ASSERT_TRUE(engine.SubmitAll({computing.request, waiting.request}).ok());
  ASSERT_TRUE(computing.sink->Wait());
  EXPECT_EQ(computing.sink->reason(), FinishReason::kError);
  EXPECT_EQ(Take(1)[0].id, "b");
  EXPECT_EQ(engine.state(), EngineState::kFailed);
}

// The restart comes before the request, in the middle, or after the request's end.
TEST_P(HandOverTest, ARestartHandsOverAndIsNoRecovery) {
  EngineLoop other(SmallEngine(GetParam()), &other_executor_, nullptr);
  std::atomic<int> num_moved{0};
  options_.hand_over = [&](std::vector<EngineRequest> requests) {
    for (EngineRequest& request : requests) num_moved += other.Offer(&request) ? 1 : 0;
  };
  executor_.SetRecovery(Recovery::kSucceeds);
  EngineLoop engine(options_, &executor_, nullptr);
  for (int round = 0; round < 200 && (round < 20 || num_moved == 0); ++round) {
    const Ticket ticket = MakeTicket(std::to_string(round), 5, 150);
    ASSERT_TRUE(engine.Submit(ticket.request).ok());
    ticket.sink->WaitForTokens(1);
    ASSERT_TRUE(engine.Restart().ok());
    EXPECT_EQ(engine.state(), EngineState::kAwake);
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  EXPECT_GE(num_moved, 1);
  EXPECT_EQ(engine.Stats().num_recoveries, 0);
  EXPECT_EQ(engine.Stats().group_epoch, 1 + static_cast<int64_t>(executor_.recoveries().size()));
  EXPECT_EQ(executor_.recoveries()[0], "restart");
}

TEST_P(HandOverTest, ARestartThatFailsIsTheEnginesEnd) {
  executor_.SetRecovery(Recovery::kFails);
  EngineLoop engine(options_, &executor_, nullptr);
  const absl::Status status = engine.Restart();
  EXPECT_EQ(status.message(), "the new workers did not come");
  EXPECT_EQ(engine.state(), EngineState::kFailed);
}

TEST_P(HandOverTest, AnEngineThatSleepsIsNotRestarted) {
  EngineLoop engine(options_, &executor_, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Restart()));
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
}

// Without hand_over a restart is like a recovery to requests.
TEST_P(HandOverTest, AloneRequestsWaitForTheRestart) {
  options_.hand_over = nullptr;
  executor_.SetRecovery(Recovery::kSucceeds);
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket ticket = MakeTicket("a", 5, 100);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ticket.sink->WaitForTokens(10);
  EXPECT_TRUE(engine.Restart().ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
}

}  // namespace
}  // namespace somnus
