// Several engines on the same devices: who is woken for whom; that no request is lost, and no memory is taken
// twice.

#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/engine/caller.h"
#include "tests/residency/shared_devices_fixture.h"

namespace somnus {
namespace {

TEST_F(SharedDevicesTest, ARequestWakesItsModelAndAnotherOneSleeps) {
  Start(3, 1);
  EXPECT_EQ(NumAwake(), 1);
  ExpectExact(Submit(0, "a"));
  EXPECT_EQ(engine(0)->state(), EngineState::kAwake);
  EXPECT_EQ(engine(2)->state(), EngineState::kAsleep);
  EXPECT_TRUE(Decided(ResidencyAction::kSleepIfIdle, 2));
  EXPECT_TRUE(engine(2)->Health().ok()) << "a request would wake it";
  ExpectExact(Submit(2, "b"));
  ExpectExact(Submit(1, "c"));
}

TEST_F(SharedDevicesTest, ASwitchSaysHowLongItWaitedForRoomAndForTheWakeUp) {
  Start(2, 1);
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a");
  models_[0].executor->HoldLifecycle(true);
  const Ticket waits = Submit(0, "b");
  while (!Decided(ResidencyAction::kDrain, 1)) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GT(engine(0)->Stats().oldest_wait, absl::ZeroDuration());
  EXPECT_EQ(engine(1)->Stats().oldest_wait, absl::ZeroDuration());
  absl::SleepFor(absl::Milliseconds(20));  // before there is room
  models_[1].executor->Hold(false);
  while (engine(0)->state() != EngineState::kWaking) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(30));  // within the wake-up
  models_[0].executor->HoldLifecycle(false);
  ExpectExact(waits);
  ExpectExact(open);
  absl::MutexLock lock(&mu_);
  const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !switches_.empty(); };
  mu_.Await(absl::Condition(&told));
  EXPECT_EQ(switches_.size(), 1u);
  EXPECT_GE(switches_[0].room, absl::Milliseconds(20));
  EXPECT_GE(switches_[0].wake_up, absl::Milliseconds(30));
}

TEST_F(SharedDevicesTest, AnUnusedModelSleepsUntilItsNextRequest) {
  idle_sleep_ = absl::Milliseconds(20);
  Start(2, /*num_awake=*/2);
  for (const char* id : {"a", "b"}) {
    const Ticket ticket = Submit(0, id);
    ExpectExact(ticket);
    while (NumAwake() > 0) std::this_thread::yield();
  }
  EXPECT_TRUE(Decided(ResidencyAction::kSleepIfIdle, 0));
}

TEST_F(SharedDevicesTest, AModelThatIsLargerThanTheBudgetIsRefused) {
  SharedDevicesOptions options{.residency = {.device_memory_budget = kBytes - 1}};
  devices_.emplace(options);
  counter_ = std::make_unique<AwakeCounter>();
  Add("large");
  const absl::Status status = devices_->Start();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            "--device-memory-budget: large takes 100 bytes while it is awake, more than the budget of 99");
}

TEST_F(SharedDevicesTest, ABusyModelFinishesBeforeAnotherOneWakes) {
  Start(2, 1);
  ExpectExact(Submit(0, "first"));
  models_[0].executor->Hold(true);
  const Ticket open = Submit(0, "a", 60);
  const Ticket waits = Submit(1, "b");
  while (!Decided(ResidencyAction::kDrain, 0)) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(waits.sink->done());
  models_[0].executor->Hold(false);
  ExpectExact(waits);
  ExpectExact(open);
}

TEST_F(SharedDevicesTest, TurnsBetweenTokensLoseNone) {
  Start(2, 1, ResidencyPolicy::kSlo);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(Submit(i % 2, "r" + std::to_string(i), 150));
  for (const Ticket& ticket : tickets) ExpectExact(ticket);
}

TEST_F(SharedDevicesTest, TheModelWhoseClientsWaitForTheShortestTimeWakesFirst) {
  max_wait_ = absl::Hours(1);
  targets_ = {{.ttft = absl::Minutes(30)}, {.ttft = absl::Minutes(10), .tpot = absl::Seconds(1)}};
  Start(3, 1, ResidencyPolicy::kSlo);
  models_[2].executor->HoldLifecycle(true);
  const Ticket later = Submit(0, "later");
  const Ticket sooner = Submit(1, "sooner");
  models_[2].executor->HoldLifecycle(false);  // now model 2 may fall asleep
  ExpectExact(later);
  ExpectExact(sooner);
  absl::MutexLock lock(&mu_);
  std::vector<int> woken;
  for (const ResidencyDecision& decision : decisions_) {
    if (decision.action == ResidencyAction::kWake) woken.push_back(decision.model);
  }
  ASSERT_GE(woken.size(), 2u);
  EXPECT_EQ(woken[0], 1) << "though the other one's request came first";
}

TEST_F(SharedDevicesTest, WhatIsPreemptedComputesNothingAgain) {
  keeps_kv_ = true;
  Start(2, 1, ResidencyPolicy::kSlo);
  std::vector<Ticket> tickets;
  for (Served& model : models_) model.executor->SetStepTime(absl::Milliseconds(1));
  for (int i = 0; i < 2; ++i) tickets.push_back(Submit(i, "r" + std::to_string(i), 150));
  for (const Ticket& ticket : tickets) ExpectExact(ticket);
  EXPECT_EQ(Recomputed(tickets), 0);
  EXPECT_GT(engine(0)->Stats().kept_tokens + engine(1)->Stats().kept_tokens, 0);
  EXPECT_EQ(engine(0)->Stats().num_preemptions + engine(1)->Stats().num_preemptions, 0);
}

TEST_F(SharedDevicesTest, WithoutHostMemoryForBlocksTheyAreComputedAgain) {
  keeps_kv_ = true;
  host_memory_budget_ = kBytes + FakeExecutor::kKvBlockBytes - 1;  // of weights alone
  Start(2, 1, ResidencyPolicy::kSlo);
  std::vector<Ticket> tickets;
  for (Served& model : models_) model.executor->SetStepTime(absl::Milliseconds(1));
  for (int i = 0; i < 2; ++i) tickets.push_back(Submit(i, "r" + std::to_string(i), 150));
  for (const Ticket& ticket : tickets) ExpectExact(ticket);
  EXPECT_TRUE(Decided(ResidencyAction::kPreempt, 0) || Decided(ResidencyAction::kPreempt, 1));
  EXPECT_GT(Recomputed(tickets), 0);
  EXPECT_EQ(engine(0)->Stats().kept_blocks + engine(1)->Stats().kept_blocks, 0);
}

TEST_F(SharedDevicesTest, TheNextModelsWeightsArePrefetchedOnceInASleep) {
  host_memory_budget_ = 0;
  Start(2, 1);
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a", 60);
  const Ticket waits = Submit(0, "b");
  while (models_[0].executor->lifecycle_calls().back() != "prefetch") absl::SleepFor(absl::Milliseconds(1));
  models_[1].executor->Hold(false);
  ExpectExact(waits);
  ExpectExact(open);
  const std::vector<std::string> calls = models_[0].executor->lifecycle_calls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0], "sleep 2");
  EXPECT_EQ(calls[1], "prefetch");
  EXPECT_EQ(calls[2], "wake kv_cache weights workspace");
}

TEST_F(SharedDevicesTest, AnOperatorsSleepHoldsUntilAnOperatorsWakeUp) {
  Start(2, 2);
  ExpectExact(Submit(0, "a"));
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  EXPECT_FALSE(engine(0)->Health().ok());
  const Ticket waits = Submit(0, "b");
  ExpectExact(Submit(1, "c"));
  EXPECT_FALSE(waits.sink->done());
  const absl::StatusOr<TransitionReport> report = engine(0)->WakeUp({});
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectExact(waits);
}

TEST_F(SharedDevicesTest, AnOperatorsSleepEndsByARequestWhereArrivalsWake) {
  Start(2, 2, ResidencyPolicy::kFifo, SleepArrivals::kWake);
  ASSERT_TRUE(engine(0)->Sleep({}).ok());
  ExpectExact(Submit(0, "a"));
}

TEST_F(SharedDevicesTest, AnOperatorsSleepRefusesWhereArrivalsAreRejected) {
  Start(2, 1, ResidencyPolicy::kFifo, SleepArrivals::kReject);
  ExpectExact(Submit(0, "a"));
  ASSERT_TRUE(engine(0)->Sleep({}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine(0)->Submit(MakeTicket("b", 5, 5).request)));
  ExpectExact(Submit(1, "c"));
  ASSERT_TRUE(engine(0)->WakeUp({}).ok());
  ExpectExact(Submit(0, "d"));
}

TEST_F(SharedDevicesTest, AnOperatorsWakeUpMakesRoom) {
  Start(2, 1);
  EXPECT_EQ(engine(1)->state(), EngineState::kAwake);
  const absl::StatusOr<TransitionReport> report = engine(0)->WakeUp({});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->changed());
  EXPECT_TRUE(Decided(ResidencyAction::kSleepIfIdle, 1));
  EXPECT_TRUE(engine(1)->WakeUp({"weights"}).ok()) << "by tags, too";
}

TEST_F(SharedDevicesTest, AnOperatorsWakeUpDoesNotWaitForRoomForEver) {
  operator_wait_ = absl::Milliseconds(20);
  Start(2, 1);
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a");
  const absl::Status no_room = engine(0)->WakeUp({}).status();
  EXPECT_TRUE(absl::IsUnavailable(no_room)) << no_room;
  EXPECT_NE(no_room.message().find("model 0 needs 100 bytes of --device-memory-budget, and 0 are free"),
            std::string::npos)
      << no_room;
  models_[1].executor->Hold(false);
  ExpectExact(open);
  ExpectExact(Submit(0, "b"));  // which wakes it, as before
}

TEST_F(SharedDevicesTest, AnOperatorWaitsForAWakeUpForWhichThereWasRoom) {
  operator_wait_ = absl::Milliseconds(20);
  Start(2, 2);
  models_[0].executor->HoldLifecycle(true);
  auto woken = std::async(std::launch::async, [&] { return engine(0)->WakeUp({}).status(); });
  while (!Decided(ResidencyAction::kWake, 0)) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(2 * operator_wait_);
  const int64_t before = num_looks_;
  absl::SleepFor(operator_wait_);
  EXPECT_LT(num_looks_ - before, 500) << "nobody spins because that time has passed";
  models_[0].executor->HoldLifecycle(false);
  const absl::Status status = woken.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SharedDevicesTest, AWakeUpThatFailsIsTriedAgain) {
  Start(2, 1);
  models_[0].executor->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  ExpectExact(Submit(0, "a"));
}

// The wake-up goes on once the group is whole again: no other model gets the memory meanwhile.
TEST_F(SharedDevicesTest, AWakeUpThatALossInterruptsKeepsItsMemory) {
  Start(2, 1);
  FakeExecutor* const loser = models_[0].executor.get();
  loser->SetRecovery(FakeExecutor::Recovery::kWaits);
  loser->HoldLifecycle(true);
  const Ticket waits = Submit(0, "a");
  while (engine(0)->state() != EngineState::kWaking) absl::SleepFor(absl::Milliseconds(1));
  loser->Lose(absl::UnavailableError("rank 1 was killed"));
  while (engine(0)->state() != EngineState::kRecovering) absl::SleepFor(absl::Milliseconds(1));
  const Ticket other = Submit(1, "b");
  absl::SleepFor(absl::Milliseconds(20));  // a decision would come at once
  EXPECT_FALSE(Decided(ResidencyAction::kWake, 1));
  loser->HoldLifecycle(false);
  loser->FinishRecovery(absl::OkStatus());
  ExpectExact(waits);
  ExpectExact(other);
  EXPECT_EQ(counter_->most(), 1);
}

// Neither the reason of the earlier sleep, nor the thread that carries the wake-up out.
TEST_F(SharedDevicesTest, AModelThatWakesSaysWhy) {
  Start(2, 1);
  ExpectExact(Submit(0, "a"));
  ExpectExact(Submit(1, "b"));
  EXPECT_EQ(engine(0)->Stats().note.why, "residency: sleep_if_idle (idle, for model 1)");
  const auto waking = [this](int model) {
    while (engine(model)->state() != EngineState::kWaking) absl::SleepFor(absl::Milliseconds(1));
    const std::string why = engine(model)->Stats().note.why;
    models_[model].executor->HoldLifecycle(false);
    return why;
  };
  models_[0].executor->HoldLifecycle(true);
  const Ticket request = Submit(0, "c");
  EXPECT_EQ(waking(0), "a request needs the model");
  ExpectExact(request);
  models_[1].executor->HoldLifecycle(true);
  std::thread call([this] {
    const CallerScope scope({.name = "127.0.0.1:1 (HTTP)", .has_left = [] { return false; }});
    EXPECT_TRUE(engine(1)->WakeUp({}).ok());
  });
  EXPECT_EQ(waking(1), "an operator has called wake_up");
  call.join();
}

// The error has the code of a pause's error. The model that serves is not put to sleep again and again.
TEST_F(SharedDevicesTest, AWakeUpThatIsRefusedIsToldAndGivenUp) {
  max_tries_ = 3;
  Start(2, 1);
  models_[0].executor->SetWakeUpError(absl::FailedPreconditionError("rank 0: the checkpoint has changed"));
  ExpectExact(Submit(1, "serves"));
  const Ticket waits = Submit(0, "a");
  ASSERT_TRUE(waits.sink->Wait());
  EXPECT_EQ(waits.sink->reason(), FinishReason::kError);
  const absl::Status error =
      absl::UnavailableError("The model sleeps and could not be woken: rank 0: the checkpoint has changed");
  EXPECT_EQ(waits.sink->error(), error);
  EXPECT_EQ(What(engine(0)->Health()), "The engine is asleep, and could not be woken.");
  EXPECT_EQ(Why(engine(0)->Health()), "rank 0: the checkpoint has changed");
  EXPECT_EQ(engine(0)->Stats().wake_up_error, error.message());
  const auto num_wake_ups = [this] {
    absl::MutexLock lock(&mu_);
    return std::count_if(decisions_.begin(), decisions_.end(), [](const ResidencyDecision& decision) {
      return decision.model == 0 && decision.action == ResidencyAction::kWake;
    });
  };
  EXPECT_EQ(num_wake_ups(), 3) << "tries are bounded";
  EXPECT_EQ(engine(0)->Submit(MakeTicket("b", 5, 5).request), error);
  ExpectExact(Submit(1, "serves on"));
  EXPECT_EQ(num_wake_ups(), 3);
  // An operator may have mended the cause.
  models_[0].executor->SetWakeUpError(absl::OkStatus());
  ASSERT_TRUE(engine(0)->WakeUp({}).ok());
  ExpectExact(Submit(0, "c"));
  EXPECT_EQ(engine(0)->Stats().wake_up_error, "");
}

// The memory of a failed model is free, since its workers have ended; the model comes back without memory.
TEST_F(SharedDevicesTest, AModelThatHasFailedMakesRoomAndIsBroughtUpAgain) {
  revival_pause_ = absl::Seconds(30);
  Start(2, 1);
  ExpectExact(Submit(1, "a"));
  models_[1].executor->Lose(absl::UnavailableError("rank 0 was killed, and no other one came"));
  while (engine(1)->state() != EngineState::kFailed) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(engine(1)->Stats().resident_bytes, TagBytes());
  ExpectExact(Submit(0, "b"));
  const absl::Status refused = engine(1)->Submit(MakeTicket("c", 5, 5).request);
  EXPECT_NE(refused.message().find("Way out: somnus revive --model=model 1 starts"), std::string::npos)
      << refused;
  models_[1].executor->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  ahead_s_ = 60;
  ExpectExact(Submit(0, "d"));  // devices_ hears of the request and looks at its clock
  while (engine(1)->state() != EngineState::kAsleep) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(models_[1].executor->recoveries().back(), "asleep 2 kv_cache weights workspace");
  ExpectExact(Submit(1, "e"));
  ExpectExact(Submit(0, "f"));
}

TEST_F(SharedDevicesTest, AnOperatorBringsAFailedModelUpAtOnce) {
  Start(2, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine(1)->Revive(false))) << "it has not failed";
  models_[1].executor->Lose(absl::UnavailableError("rank 0 was killed, and no other one came"));
  while (engine(1)->state() != EngineState::kFailed) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(engine(1)->Revive(false).ok()) << "no other worker comes";
  models_[1].executor->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  const absl::Status revived = engine(1)->Revive(false);
  EXPECT_TRUE(revived.ok()) << revived;
  EXPECT_EQ(engine(1)->state(), EngineState::kAsleep);
  ExpectExact(Submit(1, "a"));
}

TEST_F(SharedDevicesTest, AWakeUpThatFailsIsTheOperatorsAnswer) {
  Start(2, 1);
  models_[0].executor->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(absl::IsResourceExhausted(engine(0)->WakeUp({}).status()));
  EXPECT_TRUE(engine(0)->WakeUp({}).ok());
}

TEST_F(SharedDevicesTest, AnOperatorsCallThatFailsHoldsNothing) {
  Start(2, 1);
  models_[0].executor->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  EXPECT_FALSE(engine(0)->WakeUp({}).ok());
  ExpectExact(Submit(0, "a"));
  ExpectExact(Submit(1, "b"));
  ASSERT_EQ(engine(0)->state(), EngineState::kAsleep);
  models_[0].executor->FailNextLifecycleCall(absl::InternalError("no disk"));
  EXPECT_FALSE(engine(0)->Sleep({.level = 2}).ok());
  ExpectExact(Submit(0, "c"));
}

TEST_F(SharedDevicesTest, AWakeUpThatFailsLeavesWhatAnOperatorHolds) {
  Start(2, 2);
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  models_[0].executor->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  EXPECT_FALSE(engine(0)->WakeUp({}).ok());
  const Ticket waits = Submit(0, "a");
  ExpectExact(Submit(1, "b"));
  EXPECT_FALSE(waits.sink->done());
  ASSERT_TRUE(engine(0)->WakeUp({}).ok());
  ExpectExact(waits);
}

TEST_F(SharedDevicesTest, ASleepThatFailsIsTriedAgain) {
  Start(2, 1);
  models_[1].executor->FailNextLifecycleCall(absl::InternalError("no disk"));
  ExpectExact(Submit(0, "a"));
}

TEST_F(SharedDevicesTest, ABackupWithoutRoomIsToldOnceUntilABackupFindsRoom) {
  Start(2, 1);
  const auto times_told = [&](const std::string& requests, const absl::Status& backup_error) {
    models_[1].executor->SetBackupError(backup_error);
    testing::internal::CaptureStdout();
    for (int i = 0; i < 2; ++i) {  // each request of model 0 puts model 1 to sleep
      ExpectExact(Submit(0, absl::StrCat(requests, i)));
      ExpectExact(Submit(1, absl::StrCat(requests, i)));
    }
    const std::string log = testing::internal::GetCapturedStdout();
    return std::vector<std::string>(absl::StrSplit(log, "model 1: sleeps at level 2 until")).size() - 1;
  };
  const absl::Status no_room = absl::ResourceExhaustedError("no room on the disk");
  EXPECT_EQ(times_told("a", no_room), 1u);
  EXPECT_EQ(times_told("b", absl::OkStatus()), 0u);
  EXPECT_EQ(times_told("c", no_room), 1u);
}

// Level 2 would lose the weights, and so the sleep fails again and again.
TEST_F(SharedDevicesTest, AnOnlyCopyWhoseBackupFindsNoRoomIsTriedLaterAndLater) {
  first_pause_ = absl::Hours(1);
  max_wait_ = absl::Hours(1);
  Start(2, 1);
  ASSERT_TRUE((*engine(1)->BeginWeightUpdate({}))->Finish().ok());
  FakeExecutor& executor = *models_[1].executor;
  const size_t num_calls = executor.lifecycle_calls().size();
  executor.SetBackupError(absl::ResourceExhaustedError("no room on the disk"));
  const Ticket waits = Submit(0, "waits");
  while (executor.lifecycle_calls().size() == num_calls) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) ExpectExact(Submit(1, absl::StrCat(i)));
  EXPECT_EQ(executor.lifecycle_calls().size(), num_calls + 1);
  executor.SetBackupError(absl::OkStatus());
  // The end of the call that has failed may be noted later than the clock goes on.
  for (int i = 0; !waits.sink->done(); ++i) {
    ahead_s_ += 3600;
    ExpectExact(Submit(1, absl::StrCat("later ", i)));
  }
  ExpectExact(waits);
  EXPECT_EQ(executor.lifecycle_calls()[num_calls + 1].substr(0, 7), "sleep 1");
}

TEST_F(SharedDevicesTest, AfterAnOperatorsCallPausesOfFailedSleepsAreShortAgain) {
  first_pause_ = absl::Hours(1);
  longest_pause_ = absl::Hours(1000);
  max_wait_ = absl::Hours(1);
  Start(2, 1);
  ASSERT_TRUE((*engine(1)->BeginWeightUpdate({}))->Finish().ok());
  FakeExecutor& executor = *models_[1].executor;
  size_t num_calls = executor.lifecycle_calls().size();
  executor.SetBackupError(absl::ResourceExhaustedError("no room on the disk"));
  const Ticket waits = Submit(0, "waits");
  const auto await_next_try = [&] {
    while (executor.lifecycle_calls().size() == num_calls) std::this_thread::yield();
    ++num_calls;
  };
  // Goes on hour by hour, so the number may be one too large or too small.
  const auto hours_until_next_try = [&] {
    int hours = 0;
    while (executor.lifecycle_calls().size() == num_calls) {
      ahead_s_ += 3600;
      ExpectExact(Submit(1, absl::StrCat(num_calls, " ", ++hours)));
      absl::SleepFor(absl::Milliseconds(5));  // idle
    }
    ++num_calls;
    return hours;
  };
  await_next_try();
  for (const int pause : {1, 2, 4, 8, 16, 32}) EXPECT_GE(hours_until_next_try(), pause - 1);
  ASSERT_TRUE(engine(1)->WakeUp({}).ok());
  await_next_try();
  EXPECT_LT(hours_until_next_try(), 32) << "the next pause of the earlier failures is 64 hours";
  executor.SetBackupError(absl::OkStatus());
  ASSERT_TRUE(engine(1)->WakeUp({}).ok());
  ExpectExact(waits);
}

TEST_F(SharedDevicesTest, TheEndComesWhileAnOperatorWaits) {
  Start(2, 1);
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a", 100);
  auto woken = std::async(std::launch::async, [&] { return engine(0)->WakeUp({}).status(); });
  while (!Decided(ResidencyAction::kDrain, 1)) absl::SleepFor(absl::Milliseconds(1));
  models_[1].executor->Hold(false);
  for (const Served& model : models_) model.engine->DrainAndStop(absl::ZeroDuration());
  devices_->Stop();
  woken.wait();  // with the event that came first
}

TEST_F(SharedDevicesTest, RandomRequestsAreAllAnsweredExactly) {
  for (const ResidencyPolicy policy : {ResidencyPolicy::kFifo, ResidencyPolicy::kSlo}) {
    Start(6, 2, policy);
    std::mt19937 random(7);
    std::vector<Ticket> tickets;
    for (int i = 0; i < 60; ++i) {
      const int model = std::min(static_cast<int>(random() % 6), static_cast<int>(random() % 6));
      tickets.push_back(Submit(model, "r" + std::to_string(i), 1 + static_cast<int32_t>(random() % 20)));
      if (random() % 3 == 0) ExpectExact(tickets[random() % tickets.size()]);
    }
    for (const Ticket& ticket : tickets) ExpectExact(ticket);
    EXPECT_EQ(counter_->most(), 2);
    End();
  }
}

}  // namespace
}  // namespace somnus
