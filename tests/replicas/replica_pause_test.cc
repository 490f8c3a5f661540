// Pauses of an engine with replicas, and the fate of the requests in the common queue.

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaPauseTest : public ReplicaSetTest {
 protected:
  // More requests than run at once, so that some wait in the queue.
  std::vector<Ticket> SubmitBacklog() {
    std::vector<Ticket> tickets = SubmitMany(12, 100);
    tickets[0].sink->WaitForTokens(2);
    return tickets;
  }
  void ExpectNoTokens(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
    EXPECT_TRUE(ticket.sink->tokens().empty());
  }
};

INSTANTIATE_TEST_SUITE_P(Scheduling, ReplicaPauseTest, ::testing::Bool());

TEST_P(ReplicaPauseTest, WhatIsOpenGoesOnAfterwards) {
  Start();
  std::vector<Ticket> tickets = SubmitBacklog();
  ASSERT_TRUE(set_->Pause({}).ok());
  EXPECT_EQ(set_->state(), EngineState::kPaused);
  EXPECT_TRUE(set_->Stats().paused);
  tickets.push_back(Submit("arrived", 5, 20));
  const Ticket aborted = Submit("aborted", 5, 20);
  set_->Abort("aborted");
  ExpectNoTokens(aborted);
  EXPECT_TRUE(tickets.back().sink->tokens().empty());
  const EngineViews views = set_->View();
  EXPECT_EQ(views.back()->replica, kCommonQueue);
  ASSERT_FALSE(views.back()->requests.empty());
  EXPECT_EQ(views.back()->requests.back().id, "arrived") << "the last in the order of service";
  EXPECT_STREQ(views.back()->requests.back().state, "waiting");
  EXPECT_EQ(views.back()->requests.back().num_prompt_tokens, 5);
  ASSERT_TRUE(set_->Resume().ok());
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  EXPECT_FALSE(set_->Stats().paused);
  ExpectExact(tickets);
}

TEST_P(ReplicaPauseTest, WaitLetsWhatIsOpenEndAlsoInTheQueue) {
  options_.scheduler.max_num_seqs = 1;
  Start();
  std::vector<Ticket> tickets = SubmitBacklog();
  auto paused = std::async(std::launch::async, [this] { return set_->Pause({.mode = SleepMode::kWait}); });
  EXPECT_TRUE(paused.get().ok());
  EXPECT_EQ(set_->state(), EngineState::kPaused);
  for (const Ticket& ticket : tickets) EXPECT_TRUE(ticket.sink->done());
  ExpectExact(tickets);
  const Ticket arrived = Submit("arrived", 5, 20);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({arrived});
}

TEST_P(ReplicaPauseTest, AnotherCallEndsAWait) {
  Start();
  for (const auto& executor : executors_) executor->Hold(true);
  const std::vector<Ticket> tickets = SubmitMany(3);
  auto waiting = std::async(std::launch::async, [this] { return set_->Pause({.mode = SleepMode::kWait}); });
  Await([&] { return set_->state() == EngineState::kPausing; });
  const Ticket arrived = Submit("arrived", 5, 20);
  auto resumed = std::async(std::launch::async, [this] { return set_->Resume(); });
  EXPECT_TRUE(absl::IsAborted(waiting.get()));
  for (const auto& executor : executors_) executor->Hold(false);
  EXPECT_TRUE(resumed.get().ok());
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  ExpectExact(tickets);
  ExpectExact({arrived});
}

// No request ends while all replicas sleep.
TEST_P(ReplicaPauseTest, AWaitThatBeganInARecoveryEndsWhenAllSleep) {
  Start();
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  const Ticket ticket = Submit("a", 5, 20);
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kRecovering);
  auto sleep = std::async(std::launch::async,
                          [this] { return set_->Sleep({.level = 2, .mode = SleepMode::kWait}).status(); });
  Await([&] { return set_->Stats().lifecycle_call.name == "sleep"; });
  executors_[0]->FinishRecovery(absl::OkStatus());
  if (sleep.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
    ADD_FAILURE() << "the call still waits";
    EXPECT_TRUE(set_->AbortCall().ok());
  }
  EXPECT_EQ(sleep.get(), absl::OkStatus());
  EXPECT_EQ(set_->Stats().sleep_level, 2);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({ticket});
}

TEST_P(ReplicaPauseTest, SleepWaitsOrAborts) {
  options_.scheduler.max_num_seqs = 1;
  Start();
  const std::vector<Ticket> waited = SubmitMany(6, 30);
  ASSERT_TRUE(set_->Sleep({.mode = SleepMode::kWait}).ok());
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  for (const Ticket& ticket : waited) EXPECT_TRUE(ticket.sink->done());
  ExpectExact(waited);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  std::vector<Ticket> aborted;
  for (int i = 0; i < 6; ++i) aborted.push_back(Submit(absl::StrCat("b", i), 5, 190, 50 * i + 1));
  ASSERT_TRUE(set_->Sleep({.mode = SleepMode::kAbort}).ok());
  for (const Ticket& ticket : aborted) EXPECT_TRUE(ticket.sink->done());
  EXPECT_EQ(aborted.back().sink->reason(), FinishReason::kAbort);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({Submit("after", 5, 20)});
}

// The replicas that were brought back are in their earlier state.
TEST_P(ReplicaPauseTest, ACallThatIsUndoneLeavesThePause) {
  Start();
  ASSERT_TRUE(set_->Pause({}).ok());
  executors_[1]->FailNextLifecycleCall(absl::ResourceExhaustedError("no host memory"));
  EXPECT_TRUE(absl::IsResourceExhausted(set_->Sleep({.level = 1}).status()));
  EXPECT_EQ(set_->state(), EngineState::kPaused);
  for (const ReplicaStats& replica : set_->Stats().replicas) EXPECT_EQ(replica.state, EngineState::kPaused);
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  executors_[1]->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(absl::IsResourceExhausted(set_->WakeUp({}).status()));
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  EXPECT_TRUE(set_->Stats().paused);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({Submit("after", 5, 20)});
}

// Two runs with the same calls do the same.
TEST_P(ReplicaPauseTest, AbortedRequestsEndInOrderOfArrival) {
  RecordingObserver observer;
  Start(2, &observer);
  ASSERT_TRUE(set_->Pause({}).ok());
  const std::vector<Ticket> tickets = SubmitMany(12);
  ASSERT_TRUE(set_->Sleep({.mode = SleepMode::kAbort}).ok());
  std::vector<std::string> ids;
  for (const Ticket& ticket : tickets) {
    ExpectNoTokens(ticket);
    ids.push_back(ticket.request.id);
  }
  EXPECT_EQ(observer.finished(), ids);
}

TEST_P(ReplicaPauseTest, RequestsWakeItUnlessItIsPaused) {
  Start();
  ASSERT_TRUE(set_->Sleep({}).ok());
  ASSERT_TRUE(set_->Pause({}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(set_->WakeForArrivals().status()));
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  ASSERT_TRUE(set_->Resume().ok());
  ASSERT_TRUE(set_->WakeForArrivals().ok());
  EXPECT_EQ(set_->state(), EngineState::kAwake);
}

TEST_P(ReplicaPauseTest, OnlyAnIdleSetSleepsByItself) {
  Start();
  for (const auto& executor : executors_) executor->Hold(true);
  const std::vector<Ticket> tickets = SubmitMany(3, 10);
  EXPECT_TRUE(absl::IsAborted(set_->Sleep({.only_if_idle = true}).status()));
  for (const auto& executor : executors_) executor->Hold(false);
  ExpectExact(tickets);
  ASSERT_TRUE(set_->Sleep({.only_if_idle = true}).ok());
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
}

}  // namespace
}  // namespace somnus
