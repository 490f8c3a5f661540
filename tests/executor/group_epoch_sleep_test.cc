// Sleep and wake-up over ranks of which some fail, hang or end, in each phase.

#include <thread>

#include "proto/missing_memory.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;
const std::vector<std::string> kBothAwake = {"awake", "awake"};
const std::vector<std::string> kBothAsleep = {"asleep", "asleep"};
// A timeout that ends, and that calls which nobody holds keep on the busiest machine.
constexpr absl::Duration kShort = absl::Seconds(1);

class GroupSleepTest : public GroupEpochTest {
 protected:
  // Calls `act` once that rank has got a call of this name.
  std::thread WhenCalled(size_t rank, const std::string& call, std::function<void()> act) {
    return std::thread([this, rank, call, act = std::move(act)] {
      while (true) {
        const Calls calls = workers_[rank]->calls();
        if (std::find(calls.begin(), calls.end(), call) != calls.end()) break;
        std::this_thread::yield();
      }
      act();
    });
  }
  std::string Health() { return std::string(epoch_->Health().message()); }
};

TEST_F(GroupSleepTest, ASleepThatOneRankCannotPrepareHappensOnNone) {
  Connect(2);
  workers_[1]->FailNextCall(absl::ResourceExhaustedError("no host memory"));
  const absl::Status status = Sleep(1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), "rank 1 (pid 71): no host memory");
  for (const auto& worker : workers_)
    EXPECT_EQ(worker->calls(), (Calls{"fence 1", "prepare sleep 1", "abort"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_FALSE(committed_);
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(Sleep(1).ok());
  EXPECT_TRUE(committed_);
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GroupSleepTest, AWakeUpThatOneRankCannotPrepareLeavesEveryTagWhereItWas) {
  Connect(2);
  ASSERT_TRUE(Sleep(2).ok());
  ASSERT_TRUE(WakeUp({"weights"}).ok());
  const std::vector<std::string> half = {"asleep weights", "asleep weights"};
  EXPECT_EQ(RankStates(), half);
  committed_ = false;
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  const absl::Status status = WakeUp({"kv_cache"}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "rank 0 (pid 70): 5 MiB missing");
  EXPECT_EQ(workers_[1]->calls().back(), "abort");
  EXPECT_EQ(RankStates(), half);
  EXPECT_FALSE(committed_);
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(WakeUp().ok());
  EXPECT_EQ(RankStates(), kBothAwake);
}

TEST_F(GroupSleepTest, AGrowthForWhichOneRankHasNoMemoryHappensOnNone) {
  Connect(2);
  const auto shrunk = epoch_->ResizeKvCache(20, 64);
  ASSERT_TRUE(shrunk.ok()) << shrunk.status();
  ASSERT_EQ(shrunk->ranks.size(), 2u);
  EXPECT_EQ(shrunk->ranks[1].tags.at("kv_cache").resident_bytes, 200);
  workers_[1]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  const absl::Status status = epoch_->ResizeKvCache(40, 20).status();
  EXPECT_EQ(status, absl::ResourceExhaustedError("rank 1 (pid 71): 5 MiB missing"));
  for (const auto& worker : workers_)
    EXPECT_EQ(worker->calls(), (Calls{"fence 1", "resize 20", "resize 40", "resize 20"}));
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
}

TEST_F(GroupSleepTest, ARankThatDoesNotUndoAGrowthIsLost) {
  Connect(2);
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  workers_[1]->ScriptCalls({absl::OkStatus(), absl::InternalError("no longer")});
  EXPECT_TRUE(absl::IsResourceExhausted(epoch_->ResizeKvCache(40, 20).status()));
  EXPECT_EQ(Health(),
            "the KV cache may have different sizes on the ranks (rank 0 (pid 70): 5 MiB missing): "
            "rank 1 (pid 71): no longer");
}

TEST_F(GroupSleepTest, OnlyTheTagsThatAreNamedSleep) {
  Connect(2);
  const auto freed = Sleep(1, {"kv_cache"});
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"kv_cache", 14}}));
  ASSERT_EQ(freed->ranks.size(), 2u);
  EXPECT_EQ(freed->ranks[1].rank, 1);
  EXPECT_EQ(RankStates(), (std::vector<std::string>{"asleep weights workspace", "asleep weights workspace"}));
  EXPECT_EQ(workers_[1]->calls(), (Calls{"fence 1", "prepare sleep 1 kv_cache", "commit"}));
}

TEST_F(GroupSleepTest, EveryRankKeepsTheSameBlocks) {
  Connect(2);
  host_tier_.kept = {{.device_block = 5, .host_block = 0}, {.device_block = 3, .host_block = 1}};
  ASSERT_TRUE(Sleep(1).ok());
  ASSERT_TRUE(WakeUp().ok());
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->calls(),
              (Calls{"fence 1", "prepare sleep 1 5>0 3>1", "commit", "prepare wake 5>0 3>1", "commit"}));
  }
}

// Each rank alone would have room.
TEST_F(GroupSleepTest, RanksOfAHostThatDoNotFitTogetherMapNothing) {
  Connect(2);
  ASSERT_TRUE(Sleep(2).ok());
  for (const auto& worker : workers_) worker->SetAvailableBytes(30);
  const absl::Status status = WakeUp().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(
      status.message(),
      "rank 0 (pid 70) needs 7 bytes for kv_cache, 7 bytes for weights, 7 bytes for workspace; rank 1 (pid "
      "71) needs 7 bytes for kv_cache, 7 bytes for weights, 7 bytes for workspace: 30 available, 12 missing");
  std::map<int, int64_t> missing;
  const v1::MissingMemory lacking = MissingOf(status);
  for (const v1::MissingMemory::Shortage& one : lacking.shortages())
    missing[one.rank()] += one.missing_bytes();
  EXPECT_EQ(missing, (std::map<int, int64_t>{{0, 6}, {1, 6}}));
  for (const auto& worker : workers_)
    EXPECT_EQ(worker->calls(), (Calls{"fence 1", "prepare sleep 2", "commit"})) << "nothing was mapped";
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(WakeUp({"weights", "kv_cache"}).ok()) << "there is room for these";
}

TEST_F(GroupSleepTest, WhatEveryRankLacksComesWithTheErrorAndTheSameCallWorksLater) {
  Connect(3);
  ASSERT_TRUE(Sleep(2).ok());
  for (const int rank : {0, 2}) {
    v1::MissingMemory missing;
    v1::MissingMemory::Shortage* shortage = missing.add_shortages();
    shortage->set_rank(rank);
    shortage->set_tag("kv_cache");
    shortage->set_missing_bytes(100 + rank);
    workers_[rank]->FailNextCall(WithMissing(absl::ResourceExhaustedError("no memory"), missing));
  }
  const absl::Status status = WakeUp().status();
  EXPECT_EQ(status.message(), "rank 0 (pid 70): no memory; rank 2 (pid 72): no memory");
  const v1::MissingMemory missing = MissingOf(status);
  ASSERT_EQ(missing.shortages_size(), 2);
  EXPECT_EQ(missing.shortages(0).missing_bytes(), 100);
  EXPECT_EQ(missing.shortages(1).rank(), 2);
  EXPECT_EQ(missing.shortages(1).missing_bytes(), 102);
  EXPECT_EQ(RankStates(), (std::vector<std::string>{"asleep", "asleep", "asleep"}));
  EXPECT_TRUE(WakeUp().ok());
}

TEST_F(GroupSleepTest, RanksOnOneGpuShareItsMemory) {
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  ASSERT_TRUE(Sleep(2).ok());
  for (const auto& worker : workers_) worker->SetAvailableBytes(30, "0000:17:00.0");
  EXPECT_TRUE(absl::IsResourceExhausted(WakeUp().status()));
  workers_[1]->SetAvailableBytes(30, "0000:65:00.0");
  EXPECT_TRUE(WakeUp().ok());
}

TEST_F(GroupSleepTest, RanksInDifferentControlGroupsDoNotShareMemory) {
  Connect(2);
  ASSERT_TRUE(Sleep(2).ok());
  for (size_t rank = 0; rank < 2; ++rank)
    workers_[rank]->SetAvailableBytes(30, absl::StrCat("0::/job/task_", rank));
  EXPECT_TRUE(WakeUp().ok());
}

TEST_F(GroupSleepTest, RanksOfDifferentHostsDoNotShareMemory) {
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CPU, /*over_tcp=*/true);
  ASSERT_TRUE(Sleep(2).ok());
  for (const auto& worker : workers_) worker->SetAvailableBytes(30);
  EXPECT_TRUE(WakeUp().ok());
  ASSERT_TRUE(Sleep(2).ok());
  workers_[1]->SetAvailableBytes(20);
  const absl::Status status = WakeUp().status();
  EXPECT_EQ(status.message(),
            "rank 1 (pid 71) needs 7 bytes for kv_cache, 7 bytes for weights, 7 bytes for workspace: 20 "
            "available, 1 missing");
  ASSERT_EQ(MissingOf(status).shortages_size(), 1) << "one byte cannot be divided";
  EXPECT_EQ(MissingOf(status).shortages(0).rank(), 1);
  EXPECT_EQ(MissingOf(status).shortages(0).missing_bytes(), 1);
}

TEST_F(GroupSleepTest, ARankThatDidNotPrepareInTimeIsUndoneToo) {
  options_.transition_timeout = kShort;
  Connect(2);
  workers_[1]->HoldCalls();
  // The rank prepares after all, long after the coordinator has given the rank up.
  std::thread release = WhenCalled(1, "abort", [this] { workers_[1]->ReleaseCalls(); });
  const absl::Status status = Sleep(2).status();
  release.join();
  EXPECT_EQ(status, absl::DeadlineExceededError(absl::StrCat(
                        "rank 1 (pid 71): Prepare has not returned within ", absl::FormatDuration(kShort),
                        ": the worker hangs, or its machine is overloaded")));
  EXPECT_EQ(workers_[1]->calls(), (Calls{"fence 1", "prepare sleep 2", "abort"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupSleepTest, ARankWhoseReplyIsLostWithItsConnectionIsAskedAgain) {
  Connect(2);
  workers_[1]->LoseReplies(2);
  const absl::StatusOr<TransitionReport> freed = Sleep(2);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"kv_cache", 14}, {"weights", 14}, {"workspace", 14}}));
  for (const auto& worker : workers_)
    EXPECT_EQ(worker->calls(), (Calls{"fence 1", "prepare sleep 2", "commit"})) << "each once";
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupSleepTest, ACommitWhoseReplyIsLostIsAskedAgain) {
  Connect(2);
  std::thread lose = WhenCalled(1, "commit", [this] {
    workers_[1]->LoseReplies(1);
    workers_[1]->ReleaseCalls();
  });
  workers_[1]->HoldCalls("commit");
  const absl::StatusOr<TransitionReport> freed = Sleep(2);
  lose.join();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes().at("weights"), 14);
  EXPECT_EQ(workers_[1]->calls(), (Calls{"fence 1", "prepare sleep 2", "commit"})) << "it is done once";
}

TEST_F(GroupSleepTest, ARankWhoseRepliesAreAllLostIsLost) {
  Connect(2);
  workers_[1]->LoseReplies(1000);
  EXPECT_TRUE(absl::IsUnavailable(Sleep(2).status()));
  EXPECT_FALSE(epoch_->Health().ok());
  EXPECT_FALSE(committed_);
}

TEST_F(GroupSleepTest, ARankThatConfirmsNoAbortIsLost) {
  Connect(2);
  ASSERT_TRUE(Sleep(1).ok());
  absl::Notification failed;
  epoch_->OnFailure([&](const absl::Status&) { failed.Notify(); });
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("no memory"));
  workers_[1]->ScriptCalls({absl::OkStatus(), absl::InternalError("stuck")});
  committed_ = false;
  EXPECT_TRUE(absl::IsResourceExhausted(WakeUp().status()));
  failed.WaitForNotification();
  EXPECT_EQ(Health(),
            "not every rank has undone what had failed (rank 0 (pid 70): no memory): rank 1 (pid 71): stuck");
  EXPECT_FALSE(committed_) << "the next epoch is as before";
}

TEST_F(GroupSleepTest, ARankThatNeverAnswersIsLost) {
  options_.transition_timeout = kShort;
  Connect(2);
  workers_[1]->HoldCalls();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Sleep(1).status()));
  EXPECT_NE(Health().find("rank 1 (pid 71)"), std::string::npos) << Health();
  EXPECT_FALSE(committed_);
  workers_[1]->ReleaseCalls();
}

// There is no way back: the other ranks have released memory.
TEST_F(GroupSleepTest, ARankThatConfirmsNoCommitIsLost) {
  Connect(2);
  workers_[1]->ScriptCalls({absl::OkStatus(), absl::InternalError("the driver has failed")});
  EXPECT_TRUE(absl::IsInternal(Sleep(1).status()));
  EXPECT_EQ(
      Health(),
      "a sleep or a wake-up was committed, but not every rank confirms it: rank 1 (pid 71): the driver has "
      "failed");
  EXPECT_TRUE(committed_) << "the next epoch is asleep";
}

TEST_F(GroupSleepTest, ARankThatEndsWhileItPrepares) {
  Connect(2);
  workers_[1]->HoldCalls();
  std::thread kill = WhenCalled(1, "prepare sleep 1", [this] {
    epoch_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9 (Killed)"));
  });
  EXPECT_EQ(Sleep(1).status().message(), "rank 1 (pid 71) was killed by signal 9 (Killed)");
  kill.join();
  EXPECT_FALSE(committed_);
  EXPECT_EQ(workers_[0]->calls(), (Calls{"fence 1", "prepare sleep 1"})) << "the next Fence undoes it";
  EXPECT_FALSE(epoch_->reads_weights());
  workers_[1]->ReleaseCalls();
}

// The other ranks are busy, and are not replaced for that reason.
TEST_F(GroupSleepTest, ARankThatEndsWhileItReadsItsWeights) {
  Connect(2);
  ASSERT_TRUE(Sleep(2).ok());
  workers_[1]->HoldCalls();
  std::thread kill = WhenCalled(1, "prepare wake", [this] {
    epoch_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9 (Killed)"));
  });
  EXPECT_FALSE(WakeUp().ok());
  kill.join();
  EXPECT_TRUE(epoch_->reads_weights());
  workers_[1]->ReleaseCalls();
}

TEST_F(GroupSleepTest, ARankThatEndsWhileItCommits) {
  Connect(2);
  workers_[1]->HoldCalls("commit");
  std::thread kill = WhenCalled(1, "commit", [this] {
    epoch_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9 (Killed)"));
  });
  EXPECT_EQ(Sleep(1).status().message(), "rank 1 (pid 71) was killed by signal 9 (Killed)");
  kill.join();
  EXPECT_TRUE(committed_);
  workers_[1]->ReleaseCalls();
}

TEST_F(GroupSleepTest, APhaseHasTheTimeThatItsBytesTake) {
  options_.transition_timeout = kShort;
  options_.transition_bytes_per_s = 0.1;
  Connect(1);
  ASSERT_TRUE(Sleep(1).ok());
  workers_[0]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(2 * kShort);
    workers_[0]->ReleaseCalls();
  });
  EXPECT_TRUE(WakeUp({"weights"}).ok());
  release.join();
}

TEST_F(GroupSleepTest, ASleepAfterAnotherTransitionIsNotPlannedAgain) {
  Connect(2);
  const auto plans = [&] { return std::vector<int>{workers_[0]->num_plans(), workers_[1]->num_plans()}; };
  ASSERT_TRUE(Sleep(1).ok());
  EXPECT_EQ(plans(), (std::vector<int>{1, 1})) << "nobody has said what is resident";
  ASSERT_TRUE(WakeUp().ok());
  EXPECT_EQ(plans(), (std::vector<int>{2, 2})) << "whether it fits is asked every time";
  ASSERT_TRUE(Sleep(1).ok());
  EXPECT_EQ(plans(), (std::vector<int>{2, 2}));
  EXPECT_EQ(RankStates(), kBothAsleep);
  ASSERT_TRUE(WakeUp().ok());
  ASSERT_TRUE(epoch_->ResizeKvCache(50, 40).ok());
  ASSERT_TRUE(Sleep(1).ok());
  EXPECT_EQ(plans(), (std::vector<int>{4, 4})) << "the cache has another size";
}

TEST_F(GroupSleepTest, NorIsTheFirstSleepOnceItIsKnownWhatIsResident) {
  Connect(2);
  ASSERT_TRUE(epoch_->Bytes().ok());
  ASSERT_TRUE(Sleep(1).ok());
  EXPECT_EQ(workers_[0]->num_plans() + workers_[1]->num_plans(), 0);
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GroupSleepTest, WhatRanksHoldIsKnownFromTheirCommits) {
  Connect(2);
  ASSERT_TRUE(Sleep(1).ok());
  const absl::StatusOr<GroupBytes> said = epoch_->Bytes(), asked = epoch_->Bytes();
  ASSERT_TRUE(said.ok() && asked.ok());
  EXPECT_EQ(said->resident.at("weights"), 0);
  EXPECT_EQ(said->resident, asked->resident);
}

TEST_F(GroupSleepTest, ASleepThatIsNotPlannedHasTheTimeThatItsBytesTake) {
  options_.transition_timeout = kShort;
  options_.transition_bytes_per_s = 0.1;
  Connect(1);
  ASSERT_TRUE(Sleep(1).ok());
  ASSERT_TRUE(WakeUp().ok());
  workers_[0]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(2 * kShort);
    workers_[0]->ReleaseCalls();
  });
  EXPECT_TRUE(Sleep(1).ok());
  release.join();
}

TEST_F(GroupSleepTest, AWakeUpThatReadsTheCheckpointHasTheTimeOfALoad) {
  options_.transition_timeout = kShort;
  options_.load_timeout = absl::Hours(1);
  Connect(1);
  ASSERT_TRUE(Sleep(2).ok());
  workers_[0]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(2 * kShort);  // longer than other calls may take
    workers_[0]->ReleaseCalls();
  });
  EXPECT_TRUE(WakeUp({"weights"}).ok());
  release.join();
}

}  // namespace
}  // namespace somnus
