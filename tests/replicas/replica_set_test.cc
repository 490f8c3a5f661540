// Several replicas behind one queue: clients get the tokens of an undisturbed run, whichever replica serves,
// and whichever dies.

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "coordinator/engine/caller.h"
#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaSetTest, ::testing::Bool());

TEST_P(ReplicaSetTest, AllReplicasServe) {
  RecordingObserver observer;
  Start(3, &observer);
  ExpectExact(SubmitMany(14));
  const EngineStats stats = set_->Stats();
  ASSERT_EQ(stats.replicas.size(), 3u);
  for (const ReplicaStats& replica : stats.replicas) EXPECT_GE(replica.num_requests, 1);
  EXPECT_EQ(stats.generation_tokens, 14 * 60);
  EXPECT_EQ(stats.total_blocks, 3 * 63);
  EXPECT_EQ(stats.num_moved, 0);
  EXPECT_EQ(observer.finished().size(), 14u);
  EXPECT_TRUE(observer.times_are_ordered());
}

TEST_P(ReplicaSetTest, ThePrefixDecidesWhereItIsKnown) {
  Start();
  for (int i = 0; i < 6; ++i) {
    const Ticket ticket = Submit("a" + std::to_string(i), 33, 4);
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->num_cached_tokens(), i == 0 ? 0 : 32) << i;
  }
  const Ticket other = MakeTicket("salted", 33, 4);
  EngineRequest salted = other.request;
  salted.cache_salt = "salt";
  ASSERT_TRUE(set_->Submit(salted).ok());
  ASSERT_TRUE(other.sink->Wait());
  EXPECT_EQ(other.sink->num_cached_tokens(), 0);
  const EngineStats stats = set_->Stats();
  const std::multiset<int64_t> requests = {stats.replicas[0].num_requests, stats.replicas[1].num_requests};
  EXPECT_EQ(requests, (std::multiset<int64_t>{1, 6}));
}

TEST_P(ReplicaSetTest, RequestsOfALostReplicaGoOnAtAnotherOne) {
  RecordingObserver observer;
  Start(2, &observer);
  executors_[0]->FailStep(12, kLoss);
  const std::vector<Ticket> tickets = SubmitMany(6);
  AwaitReplica(0, EngineState::kRecovering);
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  EXPECT_TRUE(set_->Health().ok());
  ExpectExact(tickets);  // while the replica has not come back
  const EngineStats stats = set_->Stats();
  EXPECT_GE(stats.num_moved, 1);
  EXPECT_EQ(stats.generation_tokens, 6 * 60);
  EXPECT_EQ(observer.output_tokens(), 6 * 60);
  EXPECT_EQ(observer.finished().size(), 6u);
  executors_[0]->FinishRecovery(absl::OkStatus());
  AwaitReplica(0, EngineState::kAwake);
  Await([&] { return set_->Stats().num_recoveries == 1; });
  ExpectExact({Submit("0", 5, 20)});  // the id is free again
}

TEST_P(ReplicaSetTest, WhenAllAreLostRequestsWaitForTheFirstThatComesBack) {
  Start();
  for (const auto& executor : executors_) executor->FailStep(8, kLoss);
  std::vector<Ticket> tickets = SubmitMany(6);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  EXPECT_FALSE(set_->Health().ok());
  tickets.push_back(Submit("late", 5, 60));
  Await([&] { return set_->Stats().num_waiting == 7; });
  executors_[1]->FinishRecovery(absl::OkStatus());
  ExpectExact(tickets);
  EXPECT_EQ(set_->state(), EngineState::kAwake);
}

TEST_P(ReplicaSetTest, AReplicaThatFailsIsNotTheEnd) {
  Start();
  executors_[0]->FailStep(8, kLoss);
  std::vector<Ticket> tickets = SubmitMany(6);
  AwaitReplica(0, EngineState::kRecovering);
  executors_[0]->FinishRecovery(absl::ResourceExhaustedError("no memory"));
  AwaitReplica(0, EngineState::kFailed);
  tickets.push_back(Submit("later", 5, 60));
  ExpectExact(tickets);
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  EXPECT_EQ(set_->Stats().replicas[0].error, "no memory");
  EXPECT_EQ(set_->Stats().error, "");
}

TEST_P(ReplicaSetTest, TheLastReplicaThatFailsIs) {
  Start();
  for (const auto& executor : executors_) executor->FailStep(8, kLoss);
  const std::vector<Ticket> tickets = SubmitMany(12);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  for (const auto& executor : executors_) executor->FinishRecovery(absl::ResourceExhaustedError("no memory"));
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
  }
  EXPECT_EQ(set_->state(), EngineState::kFailed);
  EXPECT_EQ(set_->Stats().error, "replica 0: no memory; replica 1: no memory");
  EXPECT_TRUE(absl::IsUnavailable(set_->Submit(MakeTicket("x", 5, 5).request)));
}

// A request that is in flight at every failure ends before the request has killed more workers than with a
// single replica.
TEST_P(ReplicaSetTest, ARequestThatKillsWorkersEndsAfterItsFailures) {
  options_.max_recoveries_per_request = 2;
  Start(3);
  for (const auto& executor : executors_) {
    executor->SetRecovery(Recovery::kSucceeds);
    executor->FailStep(2, kLoss);
  }
  const Ticket poison = Submit("poison", 5, 60);
  ASSERT_TRUE(poison.sink->Wait());
  EXPECT_EQ(poison.sink->reason(), FinishReason::kError);
  Await([&] { return set_->Stats().num_recoveries == 3; });
  ExpectExact({Submit("after", 5, 20)});
}

TEST_P(ReplicaSetTest, WhatWaitsInTheQueueIsBoundedAbortedAndExpires) {
  options_.scheduler.max_num_seqs = 1;
  options_.queue.max_num_waiting = 8;
  SchedulingObserver observer;
  Start(2, &observer);
  for (const auto& executor : executors_) executor->Hold(true);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 10; ++i) {
    tickets.push_back(Submit(std::to_string(i), 5, 10, 50 * i + 1));
    Await([&] { return observer.num_scheduled == std::min(i + 1, 2); });
  }
  // Two run, eight wait.
  EXPECT_TRUE(absl::IsResourceExhausted(set_->Submit(MakeTicket("x", 5, 5).request)));
  EXPECT_TRUE(absl::IsInvalidArgument(set_->Submit(MakeTicket("9", 5, 5).request))) << "the id is in use";
  set_->Abort("9");
  ASSERT_TRUE(tickets[9].sink->Wait());
  EXPECT_EQ(tickets[9].sink->reason(), FinishReason::kAbort);
  Ticket expires = MakeTicket("expires", 5, 5);
  expires.request.deadline = MonotonicNow() + absl::Milliseconds(1);
  ASSERT_TRUE(set_->Submit(expires.request).ok());
  ASSERT_TRUE(expires.sink->Wait());
  EXPECT_TRUE(absl::IsDeadlineExceeded(expires.sink->error()));
  for (const auto& executor : executors_) executor->Hold(false);
  tickets.pop_back();
  ExpectExact(tickets);
  EXPECT_EQ(set_->Stats().num_waiting, 0);
}

TEST_P(ReplicaSetTest, UrgentRequestsGoFirst) {
  options_.scheduler.policy = SchedulingPolicy::kPriority;
  options_.scheduler.max_num_seqs = 1;
  RecordingObserver observer;
  Start(2, &observer);
  for (const auto& executor : executors_) executor->Lose(kLoss);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  std::vector<Ticket> tickets;
  for (int i = 0; i < 6; ++i) {
    Ticket ticket = MakeTicket(std::to_string(i), 5, 8, 50 * i + 1);
    ticket.request.priority = 6 - i;
    ASSERT_TRUE(set_->Submit(ticket.request).ok());
    tickets.push_back(ticket);
  }
  executors_[0]->FinishRecovery(absl::OkStatus());
  ExpectExact(tickets);
  EXPECT_EQ(observer.finished(), (std::vector<std::string>{"5", "4", "3", "2", "1", "0"}));
}

TEST_P(ReplicaSetTest, TheReasonOfAStateNamesTheOperatorWhoCalled) {
  Start();
  {
    const CallerScope scope({.name = "127.0.0.1:1 (HTTP)", .has_left = [] { return false; }});
    ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  }
  EXPECT_EQ(set_->Stats().note.why, "an operator has called sleep");
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  EXPECT_EQ(set_->Stats().note.why, "the server itself has called sleep");
  const CallerScope scope({.name = "127.0.0.1:1 (HTTP)", .has_left = [] { return false; }});
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  EXPECT_EQ(set_->Stats().note.why, "an operator has called sleep") << "and nothing was left to do";
}

TEST_P(ReplicaSetTest, SleepAndWakeUpReachAllReplicas) {
  Start();
  std::vector<EngineState> states;
  absl::Mutex mu;
  set_->OnStateChange([&] {
    absl::MutexLock lock(&mu);
    states.push_back(set_->state());
  });
  std::vector<Ticket> tickets = SubmitMany(6);
  tickets[0].sink->WaitForTokens(10);
  const absl::StatusOr<TransitionReport> freed = set_->Sleep({.level = 1});
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"kv_cache", 200}, {"weights", 400}, {"workspace", 600}}));
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  EXPECT_EQ(set_->Stats().sleep_level, 1);
  tickets.push_back(Submit("asleep", 5, 20));
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact(tickets);
  for (const auto& executor : executors_) {
    EXPECT_EQ(executor->lifecycle_calls(),
              (std::vector<std::string>{"sleep 1", "wake kv_cache weights workspace"}));
  }
  set_->OnStateChange(nullptr);
  absl::MutexLock lock(&mu);
  EXPECT_EQ(states,
            (std::vector<EngineState>{EngineState::kAwake, EngineState::kFallingAsleep, EngineState::kAsleep,
                                      EngineState::kWaking, EngineState::kAwake}));
}

TEST_P(ReplicaSetTest, ASleepThatFailsOnOneReplicaIsUndoneOnTheOthers) {
  Start(3);
  // With the second list of tags the workspace goes along.
  for (const std::vector<std::string>& tags : {std::vector<std::string>(), {"weights", "kv_cache"}}) {
    executors_[1]->FailNextLifecycleCall(absl::ResourceExhaustedError("no host memory"));
    const absl::StatusOr<TransitionReport> freed = set_->Sleep({.level = 1, .tags = tags});
    EXPECT_EQ(freed.status(), absl::ResourceExhaustedError("replica 1: no host memory"));
    EXPECT_EQ(set_->state(), EngineState::kAwake);
    for (const ReplicaStats& replica : set_->Stats().replicas) EXPECT_EQ(replica.state, EngineState::kAwake);
  }
  ExpectExact(SubmitMany(6));
}

TEST_P(ReplicaSetTest, AWakeUpThatFailsOnOneReplicaIsUndoneOnTheOthers) {
  Start(3);
  ASSERT_TRUE(set_->Sleep({.level = 2}).ok());
  executors_[1]->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(set_->WakeUp({}).status(), absl::ResourceExhaustedError("replica 1: no memory"));
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  EXPECT_EQ(set_->Stats().sleep_level, 2);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact(SubmitMany(6));
}

TEST_P(ReplicaSetTest, ALossAsleepLeavesTheOthersAsleep) {
  Start();
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kRecovering);
  const Ticket ticket = Submit("a", 5, 20);
  executors_[0]->FinishRecovery(absl::OkStatus());
  AwaitReplica(0, EngineState::kAsleep);
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({ticket});
}

TEST_P(ReplicaSetTest, AfterAResetNothingIsCached) {
  Start();
  for (const int cached : {0, 32}) {
    const Ticket ticket = Submit("a", 33, 4);
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->num_cached_tokens(), cached);
  }
  ASSERT_TRUE(set_->ResetPrefixCache(false).ok());
  const Ticket ticket = Submit("b", 33, 4);
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->num_cached_tokens(), 0);
}

// The sizes of KV caches are chosen by the snapshot's numbers.
TEST_P(ReplicaSetTest, TheSnapshotCountsTheQueue) {
  Start();
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  const std::vector<Ticket> tickets = {Submit("a", 5, 20), Submit("b", 7, 20, 500)};
  const EngineStats stats = set_->Stats();
  EXPECT_EQ(stats.num_waiting, 2);
  EXPECT_EQ(stats.waiting_tokens, 5 + 7);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact(tickets);
  EXPECT_EQ(set_->Stats().waiting_tokens, 0);
}

TEST_P(ReplicaSetTest, DrainingFinishesWhatIsOpenAlsoWhenAReplicaIsLost) {
  Start();
  const std::vector<Ticket> tickets = SubmitMany(6, 150);
  tickets[0].sink->WaitForTokens(3);
  std::thread drain([&] { set_->DrainAndStop(absl::Minutes(1)); });
  Await([&] { return set_->state() == EngineState::kDraining; });
  EXPECT_TRUE(absl::IsUnavailable(set_->Submit(MakeTicket("late", 5, 5).request)));
  EXPECT_TRUE(absl::IsFailedPrecondition(set_->Sleep({.level = 1}).status()));
  executors_[0]->Lose(kLoss);
  ExpectExact(tickets);
  drain.join();
}

TEST_P(ReplicaSetTest, WithoutGraceEverythingIsAborted) {
  options_.scheduler.max_num_seqs = 1;
  Start();
  const std::vector<Ticket> tickets = SubmitMany(12, 150);
  set_->DrainAndStop(absl::ZeroDuration());
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    if (ticket.sink->reason() != FinishReason::kLength) {
      EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
    }
  }
}

TEST_P(ReplicaSetTest, OnlyWhatEveryReplicaCanServeIsAccepted) {
  std::vector<ReplicaOptions> replicas;
  for (const int32_t num_blocks : {64, 20}) {
    options_.scheduler.blocks.num_blocks = num_blocks;
    executors_.push_back(std::make_unique<FakeExecutor>(SmallWorker(options_)));
    replicas.push_back({options_, executors_.back().get()});
  }
  set_ = std::make_unique<ReplicaSet>(std::move(replicas), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(set_->Submit(MakeTicket("a", 70, 10).request)));
  ExpectExact({Submit("b", 66, 10)});
}

// Many requests, aborts, losses and sleeps at random: every request ends once, and with exact tokens unless
// aborted.
TEST_P(ReplicaSetTest, RandomLosses) {
  options_.queue.max_num_waiting = 1000;
  options_.max_recoveries = 1000;
  options_.max_recoveries_per_request = 1000;
  options_.scheduler.blocks.num_blocks = 40;  // so that sequences are preempted
  Start(3);
  for (const auto& executor : executors_) executor->SetRecovery(Recovery::kSucceeds);
  std::mt19937 random(GetParam() ? 7 : 8);
  std::vector<Ticket> tickets;
  std::set<std::string> aborted;
  for (int i = 0; i < 150; ++i) {
    tickets.push_back(Submit(std::to_string(i), 5 + static_cast<int32_t>(random() % 40),
                             1 + static_cast<int32_t>(random() % 60),
                             static_cast<int32_t>(random() % 5) * 100 + 1));
    const uint32_t what = random() % 12;
    if (what < 3) executors_[what]->Lose(kLoss);
    if (what == 3) {
      const std::string id = std::to_string(random() % tickets.size());
      set_->Abort(id);
      aborted.insert(id);
    }
    if (what == 4 && i % 3 == 0) {
      EXPECT_TRUE(set_->Sleep({.level = 1}).ok());
      EXPECT_TRUE(set_->WakeUp({}).ok());
    }
    if (what > 8) tickets.back().sink->WaitForTokens(1);
  }
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait()) << ticket.request.id;
    if (aborted.count(ticket.request.id) == 0) ExpectExact({ticket});
  }
  Await([&] { return set_->Stats().used_blocks == 0; });
  EXPECT_GE(set_->Stats().num_moved, 1);
}

}  // namespace
}  // namespace somnus
