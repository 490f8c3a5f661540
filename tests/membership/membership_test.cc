#include "coordinator/membership/membership.h"

#include <gtest/gtest.h>

#include <thread>

namespace somnus {
namespace {

MembershipOptions Options(int32_t world_size) {
  MembershipOptions options;
  options.world_size = world_size;
  options.version = "1";
  options.spawn_token = "secret";
  options.heartbeat_timeout = absl::Seconds(10);
  return options;
}

v1::RegisterRequest Worker(const std::string& id, const std::string& host, int preferred_rank = -1) {
  v1::RegisterRequest request;
  request.set_worker_id(id);
  request.set_host(host);
  request.set_pid(7);
  request.set_address("unix:/" + id);
  request.set_version("1");
  request.set_spawn_token("secret");
  if (preferred_rank >= 0) request.set_preferred_rank(preferred_rank);
  return request;
}

const MonotonicTime kNow = absl::Seconds(1000);

TEST(MembershipTest, AMemberThatDiedBeforeTheLastCameIsNotConfirmed) {
  MembershipOptions options = Options(2);
  options.confirm_members = true;
  Membership membership(options);
  const auto complete = [&] { return membership.WaitForGroup(absl::ZeroDuration()).ok(); };
  ASSERT_TRUE(membership.Register(Worker("a", "host1", 0), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host1", 1), kNow + absl::Milliseconds(1)).ok());
  EXPECT_FALSE(complete());  // a may have died since its last heartbeat
  EXPECT_FALSE(membership.DropSilent(kNow + absl::Seconds(11)).empty());
  ASSERT_TRUE(membership.Register(Worker("c", "host1", 0), kNow + absl::Seconds(11)).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host1", 1), kNow + absl::Seconds(12)).ok());
  EXPECT_FALSE(complete());
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_worker_id("c");
  EXPECT_TRUE(membership.Heartbeat(heartbeat, kNow + absl::Seconds(13)));
  EXPECT_TRUE(complete());
}

TEST(MembershipTest, RanksFollowPreferenceHostAndArrival) {
  Membership membership(Options(5));
  for (const auto& worker : {Worker("e", "host2"), Worker("d", "host1"), Worker("c", "host1"),
                             Worker("b", "host9", 1), Worker("a", "host5", 0)}) {
    ASSERT_TRUE(membership.Register(worker, kNow).ok());
  }
  const auto group = membership.WaitForGroup(absl::ZeroDuration());
  ASSERT_TRUE(group.ok());
  std::string order;
  for (const auto& member : *group) order += member.worker_id();
  EXPECT_EQ(order, "abdce");
}

TEST(MembershipTest, APreferredRankIsKeptThoughOthersPreferNone) {
  Membership membership(Options(3));
  for (const auto& worker : {Worker("a", "host3", 1), Worker("b", "host2"), Worker("c", "host1")}) {
    ASSERT_TRUE(membership.Register(worker, kNow).ok());
  }
  const auto group = membership.WaitForGroup(absl::ZeroDuration());
  ASSERT_TRUE(group.ok());
  std::string order;
  for (const auto& member : *group) order += member.worker_id();
  EXPECT_EQ(order, "cab");
}

TEST(MembershipTest, RefusalsSayWhy) {
  Membership membership(Options(2));
  v1::RegisterRequest worker = Worker("a", "host");
  worker.set_version("2");
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(worker, kNow)));
  worker = Worker("a", "host");
  worker.set_spawn_token("guess");
  EXPECT_TRUE(absl::IsPermissionDenied(membership.Register(worker, kNow)));
  worker.clear_spawn_token();
  EXPECT_TRUE(absl::IsPermissionDenied(membership.Register(worker, kNow)));
  EXPECT_TRUE(absl::IsInvalidArgument(membership.Register(Worker("a", "host", 2), kNow)));
  EXPECT_TRUE(absl::IsInvalidArgument(membership.Register(Worker("", "host"), kNow)));
  EXPECT_EQ(membership.Register(Worker("a", std::string(513, 'h')), kNow).message(),
            "host: must have at most 512 bytes");
  ASSERT_TRUE(membership.Register(Worker("a", "host", 1), kNow).ok()) << "nobody took a place";
  ASSERT_TRUE(membership.Register(Worker("a", "host", 1), kNow).ok()) << "the same one again";
  const absl::Status taken = membership.Register(Worker("b", "host", 1), kNow);
  EXPECT_TRUE(absl::IsUnavailable(taken)) << "it may try again";
  EXPECT_EQ(taken.message(), "preferred_rank: 1 is taken by the worker on host (pid 7) for now");
  ASSERT_TRUE(membership.Register(Worker("b", "host"), kNow).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(Worker("c", "host"), kNow))) << "complete";
}

TEST(MembershipTest, WaitingEndsWithTheGroupTheTimeoutOrAnInterruption) {
  Membership late(Options(2));
  ASSERT_TRUE(late.Register(Worker("a", "host"), kNow).ok());
  const absl::Status timeout = late.WaitForGroup(absl::Milliseconds(1)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(timeout));
  EXPECT_NE(timeout.message().find("1 of 2"), absl::string_view::npos);
  std::thread other([&] { ASSERT_TRUE(late.Register(Worker("b", "host"), kNow).ok()); });
  EXPECT_TRUE(late.WaitForGroup(absl::Minutes(1)).ok());
  other.join();

  Membership interrupted(Options(2));
  std::thread interrupter([&] { interrupted.Interrupt(absl::UnavailableError("rank 1 died")); });
  EXPECT_EQ(interrupted.WaitForGroup(absl::Minutes(1)).status().message(), "rank 1 died");
  interrupter.join();
}

v1::HeartbeatRequest Beat(const std::string& id) {
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_worker_id(id);
  return heartbeat;
}

TEST(MembershipTest, WhoDiesBeforeTheGroupIsCompleteGivesItsPlaceBack) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("dead", "host", 0), kNow).ok());
  EXPECT_TRUE(membership.DropSilent(kNow + absl::Seconds(10)).empty());
  EXPECT_EQ(membership.DropSilent(kNow + absl::Seconds(11)),
            std::vector<std::string>{"the worker on host (pid 7)"});
  EXPECT_FALSE(membership.Heartbeat(Beat("dead"), kNow + absl::Seconds(11))) << "it is to leave";
  ASSERT_TRUE(membership.Register(Worker("a", "host", 0), kNow + absl::Seconds(12)).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host", 1), kNow + absl::Seconds(12)).ok());
  EXPECT_TRUE(membership.DropSilent(kNow + absl::Hours(1)).empty()) << "from here on CheckHeartbeats watches";
  const auto group = membership.WaitForGroup(absl::ZeroDuration());
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)[0].worker_id(), "a");
}

TEST(MembershipTest, AGroupIsNotCompleteWithAMemberThatNobodyHears) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("a", "host1"), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host2"), kNow + absl::Seconds(6)).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(membership.WaitForGroup(absl::ZeroDuration()).status()))
      << "a has not been heard for six seconds";
  EXPECT_TRUE(absl::IsUnavailable(membership.Register(Worker("c", "host3"), kNow + absl::Seconds(6))));
  ASSERT_TRUE(membership.Heartbeat(Beat("a"), kNow + absl::Seconds(7))) << "it was only slow";
  EXPECT_TRUE(membership.WaitForGroup(absl::ZeroDuration()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(Worker("c", "host3"), kNow + absl::Seconds(8))));
}

TEST(MembershipTest, ASilentMemberIsNamed) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("b", "host2"), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("a", "host1"), kNow).ok());
  EXPECT_TRUE(membership.CheckHeartbeats(kNow + absl::Hours(1)).ok())
      << "before the group is used nobody is missed";
  ASSERT_TRUE(membership.WaitForGroup(absl::ZeroDuration()).ok());
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_worker_id("a");
  EXPECT_TRUE(membership.Heartbeat(heartbeat, kNow + absl::Seconds(8)));
  EXPECT_TRUE(membership.CheckHeartbeats(kNow + absl::Seconds(10)).ok());
  const absl::Status status = membership.CheckHeartbeats(kNow + absl::Seconds(11));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("rank 1 (host2, pid 7)"), absl::string_view::npos) << status;
  heartbeat.set_worker_id("stranger");
  EXPECT_FALSE(membership.Heartbeat(heartbeat, kNow));
}

// Two ranks, and the step that each last reported.
class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest()
      : membership_([] {
          MembershipOptions options = Options(2);
          options.stall_threshold = absl::Seconds(60);
          return options;
        }()) {
    EXPECT_TRUE(membership_.Register(Worker("a", "host", 0), kNow).ok());
    EXPECT_TRUE(membership_.Register(Worker("b", "host", 1), kNow).ok());
    EXPECT_TRUE(membership_.WaitForGroup(absl::ZeroDuration()).ok());
  }
  void Beat(const std::string& id, int64_t step_id, bool in_progress, MonotonicTime now) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.set_worker_id(id);
    heartbeat.set_last_step_id(step_id);
    heartbeat.set_step_in_progress(in_progress);
    EXPECT_TRUE(membership_.Heartbeat(heartbeat, now));
  }
  Membership membership_;
};

TEST_F(ProgressTest, ARankThatStaysInAStepIsNamedUntilItGoesOn) {
  for (int second = 1; second <= 61; ++second) {
    Beat("a", second, true, kNow + absl::Seconds(second));
    Beat("b", 7, true, kNow + absl::Seconds(second));
    EXPECT_TRUE(membership_.CheckProgress(kNow + absl::Seconds(second)).ok()) << second;
  }
  const absl::Status stall = membership_.CheckProgress(kNow + absl::Seconds(62));
  EXPECT_TRUE(absl::IsUnavailable(stall));
  EXPECT_EQ(stall.message(), "rank 1 (pid 7) has been in step 7 for longer than 1m");
  Beat("b", 8, true, kNow + absl::Seconds(62));
  EXPECT_TRUE(membership_.CheckProgress(kNow + absl::Seconds(62)).ok());
}

TEST_F(ProgressTest, AnIdleRankIsNotStalled) {
  Beat("a", 5, false, kNow);
  Beat("b", 5, false, kNow);
  EXPECT_TRUE(membership_.CheckProgress(kNow + absl::Hours(9)).ok());
  Beat("a", 5, true, kNow + absl::Hours(9));
  EXPECT_TRUE(membership_.CheckProgress(kNow + absl::Hours(9)).ok()) << "the step has only begun";
}

TEST_F(ProgressTest, TheRankThatTheOthersWaitForIsNamed) {
  Beat("a", 9, true, kNow);
  Beat("b", 8, true, kNow);
  EXPECT_EQ(membership_.CheckProgress(kNow + absl::Minutes(2)).message(),
            "rank 1 (pid 7) has been in step 8 for longer than 1m");
  Beat("b", 9, true, kNow);
  Beat("b", 9, true, kNow + absl::Seconds(30));  // a has been silent since
  EXPECT_EQ(membership_.CheckProgress(kNow + absl::Minutes(2)).message(),
            "rank 0 (pid 7) has been in step 9 for longer than 1m");
}

}  // namespace
}  // namespace somnus
