// Workers that an earlier coordinator left: who may stay, and the membership's answers.

#include "coordinator/membership/adoption.h"

#include <functional>

#include "absl/strings/match.h"
#include "tests/membership/membership_fixture.h"

namespace somnus {
namespace {

AdoptionTerms Terms() {
  AdoptionTerms terms;
  terms.build_id = "build";
  terms.checkpoint_fingerprint = "files";
  terms.options_digests = {"options of 0", "options of 1"};
  terms.device_indices = {4, 5};
  return terms;
}

// A worker that held rank 1 of 2.
v1::RegisterRequest Left() {
  v1::RegisterRequest worker = Worker("a", "host", 1);
  worker.set_build_id("build");
  worker.set_device_type(v1::DEVICE_TYPE_CUDA);
  worker.set_device_index(5);
  v1::WorkerSnapshot* held = worker.mutable_snapshot();
  held->set_state("asleep");
  held->set_group_epoch(3);
  held->set_rank(1);
  held->set_world_size(2);
  held->set_weights_version(1);
  held->set_checkpoint_fingerprint("files");
  held->set_options_digest("options of 1");
  held->set_num_blocks(100);
  return worker;
}

TEST(AdoptionTest, AWorkerThatHoldsWhatIsWantedStays) {
  const Adoption adoption = DecideAdoption(Left(), Terms());
  EXPECT_EQ(adoption.action, v1::REGISTER_ACTION_ADOPT) << adoption.reason;
  EXPECT_EQ(adoption.reason, "");
}

TEST(AdoptionTest, OneOfARankThatDoesNotExistLeaves) {
  v1::RegisterRequest worker = Left();
  worker.mutable_snapshot()->set_rank(2);
  EXPECT_EQ(DecideAdoption(worker, Terms()).action, v1::REGISTER_ACTION_LEAVE);
}

TEST(AdoptionTest, WhatDiffersIsNamed) {
  struct Case {
    const char* field;
    std::function<void(v1::RegisterRequest*)> change;
  };
  const Case cases[] = {
      {"build_id", [](v1::RegisterRequest* worker) { worker->set_build_id("another"); }},
      {"device_index", [](v1::RegisterRequest* worker) { worker->set_device_index(4); }},
      {"rank", [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_world_size(3); }},
      {"rank", [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_world_size(1); }},
      {"checkpoint_fingerprint",
       [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_checkpoint_fingerprint("x"); }},
      {"options_digest",
       [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_options_digest("options of 0"); }},
      {"weights_version",
       [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_weights_version(2); }},
      {"weights_version",
       [](v1::RegisterRequest* worker) {
         worker->mutable_snapshot()->set_weights_version(0);
         worker->mutable_snapshot()->set_weights_stale(true);
       }},
      {"state", [](v1::RegisterRequest* worker) { worker->mutable_snapshot()->set_weights_version(0); }},
      {"state",
       [](v1::RegisterRequest* worker) {
         worker->mutable_snapshot()->set_state("loaded");
         worker->mutable_snapshot()->set_sleep_level(1);
         worker->mutable_snapshot()->set_num_blocks(0);
       }},
  };
  for (const Case& one : cases) {
    v1::RegisterRequest worker = Left();
    one.change(&worker);
    const Adoption adoption = DecideAdoption(worker, Terms());
    EXPECT_EQ(adoption.action, v1::REGISTER_ACTION_RESET) << one.field;
    EXPECT_TRUE(absl::StartsWith(adoption.reason, absl::StrCat(one.field, ":"))) << adoption.reason;
  }
}

TEST(AdoptionTest, TheCallersRankCounts) {
  EXPECT_EQ(DecideAdoption(Left(), 1, Terms()).action, v1::REGISTER_ACTION_ADOPT);
  v1::RegisterRequest worker = Left();
  worker.set_device_index(4);
  EXPECT_EQ(DecideAdoption(worker, 0, Terms()).action, v1::REGISTER_ACTION_RESET)
      << "its weights are rank 1's";
}

TEST(AdoptionTest, OneThatNobodyHasUsedStays) {
  v1::RegisterRequest worker = Left();
  *worker.mutable_snapshot() = v1::WorkerSnapshot();
  EXPECT_EQ(DecideAdoption(worker, Terms()).action, v1::REGISTER_ACTION_ADOPT);
  worker.set_build_id("another");
  EXPECT_EQ(DecideAdoption(worker, Terms()).action, v1::REGISTER_ACTION_RESET);
}

TEST(AdoptionTest, RemoteWorkersMayBeOfAnyBuildAndDevice) {
  AdoptionTerms terms = Terms();
  terms.build_id.clear();
  terms.device_indices.clear();
  v1::RegisterRequest worker = Left();
  worker.set_build_id("another");
  worker.set_device_index(9);
  EXPECT_EQ(DecideAdoption(worker, terms).action, v1::REGISTER_ACTION_ADOPT);
}

class MembershipAdoptionTest : public ::testing::Test {
 protected:
  MembershipAdoptionTest() {
    MembershipOptions options = Options(2);
    options.adopt = [this](const v1::RegisterRequest&) {
      ++num_decisions_;
      return Adoption{action_, "because"};
    };
    membership_ = std::make_unique<Membership>(options);
  }
  v1::RegisterRequest WithSnapshot(const std::string& id, int rank) {
    v1::RegisterRequest worker = Worker(id, "host", rank);
    worker.mutable_snapshot()->set_num_blocks(7);
    return worker;
  }

  v1::RegisterAction action_ = v1::REGISTER_ACTION_ADOPT;
  int num_decisions_ = 0;
  Adoption adoption_;
  std::unique_ptr<Membership> membership_;
};

TEST_F(MembershipAdoptionTest, AnAdoptedWorkerIsAMemberWithItsSnapshot) {
  ASSERT_TRUE(membership_->Register(WithSnapshot("a", 1), kNow, &adoption_).ok());
  ASSERT_TRUE(membership_->Register(Worker("b", "host", 0), kNow, &adoption_).ok());
  EXPECT_EQ(num_decisions_, 1) << "who holds nothing needs no decision";
  const auto group = membership_->WaitForGroup(absl::ZeroDuration());
  ASSERT_EQ(Order(group), "ba");
  EXPECT_EQ((*group)[1].snapshot().num_blocks(), 7);
}

TEST_F(MembershipAdoptionTest, OneThatHasToLeaveIsNoMember) {
  for (const v1::RegisterAction action : {v1::REGISTER_ACTION_RESET, v1::REGISTER_ACTION_LEAVE}) {
    action_ = action;
    ASSERT_TRUE(membership_->Register(WithSnapshot("a", 1), kNow, &adoption_).ok());
    EXPECT_EQ(adoption_.action, action);
    EXPECT_EQ(adoption_.reason, "because");
    EXPECT_FALSE(membership_->Heartbeat(Beat("a"), kNow));
  }
}

TEST_F(MembershipAdoptionTest, AMemberThatRegistersAgainIsOne) {
  ASSERT_TRUE(membership_->Register(Worker("a", "host", 1), kNow, &adoption_).ok());
  action_ = v1::REGISTER_ACTION_RESET;
  ASSERT_TRUE(membership_->Register(WithSnapshot("a", 1), kNow, &adoption_).ok());
  EXPECT_EQ(adoption_.action, v1::REGISTER_ACTION_ADOPT);
  EXPECT_EQ(num_decisions_, 0);
}

TEST_F(MembershipAdoptionTest, WhoIsRefusedAnywayIsNotDecidedAbout) {
  v1::RegisterRequest worker = WithSnapshot("a", 1);
  worker.set_version("another");
  EXPECT_TRUE(absl::IsFailedPrecondition(membership_->Register(worker, kNow, &adoption_)));
  EXPECT_EQ(num_decisions_, 0);
}

TEST_F(MembershipAdoptionTest, OneThatWasTakenOutDoesNotComeBack) {
  ASSERT_TRUE(membership_->Register(Worker("a", "host", 1), kNow, &adoption_).ok());
  membership_->Reopen(1);
  EXPECT_TRUE(absl::IsPermissionDenied(membership_->Register(WithSnapshot("a", 1), kNow, &adoption_)));
}

}  // namespace
}  // namespace somnus
