// A group that is lost and recovered: open requests go on with exactly the tokens of an undisturbed run, and
// the engine's reports meanwhile are true.

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Recovery = FakeExecutor::Recovery;

const absl::Status kLoss = absl::UnavailableError("rank 1 (pid 77) was killed by signal 9 (Killed)");

class EngineRecoveryTest : public ::testing::TestWithParam<bool> {
 protected:
  explicit EngineRecoveryTest(Recovery recovery = Recovery::kSucceeds)
      : options_(SmallEngine(GetParam())), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(recovery);
  }
  void AwaitState(const EngineLoop& engine, EngineState state) {
    while (engine.state() != state) absl::SleepFor(absl::Milliseconds(1));
  }

  EngineOptions options_;
  FakeExecutor executor_;
};
INSTANTIATE_TEST_SUITE_P(Overlap, EngineRecoveryTest, ::testing::Bool());

TEST_P(EngineRecoveryTest, TokensAreThoseOfAnUndisturbedRun) {
  EngineLoop engine(options_, &executor_, nullptr);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 4; ++i) {
    tickets.push_back(MakeTicket(std::to_string(i), 5 + i, 60, 100 * i + 1));
    ASSERT_TRUE(engine.Submit(tickets[i].request).ok());
  }
  for (const size_t count : {1u, 20u, 40u}) {
    tickets[0].sink->WaitForTokens(count);
    executor_.Lose(kLoss);
    while (!executor_.Health().ok()) absl::SleepFor(absl::Milliseconds(1));
  }
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  EXPECT_EQ(executor_.recoveries(), std::vector<std::string>(executor_.recoveries().size(), "awake"));
  EXPECT_GE(executor_.recoveries().size(), 1u);
  EXPECT_EQ(engine.state(), EngineState::kAwake);
}

// Whichever step is lost, in the middle of the prompt or of the outputs: tokens and usage are the same as in
// an undisturbed run, and nothing comes twice.
TEST_P(EngineRecoveryTest, WhateverStepIsLostNothingComesTwiceAndNothingIsMissing) {
  options_.max_recoveries = 1000;
  for (int64_t lost = 0; lost < 24; ++lost) {
    FakeExecutor executor(SmallWorker(options_));
    executor.SetRecovery(Recovery::kSucceeds);
    if (lost > 0) executor.FailStep(lost, kLoss);
    RecordingObserver observer;
    EngineLoop engine(options_, &executor, &observer);
    Ticket ticket = MakeTicket("a", 40, 12), cached = MakeTicket("b", 40, 12);
    SamplingParams sampling{.temperature = 0, .num_logprobs = 0, .num_prompt_logprobs = 0};
    ticket.request.sampling = std::make_shared<SamplingParams>(sampling);
    for (const Ticket* each : {&ticket, &cached}) {
      ASSERT_TRUE(engine.Submit(each->request).ok());
      ASSERT_TRUE(each->sink->Wait());
      EXPECT_EQ(each->sink->tokens(), Reference(*each)) << lost;
      EXPECT_EQ(each->sink->reason(), FinishReason::kLength) << each->sink->error();
    }
    std::vector<int32_t> all = ticket.request.prompt;
    CollectingSink::TokenLogprobs prompt_logprobs, logprobs;
    for (int32_t token : Reference(ticket)) all.push_back(token);
    for (int32_t i = 1; i < static_cast<int32_t>(all.size()); ++i) {
      (i < 40 ? prompt_logprobs : logprobs).emplace_back(all[i], FakeWorker::ReferenceLogprob(all, i));
    }
    EXPECT_EQ(ticket.sink->prompt_logprobs(), prompt_logprobs) << lost;
    EXPECT_EQ(ticket.sink->logprobs(), logprobs) << lost;
    EXPECT_EQ(ticket.sink->num_cached_tokens(), 0);
    const EngineStats stats = engine.Stats();
    EXPECT_EQ(stats.prompt_tokens, 80) << lost;
    EXPECT_EQ(stats.generation_tokens, 24) << lost;
    EXPECT_EQ(observer.output_tokens(), 24) << lost;
    EXPECT_EQ(stats.num_recoveries, observer.num_recoveries());
    EXPECT_EQ(stats.group_epoch, 1 + stats.num_recoveries);
  }
}

TEST_P(EngineRecoveryTest, MeanwhileRequestsQueueAndCommandsWait) {
  executor_.SetRecovery(Recovery::kWaits);
  EngineLoop engine(options_, &executor_, nullptr);
  executor_.Lose(kLoss);
  AwaitState(engine, EngineState::kRecovering);
  EXPECT_FALSE(engine.Health().ok());
  const Ticket ticket = MakeTicket("a", 5, 20), aborted = MakeTicket("b", 5, 20);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(engine.Submit(aborted.request).ok());
  engine.Abort("b");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  absl::Notification reset;
  std::thread command([&] {
    EXPECT_TRUE(engine.ResetPrefixCache(false).ok());
    reset.Notify();
  });
  EXPECT_FALSE(ticket.sink->done());
  EXPECT_FALSE(reset.HasBeenNotified());
  EXPECT_EQ(engine.state(), EngineState::kRecovering);
  executor_.FinishRecovery(absl::OkStatus());
  command.join();
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  EXPECT_EQ(engine.state(), EngineState::kAwake);
}

TEST_P(EngineRecoveryTest, ARecoveryThatFailsIsFinal) {
  executor_.SetRecovery(Recovery::kWaits);
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket ticket = MakeTicket("a", 5, 20);
  executor_.Lose(kLoss);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  AwaitState(engine, EngineState::kRecovering);
  executor_.FinishRecovery(absl::UnavailableError("rank 1 could not be replaced"));
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->error().message(), "the engine failed: rank 1 could not be replaced");
  EXPECT_EQ(engine.state(), EngineState::kFailed);
}

// The prompt's step is the first, and the next step is the first of a new size; then the floor is known to
// do. The same after the recovery.
TEST_P(EngineRecoveryTest, ADeadlineIsShortOnceItIsKnownWhatStepsTake) {
  options_.hang_timeout = absl::Seconds(4);
  options_.step_timeout = absl::Minutes(5);
  options_.monotonic_now = [] { return absl::Hours(1); };  // no step takes any time
  executor_.FailStep(10, kLoss);
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket ticket = MakeTicket("a", 5, 20);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  const std::vector<absl::Duration> timeouts = executor_.wait_timeouts();
  const std::vector<absl::Duration> start = {options_.step_timeout, options_.step_timeout, absl::Seconds(4)};
  ASSERT_GT(timeouts.size(), 15u);
  EXPECT_EQ(std::vector<absl::Duration>(timeouts.begin(), timeouts.begin() + 3), start);
  EXPECT_EQ(timeouts[9], absl::Seconds(4));
  // After the loss: a prompt of another size, then a decode, with more time than before, and then as before.
  const std::vector<absl::Duration> again = {options_.step_timeout,
                                             absl::Seconds(4) + StepDeadline::kAllowance, absl::Seconds(4)};
  EXPECT_EQ(std::vector<absl::Duration>(timeouts.begin() + 10, timeouts.begin() + 13), again);
  EXPECT_EQ(timeouts.back(), absl::Seconds(4));
}

// Each step of the request fails, alone or not.
TEST_P(EngineRecoveryTest, ARequestThatFailsTheGroupAgainAndAgainEnds) {
  options_.max_recoveries_per_request = 2;
  for (int64_t step = 1; step <= 100; ++step) executor_.FailStep(step, absl::InternalError("rank 0 failed"));
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket ticket = MakeTicket("poison", 5, 20);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
  EXPECT_EQ(ticket.sink->error().message(),
            "the request was being computed at 3 failures of the workers; the last: rank 0 failed");
  while (executor_.recoveries().size() < 3) absl::SleepFor(absl::Milliseconds(1));
  AwaitState(engine, EngineState::kAwake);
}

// Losses that have nothing to do with the request, one after every few tokens: more losses than a request may
// be in, and more than may come in a row.
TEST_P(EngineRecoveryTest, WhoeverGetsOnIsNotSuspectedAndARecoveryThatLedToTokensDoesNotCount) {
  options_.max_recoveries_per_request = 1;
  options_.max_recoveries = 2;
  for (const int64_t step : {8, 20, 32, 44, 56}) executor_.FailStep(step, kLoss);
  EngineLoop engine(options_, &executor_, nullptr);
  const Ticket ticket = MakeTicket("a", 5, 60), other = MakeTicket("b", 5, 60, 100);
  ASSERT_TRUE(engine.SubmitAll({ticket.request, other.request}).ok());
  for (const Ticket* each : {&ticket, &other}) {
    ASSERT_TRUE(each->sink->Wait());
    EXPECT_EQ(each->sink->reason(), FinishReason::kLength) << each->sink->error();
    EXPECT_EQ(each->sink->tokens(), Reference(*each));
  }
  EXPECT_EQ(executor_.recoveries().size(), 5u);
  EXPECT_EQ(engine.state(), EngineState::kAwake);
}

TEST_P(EngineRecoveryTest, TooManyFailuresAreFinal) {
  options_.max_recoveries = 2;
  EngineLoop engine(options_, &executor_, nullptr);
  for (int i = 0; i < 2; ++i) {
    executor_.Lose(kLoss);
    while (executor_.recoveries().size() < static_cast<size_t>(i) + 1) absl::SleepFor(absl::Milliseconds(1));
    AwaitState(engine, EngineState::kAwake);
  }
  executor_.Lose(kLoss);
  AwaitState(engine, EngineState::kFailed);
  EXPECT_EQ(executor_.recoveries(), (std::vector<std::string>{"awake", "awake", "dismiss"}))
      << "nobody holds the memory of a model that serves no more";
  EXPECT_EQ(engine.Stats().num_recoveries, 2);
  EXPECT_EQ(engine.Stats().group_epoch, 3);
  EXPECT_FALSE(engine.Submit(MakeTicket("a", 5, 20).request).ok());
}

TEST_P(EngineRecoveryTest, AnEngineThatHasFailedIsRevivedAsItWas) {
  options_.max_recoveries = 0;
  for (const bool asleep : {false, true}) {
    FakeExecutor executor(SmallWorker(options_));
    executor.SetRecovery(Recovery::kFails);
    EngineLoop engine(options_, &executor, nullptr);
    EXPECT_TRUE(absl::IsFailedPrecondition(engine.Revive(false))) << "it has not failed";
    if (asleep) {
      ASSERT_TRUE(engine.Sleep({.level = 1, .tags = {"weights"}}).ok());
    }
    executor.Lose(kLoss);
    AwaitState(engine, EngineState::kFailed);
    EXPECT_EQ(engine.Revive(false).message(), kLoss.message()) << "no other worker comes";
    EXPECT_EQ(engine.state(), EngineState::kFailed);
    executor.SetRecovery(Recovery::kSucceeds);
    const absl::Status revived = engine.Revive(false);
    ASSERT_TRUE(revived.ok()) << revived;
    EXPECT_EQ(executor.recoveries().back(), asleep ? "asleep 1 weights" : "awake");
    EXPECT_EQ(engine.state(), asleep ? EngineState::kAsleep : EngineState::kAwake);
    if (asleep) {
      ASSERT_TRUE(engine.WakeUp({}).ok());
    }
    const Ticket ticket = MakeTicket("a", 5, 20);
    ASSERT_TRUE(engine.Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
}

TEST_P(EngineRecoveryTest, ARevivedEngineTakesNoMemoryWhereThatIsAsked) {
  options_.max_recoveries = 0;
  EngineLoop engine(options_, &executor_, nullptr);
  executor_.Lose(kLoss);
  AwaitState(engine, EngineState::kFailed);
  ASSERT_TRUE(engine.Revive(/*asleep=*/true).ok());
  EXPECT_EQ(executor_.recoveries().back(), "asleep 2 kv_cache weights workspace");
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().sleep_level, 2);
}

// The drain's grace ends before the recovery does.
TEST_P(EngineRecoveryTest, ADrainDoesNotWaitForARecovery) {
  executor_.SetRecovery(Recovery::kWaits);
  EngineLoop engine(options_, &executor_, nullptr);
  executor_.Lose(kLoss);
  AwaitState(engine, EngineState::kRecovering);
  const Ticket ticket = MakeTicket("a", 5, 20);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  engine.DrainAndStop(absl::Milliseconds(10));
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
}

}  // namespace
}  // namespace somnus
