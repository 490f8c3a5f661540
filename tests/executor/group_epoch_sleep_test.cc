// Sleep and wake-up over ranks of which some fail.

#include <thread>

#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

const std::vector<std::string> kBothAwake = {"awake", "awake"};
const std::vector<std::string> kBothAsleep = {"asleep", "asleep"};
// A timeout that ends, and that calls which nobody holds keep on the busiest machine.
constexpr absl::Duration kShort = absl::Seconds(1);

TEST_F(GroupEpochTest, AFailedSleepWakesEveryRankAgain) {
  Connect(2);
  workers_[1]->FailNextCall(absl::InternalError("cannot"));
  const absl::Status status = epoch_->Sleep({.level = 2}, Residency()).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "rank 1 (pid 71): cannot");
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"fence 1", "sleep 2", "wake 0"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(epoch_->Sleep({.level = 2}, Residency()).ok());
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GroupEpochTest, AFailedWakeUpPutsEveryRankBackToSleep) {
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 2}, Residency()).ok());
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  const absl::Status status = epoch_->WakeUp({}, Slept(2)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "rank 0 (pid 70): 5 MiB missing");
  EXPECT_EQ(workers_[1]->calls().back(), "sleep 2") << "at the same level";
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(epoch_->WakeUp({}, Slept(2)).ok());
  EXPECT_EQ(RankStates(), kBothAwake);
}

TEST_F(GroupEpochTest, AFailedWakeOfTheCacheLeavesNoWeightsOnAnyRank) {
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 2}, Residency()).ok());
  Residency residency = Slept(2);
  ASSERT_TRUE(epoch_->WakeUp({"weights"}, residency).ok());
  residency.Woke({"weights"});
  EXPECT_EQ(RankStates(), (std::vector<std::string>{"asleep weights", "asleep weights"}));
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  EXPECT_TRUE(absl::IsResourceExhausted(epoch_->WakeUp({"kv_cache"}, residency).status()));
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupEpochTest, ARankThatDidNotAnswerInTimeIsUndoneToo) {
  options_.lifecycle_timeout = kShort;
  Connect(2);
  workers_[1]->HoldCalls();
  // The rank executes the call after all, long after the coordinator has given it up.
  std::thread release([&] {
    while (workers_[1]->calls().size() < 3) std::this_thread::yield();
    workers_[1]->ReleaseCalls();
  });
  const absl::Status status = epoch_->Sleep({.level = 2}, Residency()).status();
  release.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1 (pid 71)"), absl::string_view::npos) << status;
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"fence 1", "sleep 2", "wake 0"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupEpochTest, ARankWhoseReplyIsLostWithItsConnectionIsAskedAgain) {
  Connect(2);
  workers_[1]->LoseReplies(2);
  const absl::StatusOr<TransitionReport> freed = epoch_->Sleep({.level = 2}, Residency());
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"kv_cache", 14}, {"weights", 14}, {"workspace", 14}}));
  workers_[0]->LoseReplies(1);
  const absl::StatusOr<TransitionReport> mapped = epoch_->WakeUp({}, Slept(2));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->mapped_bytes(), freed->freed_bytes());
  for (const auto& worker : workers_)
    EXPECT_EQ(worker->calls(), (std::vector<std::string>{"fence 1", "sleep 2", "wake 0"})) << "each once";
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupEpochTest, ARankWhoseRepliesAreAllLostIsLost) {
  Connect(2);
  workers_[1]->LoseReplies(1000);
  EXPECT_TRUE(absl::IsUnavailable(epoch_->Sleep({.level = 2}, Residency()).status()));
  EXPECT_FALSE(epoch_->Health().ok());
}

TEST_F(GroupEpochTest, ARankThatNeverAnswersIsLost) {
  options_.lifecycle_timeout = kShort;
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 1}, Residency()).ok());
  workers_[1]->HoldCalls();
  EXPECT_TRUE(absl::IsDeadlineExceeded(epoch_->WakeUp({}, Slept(1)).status()));
  const absl::Status health = epoch_->Health();
  EXPECT_NE(health.message().find("not every rank is asleep after a failed call"), absl::string_view::npos)
      << health;
  EXPECT_NE(health.message().find("rank 1 (pid 71)"), absl::string_view::npos) << health;
}

TEST_F(GroupEpochTest, AFailedDeepeningWakesNobody) {
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 1}, Residency()).ok());
  workers_[1]->ScriptCalls({absl::InternalError("cannot"), absl::InternalError("still cannot")});
  const absl::Status status = epoch_->Sleep({.level = 2}, Slept(1)).status();
  EXPECT_EQ(status.message(), "rank 1 (pid 71): cannot");
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"fence 1", "sleep 1", "sleep 2", "sleep 2"}));
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(epoch_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(epoch_->Sleep({.level = 2}, Slept(1)).ok());
  EXPECT_TRUE(epoch_->WakeUp({}, Slept(2)).ok());
  EXPECT_EQ(RankStates(), kBothAwake);
}

TEST_F(GroupEpochTest, ADeepeningThatFailsOnceIsTriedAgain) {
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 1}, Residency()).ok());
  workers_[1]->FailNextCall(absl::InternalError("cannot"));
  EXPECT_TRUE(epoch_->Sleep({.level = 2}, Slept(1)).ok());
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GroupEpochTest, ASleepThatFreesOnlySomeRanksIsFinal) {
  Connect(2);
  ASSERT_TRUE(epoch_->Sleep({.level = 2}, Residency()).ok());
  Residency residency = Slept(2);
  ASSERT_TRUE(epoch_->WakeUp({"weights"}, residency).ok());
  residency.Woke({"weights"});
  workers_[1]->ScriptCalls({absl::InternalError("cannot"), absl::InternalError("still cannot")});
  EXPECT_FALSE(epoch_->Sleep({.level = 2}, residency).ok());
  EXPECT_NE(epoch_->Health().message().find("rank 1 (pid 71): still cannot"), absl::string_view::npos)
      << epoch_->Health();
}

TEST_F(GroupEpochTest, AWakeUpThatReadsTheCheckpointHasTheTimeOfALoad) {
  options_.lifecycle_timeout = kShort;
  options_.load_timeout = absl::Hours(1);
  Connect(1);
  ASSERT_TRUE(epoch_->Sleep({.level = 2}, Residency()).ok());
  workers_[0]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(2 * kShort);  // longer than other calls may take
    workers_[0]->ReleaseCalls();
  });
  EXPECT_TRUE(epoch_->WakeUp({"weights"}, Slept(2)).ok());
  release.join();
}

TEST_F(GroupEpochTest, ARollbackThatFailsIsFinal) {
  Connect(2);
  absl::Notification failed;
  epoch_->OnFailure([&](const absl::Status&) { failed.Notify(); });
  ASSERT_TRUE(epoch_->Sleep({.level = 1}, Residency()).ok());
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("no memory"));
  workers_[1]->ScriptCalls({absl::OkStatus(), absl::InternalError("stuck")});
  EXPECT_TRUE(absl::IsResourceExhausted(epoch_->WakeUp({}, Slept(1)).status()));
  failed.WaitForNotification();
  EXPECT_NE(epoch_->Health().message().find("rank 1 (pid 71): stuck"), absl::string_view::npos);
}

}  // namespace
}  // namespace somnus
