// A group over fake workers that come by themselves: the first epoch, and the group after losses of workers.

#include "coordinator/group/worker_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fakes/fake_member.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;

class WorkerGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    flags_.model = "model";
    flags_.local_workers = false;
    flags_.world_size = 2;
    flags_.cluster_host = "127.0.0.1";
    flags_.cluster_port = 0;
    flags_.engine.scheduler.max_num_seqs = 4;
    flags_.engine.scheduler.preemption = PreemptionMode::kRecompute;
    config_.stored_type = StorageType::kF32;
  }
  void TearDown() override {
    group_.reset();
    members_.clear();
  }

  void StartGroup() {
    group_ = std::make_unique<WorkerGroup>(flags_);
    const absl::Status started = group_->Start(config_, 64, "f00d", weights_version_);
    ASSERT_TRUE(started.ok()) << started;
    coordinator_ = group_->cluster_address();
  }
  FakeWorkerService& Join(
      const std::string& id, int rank, const FakeMember::Prepare& prepare = [](FakeWorkerService&) {}) {
    members_.push_back(std::make_unique<FakeMember>(coordinator_, directory_.path(), id, rank, prepare));
    return members_.back()->service();
  }
  // Two workers, "a" and "b", which serve the first epoch.
  void Launch() {
    StartGroup();
    Join("a", 0);
    Join("b", 1);
    const absl::StatusOr<KvPlan> plan = group_->Load();
    ASSERT_TRUE(plan.ok()) << plan.status();
    num_blocks_ = plan->num_blocks;
    group_->executor()->OnRecovered([this](const absl::Status& status) {
      recovered_ = status;
      ended_->Notify();
    });
  }
  // A new coordinator comes, at which the present workers register.
  void Restart() {
    group_.reset();
    StartGroup();
    for (const auto& member : members_) member->RegisterAgain(coordinator_);
  }
  // The worker is lost, and the engine asks for a recovery.
  void Lose(size_t member, const Held& held) {
    absl::Notification failed;
    group_->executor()->OnFailure([&](const absl::Status&) { failed.Notify(); });
    members_[member]->Die();
    failed.WaitForNotification();
    group_->executor()->OnFailure(nullptr);
    group_->executor()->Recover(held);
  }
  // Waits for the end of a call that changes the weights.
  template <typename Call>
  absl::Status Change(const Call& call) {
    absl::Notification ended;
    absl::Status status;
    call([&](const WeightsOutcome& outcome) {
      status = outcome.status;
      ended.Notify();
    });
    ended.WaitForNotification();
    return status;
  }
  absl::Status AwaitRecovery() {
    ended_->WaitForNotification();
    ended_ = std::make_unique<absl::Notification>();
    return recovered_;
  }
  std::string Allocate(const char* how = "") const { return absl::StrCat("allocate ", num_blocks_, how); }
  Calls CallsOf(size_t member) {
    Calls calls = members_[member]->service().calls();
    // Names of groups are random but for the epoch at the end.
    for (std::string& call : calls) {
      if (absl::StartsWith(call, "join ")) call = absl::StrCat("join ", call.substr(call.rfind('-') + 1));
    }
    return calls;
  }

  const TempDir directory_;
  std::string coordinator_;
  Flags flags_;
  ModelConfig config_;
  int64_t weights_version_ = 1;  // at the start of a group
  int32_t num_blocks_ = 0;
  absl::Status recovered_;
  std::unique_ptr<absl::Notification> ended_ = std::make_unique<absl::Notification>();
  std::vector<std::unique_ptr<FakeMember>> members_;
  std::unique_ptr<WorkerGroup> group_;
};

TEST_F(WorkerGroupTest, TheStartTellsWhenAllWorkersHaveWeights) {
  StartGroup();
  EXPECT_FALSE(group_->HasWeights());
  const auto hold = [](const char* call) {
    return [call](FakeWorkerService& service) { service.HoldCalls(call); };
  };
  FakeWorkerService& loads = Join("a", 0, hold("load 0/2"));
  FakeWorkerService& profiles = Join("b", 1, hold("profile"));
  std::future<absl::StatusOr<KvPlan>> plan = std::async(std::launch::async, [&] { return group_->Load(); });
  while (group_->NumCome() < 2 || CallsOf(1).size() < 2) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(group_->HasWeights()) << "one worker loads";
  loads.ReleaseCalls();
  while (!group_->HasWeights()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_NE(plan.wait_for(std::chrono::seconds(0)), std::future_status::ready)
      << "one worker has no cache yet";
  profiles.ReleaseCalls();
  EXPECT_TRUE(plan.get().ok());
}

TEST_F(WorkerGroupTest, TheFirstEpochLoadsEverywhere) {
  Launch();
  EXPECT_EQ(group_->executor()->group_epoch(), 1);
  EXPECT_EQ(CallsOf(0), (Calls{"fence 1", "load 0/2", "join 1", "profile", Allocate()}));
  EXPECT_EQ(CallsOf(1), (Calls{"fence 1", "load 1/2", "join 1", "profile", Allocate()}));
  EXPECT_GT(num_blocks_, 1);
}

TEST_F(WorkerGroupTest, ANewcomerTakesTheLostPlaceAndTheSurvivorKeepsItsWeights) {
  Launch();
  Lose(1, Residency());
  Join("c", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(group_->executor()->group_epoch(), 2);
  EXPECT_TRUE(group_->executor()->Health().ok());
  EXPECT_EQ(CallsOf(0), (Calls{"fence 1", "load 0/2", "join 1", "profile", Allocate(), "fence 2", "join 2"}));
  EXPECT_EQ(CallsOf(2), (Calls{"fence 2", "load 1/2", "join 2", Allocate(" without graphs")}));
  EXPECT_EQ(group_->RankStatuses()[1].error(), "");
}

// Blocks have 10 and 11 bytes.
TEST_F(WorkerGroupTest, EveryRankGetsAsLargeAHostTier) {
  flags_.keep_kv_on_sleep = true;
  flags_.swap_space_bytes = 60;
  Launch();
  for (const size_t member : {0, 1}) EXPECT_EQ(CallsOf(member).back(), Allocate(" and 5 on the host"));
  Lose(1, Residency());
  Join("c", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(CallsOf(2).back(), Allocate(" and 5 on the host without graphs"));
  group_->Leave();
  members_.erase(members_.begin() + 1);
  flags_.swap_space_bytes = 600;
  Restart();
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_host_blocks, 5) << "the workers that were adopted have no more";
}

TEST_F(WorkerGroupTest, SequencesThatAreSwappedOutMayHaveMoreBlocksThanTheCache) {
  flags_.engine.scheduler.preemption = PreemptionMode::kAuto;
  Launch();
  EXPECT_EQ(CallsOf(0).back(), absl::StrCat(Allocate(), " and ", 8 * (num_blocks_ - 1), " on the host"));
}

TEST_F(WorkerGroupTest, ANewcomerFallsAsleepWithItsGroup) {
  Launch();
  ASSERT_TRUE(members_[0]->service().calls().size() > 0);
  absl::Notification slept;
  group_->executor()->SleepAsync({.level = 2}, {},
                                 [&](const absl::StatusOr<TransitionReport>&) { slept.Notify(); });
  slept.WaitForNotification();
  Residency held;
  held.Slept({.level = 2});
  Lose(0, held);
  Join("c", 0);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(CallsOf(2), (Calls{"fence 2", "load 0/2 asleep 2 kv_cache weights workspace", "join 2",
                               Allocate(" without graphs")}))
      << "it never takes the memory, which may be a trainer's by now";
}

TEST_F(WorkerGroupTest, ANewcomerLoadsTheCheckpointThatTheGroupHasRead) {
  Launch();
  EXPECT_EQ(group_->weights().path, "model");
  EXPECT_EQ(group_->weights().fingerprint, "f00d");
  ASSERT_TRUE(Change([&](auto done) { group_->executor()->ReloadWeightsAsync("new", 5, done); }).ok());
  Lose(1, {Residency(), {.version = 5, .path = "new", .fingerprint = "of new"}});
  Join("c", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  const v1::WorkerSnapshot newcomer = members_[2]->service().Snapshot();
  EXPECT_EQ(newcomer.weights_version(), 5);
  EXPECT_EQ(newcomer.checkpoint_fingerprint(), "of new");
  EXPECT_TRUE(group_->executor()->recovered().residency.awake());
}

// A newcomer has none of an update's tensors: nobody may serve, and nobody may read the old checkpoint.
TEST_F(WorkerGroupTest, WeightsOfAnUpdateAreStaleEverywhereOnceARankIsNew) {
  Launch();
  ASSERT_TRUE(Change([&](auto done) { group_->executor()->BeginWeightUpdateAsync("u", "", {}, done); }).ok());
  ASSERT_TRUE(
      Change([&](auto done) { group_->executor()->FinishWeightUpdateAsync(5, std::nullopt, done); }).ok());
  const Weights weights = {.version = 5, .path = "model", .fingerprint = "f00d", .update_id = "u"};
  Lose(1, {Residency(), weights});
  Join("c", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_TRUE(group_->executor()->recovered().residency.weights_stale());
  EXPECT_FALSE(group_->executor()->recovered().weights.readable());
  EXPECT_EQ(CallsOf(2), (Calls{"fence 2", "load 1/2 none", "join 2", Allocate(" without graphs")}));
  EXPECT_EQ(CallsOf(0).back(), "begin update");
  for (const size_t member : {0, 2}) EXPECT_TRUE(members_[member]->service().Snapshot().weights_stale());
  ASSERT_TRUE(Change([&](auto done) { group_->executor()->ReloadWeightsAsync("model", 6, done); }).ok());
  for (const size_t member : {0, 2}) EXPECT_EQ(members_[member]->service().Snapshot().weights_version(), 6);
}

TEST_F(WorkerGroupTest, AllRanksHaveOneSizeOfTheKvCacheAfterARecovery) {
  Launch();
  // The ranks have resized to 4, and one is lost; the engine's last word, 3, counts.
  absl::Notification resized;
  group_->executor()->ResizeKvCacheAsync(4, num_blocks_,
                                         [&](const absl::StatusOr<TransitionReport>&) { resized.Notify(); });
  resized.WaitForNotification();
  EXPECT_EQ(CallsOf(1).back(), "resize 4");
  Lose(1, {Residency(), group_->weights(), 3});
  Join("c", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(CallsOf(0).back(), "resize 3");
  EXPECT_EQ(CallsOf(2), (Calls{"fence 2", "load 1/2", "join 2", Allocate(", 3 mapped without graphs")}));
  EXPECT_EQ(group_->executor()->recovered().num_mapped_blocks, 3);
}

TEST_F(WorkerGroupTest, AdoptedWorkersKeepTheSizeThatAllHave) {
  Launch();
  for (const int size : {5, 3}) {
    v1::ResizeKvCacheRequest request;
    request.set_group_epoch(1);
    request.set_operation_id(1000 + size);
    request.set_num_blocks(size);
    v1::ResizeKvCacheResponse response;
    members_[size == 5 ? 0 : 1]->service().ResizeKvCache(nullptr, &request, &response);
  }
  Restart();
  ASSERT_TRUE(group_->Load().ok());
  EXPECT_EQ(group_->num_mapped_blocks(), 3);
  EXPECT_EQ(CallsOf(0).back(), "resize 3");
  EXPECT_EQ(CallsOf(1).back(), "join 2");
}

TEST_F(WorkerGroupTest, ALossDuringARecoveryBeginsAnotherEpoch) {
  Launch();
  Lose(1, Residency());
  // The newcomer is lost during its load.
  Join("c", 1, [](FakeWorkerService& service) { service.HoldCalls("load 1/2"); });
  while (CallsOf(2) != Calls{"fence 2", "load 1/2"}) absl::SleepFor(absl::Milliseconds(1));
  members_[2]->Die();
  Join("d", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_GT(group_->executor()->group_epoch(), 2);
  EXPECT_EQ(CallsOf(0).back(), absl::StrCat("join ", group_->executor()->group_epoch()));
}

TEST_F(WorkerGroupTest, BothWorkersAreReplaced) {
  Launch();
  members_[0]->Die();
  Lose(1, Residency());
  Join("c", 0);
  Join("d", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(CallsOf(2).back(), Allocate()) << "nobody is left to wait for: graphs are captured at once";
  EXPECT_EQ(CallsOf(3).back(), Allocate());
}

TEST_F(WorkerGroupTest, AWorkerThatHasFailedForGoodIsReplaced) {
  Launch();
  members_[0]->service().SetState("failed");
  Lose(1, Residency());
  Join("c", 1);
  Join("d", 0);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_TRUE(absl::StrContains(absl::StrJoin(CallsOf(3), ","), "load 0/2"));
}

TEST_F(WorkerGroupTest, HostsWithOtherFilesNeverServeTogether) {
  StartGroup();
  Join("a", 0);
  Join("b", 1, [](FakeWorkerService& service) { service.SetFingerprint("beef"); });
  const absl::Status status = group_->Load().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "has read other files than")) << status;
}

TEST_F(WorkerGroupTest, ANewcomerWithOtherFilesIsRefusedAndAnotherOneAwaited) {
  flags_.engine.max_recoveries = 0;  // a refusal is no failed attempt
  Launch();
  Join("c", 1,
       [](FakeWorkerService& service) { service.SetFingerprint("beef"); });  // a spare, until there is a loss
  Lose(1, Residency());
  while (CallsOf(2) != Calls{"fence 2", "load 1/2"}) absl::SleepFor(absl::Milliseconds(1));
  Join("d", 1);
  ASSERT_TRUE(AwaitRecovery().ok()) << recovered_;
  EXPECT_EQ(CallsOf(2), (Calls{"fence 2", "load 1/2"})) << "it never joins the group";
  EXPECT_EQ(CallsOf(3).back(), Allocate(" without graphs"));
}

TEST_F(WorkerGroupTest, ALoadThatCannotSucceedIsTriedOnce) {
  int member = 0;
  for (const absl::Status& error :
       {absl::NotFoundError("model.norm.weight"), absl::InternalError("out of luck")}) {
    StartGroup();
    Join(absl::StrCat("a", member), 0);
    Join(absl::StrCat("b", member), 1).FailNextCall(error);
    EXPECT_EQ(group_->Load().status().code(), error.code());
    EXPECT_EQ(CallsOf(member + 1), (Calls{"fence 1", "load 1/2"}));
    group_.reset();
    member += 2;
  }
}

// The shortest deadline of a start, on a machine that is overloaded.
TEST_F(WorkerGroupTest, AStartWhoseWorkerIsTooSlowNamesTheCallAndTheFlag) {
  StartGroup();
  Join("a", 0);
  FakeWorkerService& slow = Join("b", 1, [](FakeWorkerService& service) { service.HoldCalls("fence 1"); });
  const std::string error(group_->Load().status().message());
  EXPECT_TRUE(absl::StartsWith(error, "rank 1 (pid ")) << error;
  EXPECT_TRUE(absl::EndsWith(error,
                             "): Fence has not returned within 5s: the worker hangs, or its machine is "
                             "overloaded; a longer --hang-timeout (now 4s) gives workers more time"))
      << error;
  slow.ReleaseCalls();
}

TEST_F(WorkerGroupTest, TheNextCoordinatorAdoptsTheWorkers) {
  Launch();
  Restart();
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, num_blocks_);
  EXPECT_EQ(plan->max_model_len, 64);
  EXPECT_TRUE(group_->residency().awake());
  EXPECT_EQ(group_->executor()->group_epoch(), 2) << "epochs go on";
  EXPECT_EQ(CallsOf(0),
            (Calls{"fence 1", "load 0/2", "join 1", "profile", Allocate(), "shutdown", "fence 2", "join 2"}));
}

TEST_F(WorkerGroupTest, WorkersThatHaveReloadedAreAdoptedByWhoeverKnowsTheirVersion) {
  Launch();
  ASSERT_TRUE(Change([&](auto done) { group_->executor()->ReloadWeightsAsync("model", 5, done); }).ok());
  members_[1]->Die();
  members_.pop_back();
  weights_version_ = 5;
  Restart();
  Join("c", 1);
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CallsOf(0).back(), "join 2") << "its weights are not read again";
  EXPECT_EQ(members_[1]->service().Snapshot().weights_version(), 5) << "a newcomer has the same";
  EXPECT_EQ(group_->weights().version, 5);
}

TEST_F(WorkerGroupTest, WorkersThatAreLeftAreToldNothing) {
  Launch();
  group_->Leave();
  Restart();
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CallsOf(0), (Calls{"fence 1", "load 0/2", "join 1", "profile", Allocate(), "fence 2", "join 2"}));
}

TEST_F(WorkerGroupTest, AGroupIsAdoptedAsleep) {
  for (const int level : {1, 2}) {
    SCOPED_TRACE(level);
    group_.reset();
    members_.clear();
    Launch();
    absl::Notification slept;
    group_->executor()->SleepAsync({.level = level}, {},
                                   [&](const absl::StatusOr<TransitionReport>&) { slept.Notify(); });
    slept.WaitForNotification();
    Restart();
    const absl::StatusOr<KvPlan> plan = group_->Load();
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(group_->residency().fully_asleep());
    EXPECT_EQ(group_->residency().level(), level);
    EXPECT_EQ(CallsOf(1).back(), "join 2") << "it sleeps on";
  }
}

TEST_F(WorkerGroupTest, ANewcomerJoinsAdoptedWorkers) {
  Launch();
  members_[1]->Die();
  members_.pop_back();
  Restart();
  Join("c", 1);
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CallsOf(0).back(), "join 2") << "its weights are not read again";
  EXPECT_EQ(CallsOf(1), (Calls{"fence 2", "load 1/2", "join 2", Allocate(" without graphs")}));
}

TEST_F(WorkerGroupTest, WorkersWithOtherOptionsAreSentAway) {
  Launch();
  flags_.engine.scheduler.max_num_seqs = 8;
  Restart();
  Join("c", 0);
  Join("d", 1);
  const absl::StatusOr<KvPlan> plan = group_->Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const size_t old : {0, 1}) {
    while (members_[old]->stays()) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(absl::StrContains(absl::StrJoin(CallsOf(2), ","), "load 0/2"));
  EXPECT_TRUE(absl::StrContains(absl::StrJoin(CallsOf(3), ","), "load 1/2"));
}

TEST_F(WorkerGroupTest, StopEndsARecoveryWhoseNewcomerHangs) {
  Launch();
  Lose(1, Residency());
  Join("c", 1, [](FakeWorkerService& service) { service.HoldCalls("load 1/2"); });
  while (CallsOf(2) != Calls{"fence 2", "load 1/2"}) absl::SleepFor(absl::Milliseconds(1));
  group_->Stop();
  EXPECT_TRUE(absl::IsCancelled(AwaitRecovery())) << recovered_;
}

// Such as by a tokenizer that was found damaged meanwhile.
TEST_F(WorkerGroupTest, AnInterruptEndsALoadThatIsRunning) {
  StartGroup();
  Join("a", 0, [](FakeWorkerService& service) { service.HoldCalls("load 0/2"); });
  Join("b", 1);
  auto load = std::async(std::launch::async, [this] { return group_->Load().status(); });
  while (CallsOf(0) != Calls{"fence 1", "load 0/2"}) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status damaged = absl::InvalidArgumentError("model: tokenizer.json: not JSON");
  group_->Interrupt(damaged);
  EXPECT_EQ(load.get(), damaged);
  EXPECT_EQ(CallsOf(0), (Calls{"fence 1", "load 0/2"}));
}

TEST_F(WorkerGroupTest, AnInterruptEndsTheWaitForANewcomer) {
  Launch();
  Lose(1, Residency());
  group_->Interrupt(absl::CancelledError("stopped"));
  EXPECT_EQ(AwaitRecovery(), absl::CancelledError("stopped"));
}

}  // namespace
}  // namespace somnus
