// A complete group, some members of which are replaced.

#include <thread>

#include "tests/membership/membership_fixture.h"

namespace somnus {
namespace {

// Three ranks that have been complete, "a", "b" and "c".
class ReplacementTest : public ::testing::Test {
 protected:
  explicit ReplacementTest(bool confirm_members = false)
      : membership_([&] {
          MembershipOptions options = Options(3);
          options.confirm_members = confirm_members;
          return options;
        }()) {
    for (const char* id : {"a", "b", "c"}) {
      EXPECT_TRUE(membership_.Register(Worker(id, absl::StrCat("host-", id)), kNow).ok());
    }
    EXPECT_EQ(Group(), "abc");
  }
  std::string Group() { return Order(membership_.WaitForGroup(absl::ZeroDuration())); }
  bool Complete() { return membership_.WaitForGroup(absl::ZeroDuration()).ok(); }
  Membership membership_;
};

TEST_F(ReplacementTest, ANewcomerTakesThePlaceThatIsOpenAndTheOthersKeepTheirs) {
  EXPECT_TRUE(absl::IsUnavailable(membership_.Register(Worker("n", "host-1", 1), kNow)))
      << "the loss is not known yet";
  EXPECT_TRUE(membership_.IsTaken(1));
  membership_.Reopen(1);
  EXPECT_FALSE(Complete());
  EXPECT_FALSE(membership_.IsTaken(1));
  EXPECT_TRUE(absl::IsUnavailable(membership_.Register(Worker("x", "host-0", 0), kNow)))
      << "another rank's place is not open";
  ASSERT_TRUE(membership_.Register(Worker("n", "host-1", 1), kNow).ok());
  EXPECT_EQ(Group(), "anc");
  EXPECT_TRUE(absl::IsUnavailable(membership_.Register(Worker("y", "host-y"), kNow))) << "complete again";
  // A worker that prefers no rank gets the place, too, on a host of any name.
  membership_.Reopen(2);
  ASSERT_TRUE(membership_.Register(Worker("y", "a-host"), kNow).ok());
  EXPECT_EQ(Group(), "any");
}

TEST_F(ReplacementTest, WhoWasTakenOutIsUnknownAndCannotComeBack) {
  membership_.Reopen(1);
  EXPECT_FALSE(membership_.Heartbeat(Beat("b"), kNow)) << "it is to leave";
  const absl::Status back = membership_.Register(Worker("b", "host-b"), kNow);
  EXPECT_TRUE(absl::IsPermissionDenied(back)) << back;
  EXPECT_EQ(back.message(), "worker_id: the group has given this worker up; start another one");
  EXPECT_FALSE(Complete());
  EXPECT_TRUE(membership_.Heartbeat(Beat("a"), kNow));
  EXPECT_TRUE(membership_.Heartbeat(Beat("c"), kNow));
}

TEST_F(ReplacementTest, SeveralPlacesAreFilledByPreferenceAndThenByHost) {
  membership_.Reopen(0);
  membership_.Reopen(2);
  membership_.Reopen(2);
  ASSERT_TRUE(membership_.Register(Worker("x", "host"), kNow).ok());
  EXPECT_FALSE(Complete());
  EXPECT_FALSE(membership_.IsTaken(0)) << "x has no rank yet";
  ASSERT_TRUE(membership_.Register(Worker("y", "host", 0), kNow).ok()) << "x can have the other place";
  EXPECT_TRUE(membership_.IsTaken(0));
  EXPECT_EQ(Group(), "ybx");
}

TEST_F(ReplacementTest, ANewcomerThatDiesBeforeTheGroupIsCompleteIsTakenOutByItsRank) {
  membership_.Reopen(0);
  membership_.Reopen(1);
  ASSERT_TRUE(membership_.Register(Worker("n", "host", 1), kNow).ok());
  membership_.Reopen(1);
  EXPECT_FALSE(membership_.Heartbeat(Beat("n"), kNow));
  ASSERT_TRUE(membership_.Register(Worker("o", "host", 1), kNow).ok());
  ASSERT_TRUE(membership_.Register(Worker("p", "host", 0), kNow).ok());
  EXPECT_EQ(Group(), "poc");
}

TEST_F(ReplacementTest, TheGroupIsWholeOnlyWhenThoseThatStayAreHeard) {
  membership_.Reopen(1);
  const MonotonicTime later = kNow + absl::Seconds(6);
  ASSERT_TRUE(membership_.Heartbeat(Beat("a"), later));
  ASSERT_TRUE(membership_.Register(Worker("n", "host", 1), later).ok());
  EXPECT_FALSE(Complete()) << "c has been silent for six seconds";
  ASSERT_TRUE(membership_.Heartbeat(Beat("c"), later));
  EXPECT_EQ(Group(), "anc");
}

TEST_F(ReplacementTest, WhileTheGroupFormsAgainSurvivorsAreWatchedAndNewcomersAreDropped) {
  membership_.Reopen(0);
  membership_.Reopen(1);
  ASSERT_TRUE(membership_.Register(Worker("n", "host", 1), kNow).ok());
  const Seen seen = Watch(&membership_, kNow, kNow + absl::Seconds(11));
  EXPECT_EQ(seen.silent, std::vector<std::string>{"c: rank 2 (host-c, pid 7) has sent no heartbeat for 11s"});
  EXPECT_EQ(seen.dropped, std::vector<std::string>{"the worker on host (pid 7)"});
}

TEST_F(ReplacementTest, ANewcomerIsMissedAsTheOneThatItReplaced) {
  EXPECT_EQ(Watch(&membership_, kNow, kNow + absl::Seconds(11)).silent.size(), 3u);
  const MonotonicTime later = kNow + absl::Seconds(11);
  ASSERT_TRUE(membership_.Heartbeat(Beat("a"), later));
  ASSERT_TRUE(membership_.Heartbeat(Beat("c"), later));
  membership_.Reopen(1);
  ASSERT_TRUE(membership_.Register(Worker("n", "host", 1), later).ok());
  ASSERT_EQ(Group(), "anc");
  EXPECT_EQ(Watch(&membership_, later, later + absl::Seconds(11)).silent,
            std::vector<std::string>{"n: rank 1 (host, pid 7) has sent no heartbeat for 11s"});
}

TEST_F(ReplacementTest, AWaitUnderWayEndsWithTheGroup) {
  membership_.Reopen(1);
  std::thread newcomer([&] { ASSERT_TRUE(membership_.Register(Worker("n", "host"), kNow).ok()); });
  EXPECT_EQ(Order(membership_.WaitForGroup(absl::InfiniteDuration())), "anc");
  newcomer.join();
  membership_.Reopen(1);
  std::thread interrupter([&] { membership_.Interrupt(absl::CancelledError("stopped")); });
  EXPECT_EQ(membership_.WaitForGroup(absl::InfiniteDuration()).status().message(), "stopped");
  interrupter.join();
}

TEST_F(ReplacementTest, MembersTellWhatHeartbeatsSaid) {
  v1::HeartbeatRequest beat = Beat("b");
  beat.set_group_epoch(4);
  beat.set_last_step_id(77);
  beat.set_step_in_progress(true);
  ASSERT_TRUE(membership_.Heartbeat(beat, kNow + absl::Seconds(2)));
  membership_.Reopen(2);
  const auto members = membership_.Members(kNow + absl::Seconds(3));
  ASSERT_EQ(members.size(), 3u);
  ASSERT_TRUE(members[0].has_value());
  EXPECT_EQ(members[0]->worker.worker_id(), "a");
  EXPECT_EQ(members[0]->silence, absl::Seconds(3));
  EXPECT_EQ(members[0]->group_epoch, 0);
  ASSERT_TRUE(members[1].has_value());
  EXPECT_EQ(members[1]->worker.worker_id(), "b");
  EXPECT_EQ(members[1]->silence, absl::Seconds(1));
  EXPECT_EQ(members[1]->group_epoch, 4);
  EXPECT_EQ(members[1]->last_step_id, 77);
  EXPECT_TRUE(members[1]->step_in_progress);
  EXPECT_FALSE(members[2].has_value());
}

class ConfirmedReplacementTest : public ReplacementTest {
 protected:
  ConfirmedReplacementTest() : ReplacementTest(true) {}
};

TEST_F(ConfirmedReplacementTest, ThoseThatStayConfirmThatTheyLiveAfterTheNewcomerCame) {
  membership_.Reopen(1);
  const MonotonicTime later = kNow + absl::Seconds(1);
  ASSERT_TRUE(membership_.Heartbeat(Beat("a"), later));
  ASSERT_TRUE(membership_.Heartbeat(Beat("c"), later));
  ASSERT_TRUE(membership_.Register(Worker("n", "host"), later + absl::Milliseconds(1)).ok());
  EXPECT_FALSE(Complete());
  ASSERT_TRUE(membership_.Heartbeat(Beat("a"), later + absl::Milliseconds(2)));
  EXPECT_FALSE(Complete());
  ASSERT_TRUE(membership_.Heartbeat(Beat("c"), later + absl::Milliseconds(2)));
  EXPECT_EQ(Group(), "anc");
}

}  // namespace
}  // namespace somnus
