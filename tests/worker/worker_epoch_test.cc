// A worker through epochs: the calls that are refused, the work that a Fence ends, and the state that
// survives.

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/build_id.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker.h"

namespace somnus {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(60);  // for work of minutes that something ends

std::string RandomGroup() {
  std::random_device random;
  return absl::StrCat("epoch-test-", absl::Hex(random()), absl::Hex(random()));
}

absl::Status Load(Worker& worker, int64_t epoch = 1) {
  v1::LoadModelRequest request = LoadRequest();
  request.set_group_epoch(epoch);
  return worker.LoadModel(request, [](int64_t, int64_t) {}).status();
}

v1::NewGroupRequest NewGroupOf(int64_t epoch) {
  v1::NewGroupRequest request;
  request.set_group_epoch(epoch);
  return request;
}

v1::ProfileRequest ProfileOf(int64_t epoch) {
  v1::ProfileRequest request;
  request.set_group_epoch(epoch);
  return request;
}

absl::Status StepStatus(Worker& worker, int64_t id, int64_t epoch) {
  const v1::StepReply reply = RunStep(worker, EmptyStep(id, epoch));
  return absl::Status(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
}

class WorkerEpochTest : public testing::Test {
 protected:
  WorkerEpochTest() : worker_({.num_threads = 1}, FakeParts(&control_)) {}

  // Every call with that epoch.
  std::vector<absl::Status> CallAll(int64_t epoch) {
    return {worker_.CheckEpoch(epoch),
            worker_.NewGroup(NewGroupOf(epoch)).status(),
            Load(worker_, epoch),
            worker_.JoinGroup(JoinRequest(0, 1, "", epoch)),
            worker_.Profile(ProfileOf(epoch)).status(),
            worker_.AllocateKvCache(KvRequest(KvConfig(), epoch)).status(),
            StepStatus(worker_, 1, epoch),
            Sleep(worker_, 1, epoch).status(),
            WakeUp(worker_, {}, epoch).status()};
  }
  std::string State() { return worker_.GetStatus().state(); }

  FakeModelControl control_;
  Worker worker_;
};

TEST_F(WorkerEpochTest, NothingIsServedBeforeTheFirstFence) {
  for (const int64_t epoch : {0, 1}) {
    const std::string message =
        absl::StrCat("group_epoch: the request is of epoch ", epoch, ", this worker is in epoch 0");
    for (const absl::Status& status : CallAll(epoch))
      EXPECT_EQ(status, absl::FailedPreconditionError(message));
    EXPECT_TRUE(worker_.CheckShutdown(epoch).ok()) << epoch;
  }
  EXPECT_EQ(State(), "created");
}

TEST_F(WorkerEpochTest, NothingOfAnotherEpochIsServed) {
  ASSERT_TRUE(BeginEpoch(worker_, 5).ok());
  for (const int64_t epoch : {0, 3, 6}) {
    const std::string message =
        absl::StrCat("group_epoch: the request is of epoch ", epoch, ", this worker is in epoch 5");
    for (const absl::Status& status : CallAll(epoch))
      EXPECT_EQ(status, absl::FailedPreconditionError(message));
  }
  EXPECT_EQ(State(), "created");
  EXPECT_EQ(control_.opens, 0);
}

TEST_F(WorkerEpochTest, AFenceThatIsNotLaterIsRefusedOnceTheEpochIsUsed) {
  ASSERT_TRUE(BeginEpoch(worker_, 5).ok());
  EXPECT_TRUE(BeginEpoch(worker_, 5).ok()) << "the first reply may have been lost";
  ASSERT_TRUE(Load(worker_, 5).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(BeginEpoch(worker_, 5).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(BeginEpoch(worker_, 4).status()));
  EXPECT_TRUE(worker_.CheckEpoch(5).ok()) << "a refused Fence changes nothing";
}

TEST_F(WorkerEpochTest, StepIdsAscendByOne) {
  ASSERT_TRUE(MakeAwake(worker_).ok());
  EXPECT_EQ(StepStatus(worker_, 0, 1), absl::InvalidArgumentError("step_id: must be positive, not 0"));
  EXPECT_TRUE(StepStatus(worker_, 40, 1).ok()) << "an epoch may begin with any number";
  EXPECT_TRUE(StepStatus(worker_, 41, 1).ok());
  for (const int64_t id : {41, 40, 43}) {
    EXPECT_EQ(StepStatus(worker_, id, 1),
              absl::InvalidArgumentError(absl::StrCat("step_id: ", id, " does not follow 41")));
  }
  EXPECT_EQ(control_.steps, 2);
  EXPECT_TRUE(StepStatus(worker_, 42, 1).ok());
  ASSERT_TRUE(BeginEpoch(worker_, 2).ok());
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest(0, 1, "", 2)).ok());
  EXPECT_TRUE(StepStatus(worker_, 7, 2).ok());
}

TEST_F(WorkerEpochTest, TheGroupComesBeforeWhatNeedsIt) {
  ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(worker_.JoinGroup(JoinRequest()))) << "no weights yet";
  ASSERT_TRUE(Load(worker_).ok());
  const auto comes_first = [](const char* call) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": JoinGroup of epoch 1 comes first"));
  };
  EXPECT_EQ(worker_.Profile(ProfileOf(1)).status(), comes_first("Profile"));
  EXPECT_EQ(worker_.AllocateKvCache(KvRequest()).status(), comes_first("AllocateKvCache"));
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.JoinGroup(JoinRequest(1, 2, "g")))) << "other weights";
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(worker_.JoinGroup(JoinRequest()))) << "joined already";
  ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  ASSERT_TRUE(BeginEpoch(worker_, 2).ok());
  EXPECT_EQ(StepStatus(worker_, 1, 2),
            absl::FailedPreconditionError("Execute: JoinGroup of epoch 2 comes first"));
  EXPECT_EQ(State(), "awake") << "a step that came too early is no failure";
}

TEST_F(WorkerEpochTest, SurvivorsKeepTheirWeights) {
  ASSERT_TRUE(MakeAwake(worker_).ok());
  control_.execute_error = absl::InternalError("boom");
  EXPECT_EQ(StepStatus(worker_, 1, 1), absl::InternalError("boom"));
  EXPECT_EQ(State(), "failed");
  EXPECT_EQ(Sleep(worker_, 1).status(), absl::InternalError("boom"));
  control_.execute_error = absl::OkStatus();
  const auto snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->state(), "awake");
  EXPECT_EQ(control_.epochs, 1) << "the runner forgets the batch";
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest(0, 1, "", 2)).ok());
  EXPECT_EQ(RunStep(worker_, EmptyStep(9, 2)).tokens(0).token_id(), 16);
  EXPECT_EQ(control_.opens, 1);
}

TEST_F(WorkerEpochTest, ASleeperStaysAsleep) {
  ASSERT_TRUE(MakeAwake(worker_).ok());
  for (const int level : {1, 2}) {
    const int64_t epoch = level + 1;
    ASSERT_TRUE(Sleep(worker_, level, epoch - 1).ok());
    const auto snapshot = BeginEpoch(worker_, epoch);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->state(), "asleep");
    EXPECT_EQ(snapshot->sleep_level(), level);
    EXPECT_EQ(snapshot->resident_tags_size(), 0);
    ASSERT_TRUE(worker_.JoinGroup(JoinRequest(0, 1, "", epoch)).ok());
    ASSERT_TRUE(WakeUp(worker_, {}, epoch).ok());
    EXPECT_EQ(RunStep(worker_, EmptyStep(1, epoch)).tokens(0).token_id(), 8);
  }
  EXPECT_EQ(control_.reloads, 1) << "of level 2 alone";
}

TEST_F(WorkerEpochTest, WhatCannotBeUndoneStaysFailed) {
  ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
  control_.load_error = absl::DataLossError("a bad tensor");
  EXPECT_FALSE(Load(worker_).ok());
  const auto snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ(snapshot->state(), "failed");
  EXPECT_EQ(Load(worker_, 2), absl::DataLossError("a bad tensor"));
}

TEST_F(WorkerEpochTest, ADeviceThatDoesNotRecoverFailsTheWorkerForGood) {
  ASSERT_TRUE(MakeAwake(worker_).ok());
  control_.epoch_error = absl::InternalError("an illegal memory access was encountered");
  EXPECT_EQ(BeginEpoch(worker_, 2).status(), control_.epoch_error);
  control_.epoch_error = absl::OkStatus();
  EXPECT_EQ(BeginEpoch(worker_, 3)->state(), "failed");
}

TEST_F(WorkerEpochTest, AFailedProfileEndsWithTheEpoch) {
  ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
  ASSERT_TRUE(Load(worker_).ok());
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
  control_.profile_error = absl::AbortedError("rank 1 failed");
  EXPECT_EQ(worker_.Profile(ProfileOf(1)).status(), control_.profile_error);
  EXPECT_EQ(State(), "failed");
  EXPECT_EQ(BeginEpoch(worker_, 2)->state(), "loaded");
}

// The reply of a step of epoch 1 is awaited in epoch 2 only, when the step's error concerns nobody any
// longer.
TEST_F(WorkerEpochTest, AnErrorThatComesAfterItsEpochFailsNothing) {
  ASSERT_TRUE(MakeAwake(worker_).ok());
  control_.wait_errors = {absl::AbortedError("epoch 2 begins")};
  Worker::AwaitReply late;
  absl::Notification launched;
  worker_.ExecuteAsync(EmptyStep(1), [&](Worker::AwaitReply step) {
    late = std::move(step);
    launched.Notify();
  });
  launched.WaitForNotification();
  ASSERT_TRUE(BeginEpoch(worker_, 2).ok());
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest(0, 1, "", 2)).ok());
  EXPECT_EQ(late().error_message(), "epoch 2 begins");
  EXPECT_EQ(State(), "awake");
  EXPECT_TRUE(StepStatus(worker_, 1, 2).ok());
}

// A long load is not ended: the Fence says so, and a second Fence succeeds.
TEST_F(WorkerEpochTest, AFenceDuringALoadCanBeSentAgain) {
  ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
  absl::Notification hold, ended_streams;
  control_.hold_load = &hold;
  std::thread load([&] { EXPECT_TRUE(Load(worker_).ok()); });
  while (control_.opens == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      worker_.Fence(2, absl::Milliseconds(1), [&] { ended_streams.Notify(); }).status()));
  EXPECT_TRUE(ended_streams.HasBeenNotified());
  EXPECT_TRUE(absl::IsFailedPrecondition(worker_.CheckEpoch(1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(worker_.CheckEpoch(2))) << "not before the Fence has succeeded";
  hold.Notify();
  load.join();
  const auto snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->state(), "loaded") << "what was read is kept";
}

TEST_F(WorkerEpochTest, TheSnapshotTellsWhatTheWorkerHolds) {
  const auto created = BeginEpoch(worker_, 3);
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(created->state(), "created");
  EXPECT_EQ(created->group_epoch(), 3);
  EXPECT_EQ(created->weights_version(), 0);
  EXPECT_EQ(created->num_blocks(), 0);
  EXPECT_EQ(created->build_id(), BuildId());
  EXPECT_EQ(created->options_digest(), "");
  v1::LoadModelRequest request = LoadRequest(1, 2);
  request.set_group_epoch(3);
  request.set_weights_version(8);
  ASSERT_TRUE(worker_.LoadModel(request, [](int64_t, int64_t) {}).ok());
  ASSERT_TRUE(worker_.AllocateKvCache(KvRequest(KvConfig(32), 3, /*defer_graphs=*/true)).ok());
  const v1::WorkerSnapshot snapshot = worker_.Snapshot();
  EXPECT_EQ(snapshot.rank(), 1);
  EXPECT_EQ(snapshot.world_size(), 2);
  EXPECT_EQ(snapshot.weights_version(), 8);
  EXPECT_EQ(snapshot.checkpoint_fingerprint(), "fingerprint of fake");
  EXPECT_EQ(snapshot.num_blocks(), 32);
  EXPECT_EQ(snapshot.options_digest().size(), 16u);
  const std::vector<std::string> tags(snapshot.resident_tags().begin(), snapshot.resident_tags().end());
  EXPECT_EQ(tags, (std::vector<std::string>{"kv_cache", "weights", "workspace"}));
  EXPECT_EQ(worker_.GetStatus().weights_version(), 8);
  EXPECT_EQ(worker_.GetStatus().group_epoch(), 3);
}

// A coordinator that comes between the load and the KV cache learns how the cache would begin.
TEST_F(WorkerEpochTest, TheSnapshotOfALoadForASleepingGroupHasTheLevel) {
  ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
  v1::LoadModelRequest request = LoadRequest();
  request.set_sleep_level(1);
  request.add_asleep_tags("kv_cache");
  ASSERT_TRUE(worker_.LoadModel(request, [](int64_t, int64_t) {}).ok());
  EXPECT_EQ(worker_.Snapshot().state(), "loaded");
  EXPECT_EQ(worker_.Snapshot().sleep_level(), 1);
  EXPECT_EQ(worker_.GetStatus().sleep_level(), 0);
}

class WorkerPairTest : public testing::Test {
 protected:
  WorkerPairTest() {
    for (FakeModelControl& control : controls_)
      workers_.push_back(std::make_unique<Worker>(WorkerOptions{.num_threads = 1}, FakeParts(&control)));
  }

  void MakeBothAwake() {
    const std::string group = RandomGroup();
    std::thread other([&] { EXPECT_TRUE(MakeAwake(*workers_[1], 1, 2, group).ok()); });
    EXPECT_TRUE(MakeAwake(*workers_[0], 0, 2, group).ok());
    other.join();
  }
  // Both ranks in the group of `epoch`, which has begun.
  void JoinBoth(int64_t epoch) {
    const std::string group = RandomGroup();
    std::thread other([&] { EXPECT_TRUE(workers_[1]->JoinGroup(JoinRequest(1, 2, group, epoch)).ok()); });
    EXPECT_TRUE(workers_[0]->JoinGroup(JoinRequest(0, 2, group, epoch)).ok());
    other.join();
  }
  void StepBoth(int64_t epoch) {
    absl::Status other_status;
    std::thread other([&] { other_status = StepStatus(*workers_[1], 1, epoch); });
    EXPECT_TRUE(StepStatus(*workers_[0], 1, epoch).ok());
    other.join();
    EXPECT_TRUE(other_status.ok()) << other_status;
  }

  FakeModelControl controls_[2];
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Rank 1 never gets the step: rank 0 is in a collective whose timeout is minutes.
TEST_F(WorkerPairTest, AFenceEndsTheCollectiveUnderWay) {
  MakeBothAwake();
  absl::Status blocked;
  absl::Notification replied;
  workers_[0]->ExecuteAsync(EmptyStep(1), [&](const Worker::AwaitReply& step) {
    const v1::StepReply reply = step();
    blocked = absl::Status(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
    replied.Notify();
  });
  while (controls_[0].steps == 0) absl::SleepFor(absl::Milliseconds(1));
  for (auto& worker : workers_) {
    const auto snapshot = worker->Fence(2, kSoon, [] {});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->state(), "awake");
  }
  replied.WaitForNotification();
  EXPECT_EQ(blocked, absl::AbortedError("epoch 2 begins"));
  JoinBoth(2);
  StepBoth(2);
  for (const FakeModelControl& control : controls_) EXPECT_EQ(control.opens, 1);
}

TEST_F(WorkerPairTest, AFenceEndsAGroupThatForms) {
  MakeBothAwake();
  for (auto& worker : workers_) ASSERT_TRUE(BeginEpoch(*worker, 2).ok());
  absl::Status joined;
  std::thread join([&] { joined = workers_[0]->JoinGroup(JoinRequest(0, 2, RandomGroup(), 2)); });
  for (auto& worker : workers_) ASSERT_TRUE(worker->Fence(3, kSoon, [] {}).ok());
  join.join();
  // Aborted during the wait for rank 1; or the call came too late to begin.
  EXPECT_TRUE(absl::IsAborted(joined) || absl::IsFailedPrecondition(joined)) << joined;
  JoinBoth(3);
  StepBoth(3);
}

TEST_F(WorkerPairTest, ANewcomerTakesTheLostRanksPlace) {
  MakeBothAwake();
  workers_[1].reset();
  EXPECT_FALSE(StepStatus(*workers_[0], 1, 1).ok());
  ASSERT_TRUE(BeginEpoch(*workers_[0], 2).ok());
  FakeModelControl newcomer;
  workers_[1] = std::make_unique<Worker>(WorkerOptions{.num_threads = 1}, FakeParts(&newcomer));
  ASSERT_TRUE(BeginEpoch(*workers_[1], 2).ok());
  v1::LoadModelRequest load = LoadRequest(1, 2);
  load.set_group_epoch(2);
  ASSERT_TRUE(workers_[1]->LoadModel(load, [](int64_t, int64_t) {}).ok());
  JoinBoth(2);
  ASSERT_TRUE(workers_[1]->AllocateKvCache(KvRequest(KvConfig(), 2, /*defer_graphs=*/true)).ok());
  StepBoth(2);
  EXPECT_EQ(controls_[0].opens, 1) << "the survivor reads nothing again";
}

}  // namespace
}  // namespace somnus
