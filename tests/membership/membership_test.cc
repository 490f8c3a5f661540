#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "tests/membership/membership_fixture.h"

namespace somnus {
namespace {

TEST(MembershipTest, AMemberThatDiedBeforeTheLastCameIsNotConfirmed) {
  MembershipOptions options = Options(2);
  options.confirm_members = true;
  Membership membership(options);
  const auto complete = [&] { return membership.WaitForGroup(absl::ZeroDuration()).ok(); };
  ASSERT_TRUE(membership.Register(Worker("a", "host1", 0), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host1", 1), kNow + absl::Milliseconds(1)).ok());
  EXPECT_FALSE(complete());  // a may have died since the last heartbeat
  EXPECT_FALSE(Watch(&membership, kNow, kNow + absl::Seconds(11)).dropped.empty());
  ASSERT_TRUE(membership.Register(Worker("c", "host1", 0), kNow + absl::Seconds(11)).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host1", 1), kNow + absl::Seconds(12)).ok());
  EXPECT_FALSE(complete());
  EXPECT_TRUE(membership.Heartbeat(Beat("c"), kNow + absl::Seconds(13)));
  EXPECT_TRUE(complete());
}

TEST(MembershipTest, RanksFollowPreferenceHostAndArrival) {
  Membership membership(Options(5));
  for (const auto& worker : {Worker("e", "host2"), Worker("d", "host1"), Worker("c", "host1"),
                             Worker("b", "host9", 1), Worker("a", "host5", 0)}) {
    ASSERT_TRUE(membership.Register(worker, kNow).ok());
  }
  EXPECT_EQ(Order(membership.WaitForGroup(absl::ZeroDuration())), "abdce");
}

TEST(MembershipTest, APreferredRankIsKeptThoughOthersPreferNone) {
  Membership membership(Options(3));
  for (const auto& worker : {Worker("a", "host3", 1), Worker("b", "host2"), Worker("c", "host1")}) {
    ASSERT_TRUE(membership.Register(worker, kNow).ok());
  }
  EXPECT_EQ(Order(membership.WaitForGroup(absl::ZeroDuration())), "cab");
}

TEST(MembershipTest, RefusalsSayWhy) {
  Membership membership(Options(2));
  v1::RegisterRequest worker = Worker("a", "host");
  worker.set_version("2");
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(worker, kNow)));
  EXPECT_TRUE(absl::IsInvalidArgument(membership.Register(Worker("a", "host", 2), kNow)));
  EXPECT_TRUE(absl::IsInvalidArgument(membership.Register(Worker("", "host"), kNow)));
  EXPECT_EQ(membership.Register(Worker("a", std::string(513, 'h')), kNow).message(),
            "host: must have at most 512 bytes");
  worker = Worker("a", "host");
  worker.set_build_id(std::string(513, 'b'));
  EXPECT_EQ(membership.Register(worker, kNow).message(), "build_id: must have at most 512 bytes");
  ASSERT_TRUE(membership.Register(Worker("a", "host", 1), kNow).ok()) << "nobody took a place";
  ASSERT_TRUE(membership.Register(Worker("a", "host", 1), kNow).ok()) << "the same one again";
  const absl::Status taken = membership.Register(Worker("b", "host", 1), kNow);
  EXPECT_TRUE(absl::IsUnavailable(taken)) << "it may try again";
  EXPECT_EQ(taken.message(), "preferred_rank: 1 is taken by the worker on host (pid 7) for now");
  ASSERT_TRUE(membership.Register(Worker("b", "host"), kNow).ok());
  const absl::Status full = membership.Register(Worker("c", "host"), kNow);
  EXPECT_TRUE(absl::IsUnavailable(full)) << "it may wait as a spare";
  EXPECT_EQ(full.message(), "all 2 places of the group are taken for now");
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

TEST(MembershipTest, AWaitIsEndedByItsOwnStopConditionAlone) {
  Membership membership(Options(1));
  absl::Mutex mu;
  bool asked = false;
  absl::Status stop;
  std::thread stops([&] {
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(&asked));
      stop = absl::AbortedError("rank 0 was lost again");
    }
    membership.Recheck();
  });
  const auto condition = [&] {
    absl::MutexLock lock(&mu);
    asked = true;
    return stop;
  };
  EXPECT_EQ(membership.WaitForGroup(absl::InfiniteDuration(), condition).status().message(),
            "rank 0 was lost again");
  stops.join();
  EXPECT_TRUE(absl::IsAborted(membership.WaitForGroup(absl::InfiniteDuration(), condition).status()))
      << "it was true before the wait";
  membership.Recheck();
  EXPECT_TRUE(absl::IsDeadlineExceeded(membership.WaitForGroup(absl::ZeroDuration()).status()));
  ASSERT_TRUE(membership.Register(Worker("a", "host"), kNow).ok());
  EXPECT_EQ(Order(membership.WaitForGroup(absl::InfiniteDuration())), "a");
}

TEST(MembershipTest, WhoDiesBeforeTheGroupIsCompleteGivesItsPlaceBack) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("dead", "host", 0), kNow).ok());
  EXPECT_TRUE(Watch(&membership, kNow, kNow + absl::Seconds(10)).dropped.empty());
  const Seen seen = Watch(&membership, kNow + absl::Seconds(11), kNow + absl::Seconds(12));
  EXPECT_EQ(seen.dropped, std::vector<std::string>{"the worker on host (pid 7)"});
  EXPECT_TRUE(seen.silent.empty()) << "nobody is missed before the group is complete";
  EXPECT_FALSE(membership.Heartbeat(Beat("dead"), kNow + absl::Seconds(12))) << "it is to leave";
  ASSERT_TRUE(membership.Register(Worker("a", "host", 0), kNow + absl::Seconds(12)).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host", 1), kNow + absl::Seconds(12)).ok());
  EXPECT_TRUE(Watch(&membership, kNow + absl::Seconds(12), kNow + absl::Minutes(2)).dropped.empty())
      << "from here on CheckHeartbeats watches";
  EXPECT_EQ(Order(membership.WaitForGroup(absl::ZeroDuration())), "ab");
}

TEST(MembershipTest, AGroupIsNotCompleteWithAMemberThatNobodyHears) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("a", "host1"), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host2"), kNow + absl::Seconds(6)).ok());
  const absl::Status status = membership.WaitForGroup(absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << "a has not been heard for six seconds";
  EXPECT_EQ(status.message(), "not all of 2 workers have sent a heartbeat within 0");
  EXPECT_TRUE(absl::IsUnavailable(membership.Register(Worker("c", "host3"), kNow + absl::Seconds(6))));
  ASSERT_TRUE(membership.Heartbeat(Beat("a"), kNow + absl::Seconds(7))) << "it was only slow";
  EXPECT_TRUE(membership.WaitForGroup(absl::ZeroDuration()).ok());
}

TEST(MembershipTest, EverySilentMemberIsNamedOnceAndTheWatchGoesOn) {
  Membership membership(Options(3));
  ASSERT_TRUE(membership.Register(Worker("c", "host3"), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host2"), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("a", "host1"), kNow).ok());
  EXPECT_TRUE(membership.Heartbeat(Beat("a"), kNow + absl::Seconds(8)));
  EXPECT_TRUE(membership.Heartbeat(Beat("c"), kNow + absl::Seconds(4)));
  EXPECT_TRUE(Watch(&membership, kNow, kNow + absl::Seconds(10)).silent.empty());
  EXPECT_EQ(Watch(&membership, kNow + absl::Seconds(11), kNow + absl::Seconds(18)).silent,
            (std::vector<std::string>{"b: rank 1 (host2, pid 7) has sent no heartbeat for 11s",
                                      "c: rank 2 (host3, pid 7) has sent no heartbeat for 11s"}));
  EXPECT_TRUE(membership.Heartbeat(Beat("b"), kNow + absl::Seconds(18))) << "it is a member until Reopen";
  EXPECT_FALSE(membership.Heartbeat(Beat("stranger"), kNow));
}

TEST(MembershipTest, AWatcherThatRanLateBlamesNobodyForTheTimeThatItMissed) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Worker("a", "host", 0), kNow).ok());
  ASSERT_TRUE(membership.Register(Worker("b", "host", 1), kNow).ok());
  EXPECT_TRUE(Watch(&membership, kNow, kNow + absl::Seconds(9)).silent.empty());
  // For an hour nothing of this process ran.
  const MonotonicTime resumed = kNow + absl::Hours(1);
  EXPECT_TRUE(Watch(&membership, resumed, resumed + absl::Seconds(10)).silent.empty())
      << "heartbeats of that hour may not have been read yet";
  ASSERT_TRUE(membership.Heartbeat(Beat("a"), resumed + absl::Seconds(1)));
  EXPECT_EQ(Watch(&membership, resumed + absl::Seconds(11), resumed + absl::Seconds(11)).silent,
            std::vector<std::string>{"b: rank 1 (host, pid 7) has sent no heartbeat for 1h11s"});
  // Newcomers get the same time.
  Membership forming(Options(2));
  ASSERT_TRUE(forming.Register(Worker("a", "host", 0), kNow).ok());
  EXPECT_TRUE(Watch(&forming, kNow, kNow).dropped.empty());
  EXPECT_TRUE(Watch(&forming, resumed, resumed + absl::Seconds(10)).dropped.empty());
  EXPECT_EQ(Watch(&forming, resumed + absl::Seconds(11), resumed + absl::Seconds(11)).dropped.size(), 1u);
}

v1::RegisterRequest Built(const std::string& id, int rank, const std::string& build_id) {
  v1::RegisterRequest request = Worker(id, "host", rank);
  request.set_build_id(build_id);
  return request;
}

TEST(MembershipTest, AllMembersHaveTheBuildOfTheFirst) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(Built("a", 0, "0123456789abcdef"), kNow).ok());
  const absl::Status other = membership.Register(Built("b", 1, "fedcba9876543210"), kNow);
  EXPECT_TRUE(absl::IsFailedPrecondition(other));
  EXPECT_EQ(other.message(), "build_id: the group's is 0123456789ab, the worker's is fedcba987654");
  EXPECT_EQ(membership.Register(Built("b", 1, ""), kNow).message(),
            "build_id: the group's is 0123456789ab, the worker's is none");
  ASSERT_TRUE(membership.Register(Built("c", 1, "0123456789abcdef"), kNow).ok());
  ASSERT_TRUE(membership.WaitForGroup(absl::ZeroDuration()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(Built("s", 1, "other"), kNow)))
      << "it could never replace a member";
  membership.Reopen(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(Built("d", 0, "other"), kNow)));
  // In an empty group the next worker decides.
  membership.Reopen(1);
  ASSERT_TRUE(membership.Register(Built("e", 0, "other"), kNow).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(Built("f", 1, "0123456789abcdef"), kNow)));
}

TEST(MembershipTest, ABuildThatTheCoordinatorNamesDecides) {
  MembershipOptions options = Options(1);
  options.build_id = "mine";
  Membership membership(options);
  EXPECT_EQ(membership.Register(Built("a", 0, "other"), kNow).message(),
            "build_id: the group's is mine, the worker's is other");
  EXPECT_TRUE(membership.Register(Built("a", 0, "mine"), kNow).ok());
}

v1::RegisterRequest OnCpu(const std::string& id, int rank, const std::string& cpu_isa) {
  v1::RegisterRequest request = Built(id, rank, "mine");
  request.set_device_type(v1::DEVICE_TYPE_CPU);
  request.set_cpu_isa(cpu_isa);
  return request;
}

TEST(MembershipTest, AllMembersHaveTheInstructionSetOfTheFirstGroup) {
  Membership membership(Options(2));
  ASSERT_TRUE(membership.Register(OnCpu("a", 0, "avx512"), kNow).ok());
  const absl::Status other = membership.Register(OnCpu("b", 1, "avx2"), kNow);
  EXPECT_TRUE(absl::IsFailedPrecondition(other));
  EXPECT_TRUE(absl::StartsWith(other.message(), "cpu_isa: the group computes with avx512, the worker on "));
  EXPECT_TRUE(absl::StrContains(other.message(), " with avx2, "));
  membership.Reopen(0);
  // Nothing was computed yet.
  ASSERT_TRUE(membership.Register(OnCpu("c", 0, "avx2"), kNow).ok());
  ASSERT_TRUE(membership.Register(OnCpu("d", 1, "avx2"), kNow).ok());
  ASSERT_TRUE(membership.WaitForGroup(absl::ZeroDuration()).ok());
  for (const int rank : {0, 1}) membership.Reopen(rank);
  EXPECT_TRUE(absl::IsFailedPrecondition(membership.Register(OnCpu("e", 0, "avx512"), kNow)))
      << "open requests would go on with other tokens";
  EXPECT_TRUE(membership.Register(OnCpu("f", 0, "avx2"), kNow).ok());
}

TEST(MembershipTest, TheInstructionSetCountsWhereTheGroupRunsOnCpus) {
  for (const v1::DeviceType device :
       {v1::DEVICE_TYPE_UNSPECIFIED, v1::DEVICE_TYPE_CUDA, v1::DEVICE_TYPE_CPU}) {
    MembershipOptions options = Options(2);
    options.device = device;
    Membership membership(options);
    v1::RegisterRequest one = OnCpu("a", 0, "avx512"), other = OnCpu("b", 1, "avx2");
    one.set_device_type(v1::DEVICE_TYPE_CUDA);
    other.set_device_type(v1::DEVICE_TYPE_CUDA);
    ASSERT_TRUE(membership.Register(one, kNow).ok());
    EXPECT_EQ(membership.Register(other, kNow).ok(), device != v1::DEVICE_TYPE_CPU);
  }
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
