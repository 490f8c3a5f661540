// The states of an NCCL communicator, through a fake: every transition, and waits that end only by progress,
// an error, a deadline or Abort.

#include "worker/comm/nccl_communicator.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/fake_nccl.h"

namespace somnus {
namespace {

class NcclCommunicatorTest : public testing::Test {
 protected:
  NcclCommunicatorTest() {
    options_.rank = 1;
    options_.world_size = 4;
    options_.unique_id = std::string(128, 'x');
    options_.stream = &options_;
    options_.init_timeout = absl::Seconds(20);
    options_.call_timeout = absl::Seconds(20);
    options_.finalize_timeout = absl::Seconds(20);
  }
  ~NcclCommunicatorTest() override {
    EXPECT_EQ(fake_.live_comms(), 0) << "a communicator was neither destroyed nor aborted";
    EXPECT_TRUE(fake_.violations().empty()) << fake_.violations()[0];
  }

  std::unique_ptr<NcclCommunicator> Start() {
    auto started = NcclCommunicator::Start(fake_.api(), options_);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }
  std::unique_ptr<NcclCommunicator> Ready() {
    auto comm = Start();
    const absl::Status status = comm->AwaitReady();
    EXPECT_TRUE(status.ok()) << status;
    return comm;
  }

  FakeNccl fake_;
  NcclOptions options_;
  float data_[4] = {};
};

TEST_F(NcclCommunicatorTest, BecomesReadyOnceNcclIs) {
  fake_.Answer("ncclCommInitRankConfig", {nccl::kInProgress});
  fake_.Answer("ncclCommGetAsyncError", {nccl::kInProgress, nccl::kInProgress, nccl::kInProgress});
  auto comm = Start();
  EXPECT_EQ(comm->state(), NcclState::kInitialising);
  EXPECT_EQ(fake_.last_config().blocking, 0);
  const absl::Status early = comm->AllReduceSum(data_, 4, DataType::kF32);
  EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
  EXPECT_NE(early.message().find("initialising"), std::string::npos);
  EXPECT_TRUE(comm->AwaitReady().ok());
  EXPECT_EQ(comm->state(), NcclState::kReady);
  EXPECT_GE(fake_.calls("ncclCommGetAsyncError"), 4);
  // Collectives go through a blocking communicator of the same ranks; the communicator that formed has ended.
  EXPECT_EQ(fake_.split_config().blocking, 1);
  EXPECT_EQ(fake_.split_key(), options_.rank);
  EXPECT_EQ(fake_.live_comms(), 1);
  EXPECT_EQ(fake_.calls("ncclCommDestroy"), 1);
  EXPECT_TRUE(comm->AllReduceSum(data_, 4, DataType::kF32).ok());
  EXPECT_TRUE(fake_.last_comm_is_live());
  EXPECT_TRUE(absl::IsFailedPrecondition(comm->AwaitReady())) << "once";
}

TEST_F(NcclCommunicatorTest, InitThatFailsAtOnceOrLaterIsAnError) {
  fake_.Answer("ncclCommInitRankConfig", {nccl::kUnhandledCudaError});
  const auto at_once = NcclCommunicator::Start(fake_.api(), options_);
  EXPECT_TRUE(absl::IsInternal(at_once.status())) << at_once.status();
  EXPECT_NE(at_once.status().message().find("the reason"), std::string::npos);
  EXPECT_EQ(fake_.live_comms(), 0);

  fake_.Answer("ncclCommInitRankConfig", {nccl::kInProgress});
  fake_.Answer("ncclCommGetAsyncError", {nccl::kInProgress, nccl::kRemoteError});
  auto later = Start();
  EXPECT_TRUE(absl::IsUnavailable(later->AwaitReady()));
  EXPECT_EQ(later->state(), NcclState::kFailed);
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 2);
}

TEST_F(NcclCommunicatorTest, SplitThatFailsOrGoesOnIsAwaited) {
  fake_.Answer("ncclCommSplit", {nccl::kInternalError});
  auto failed = Start();
  EXPECT_TRUE(absl::IsInternal(failed->AwaitReady()));
  EXPECT_EQ(fake_.live_comms(), 0);

  fake_.Answer("ncclCommSplit", {nccl::kInProgress});
  fake_.Answer("ncclCommGetAsyncError", {nccl::kSuccess, nccl::kInProgress, nccl::kInProgress});
  auto comm = Start();
  EXPECT_TRUE(comm->AwaitReady().ok());
  EXPECT_EQ(fake_.live_comms(), 1);
}

TEST_F(NcclCommunicatorTest, FormingCommunicatorThatDoesNotFinishIsAborted) {
  fake_.Answer("ncclCommFinalize", {nccl::kInternalError});
  auto comm = Ready();
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1);
  EXPECT_EQ(fake_.live_comms(), 1);
  EXPECT_TRUE(comm->AllReduceSum(data_, 4, DataType::kF32).ok());
}

TEST_F(NcclCommunicatorTest, RanksThatNeverComeEndInTheDeadline) {
  options_.init_timeout = absl::Milliseconds(50);
  fake_.SetAsyncError(nccl::kInProgress);
  auto comm = Start();
  const absl::Status status = comm->AwaitReady();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(comm->state(), NcclState::kFailed);
  EXPECT_EQ(comm->AllReduceSum(data_, 4, DataType::kF32), status) << "the first cause stays";
}

TEST_F(NcclCommunicatorTest, PeerKnownToBeDeadEndsTheWaitForIt) {
  options_.health = [] { return absl::UnavailableError("rank 2 (pid 7) died"); };
  fake_.SetAsyncError(nccl::kInProgress);
  auto comm = Start();
  const absl::Status status = comm->AwaitReady();
  EXPECT_TRUE(absl::IsUnavailable(status) && status.message() == "rank 2 (pid 7) died") << status;
}

TEST_F(NcclCommunicatorTest, AbortFromAnotherThreadEndsAWait) {
  fake_.SetAsyncError(nccl::kInProgress);
  auto comm = Start();
  std::thread aborter([&] {
    absl::SleepFor(absl::Milliseconds(50));
    comm->Abort("told so");
    comm->Abort("again");
  });
  const absl::Status status = comm->AwaitReady();
  aborter.join();
  EXPECT_TRUE(absl::IsAborted(status) && status.message() == "told so") << status;
  EXPECT_EQ(comm->state(), NcclState::kAborted);
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1);
  EXPECT_EQ(comm->status(), status);
  EXPECT_EQ(comm->Poll(), status);
  EXPECT_EQ(comm->Suspend(), status);
  EXPECT_EQ(comm->Resume(), status);
}

TEST_F(NcclCommunicatorTest, CollectivesAreQueuedWithTheirTypes) {
  auto comm = Ready();
  const std::pair<DataType, nccl::ElementType> types[] = {
      {DataType::kF32, nccl::kFloat32}, {DataType::kBF16, nccl::kBfloat16}, {DataType::kF16, nccl::kFloat16}};
  for (const auto& [type, element] : types) {
    EXPECT_TRUE(comm->AllReduceSum(data_, 3, type).ok());
    EXPECT_EQ(fake_.last_type(), element);
    EXPECT_EQ(fake_.last_count(), 3u);
    EXPECT_EQ(fake_.last_stream(), options_.stream);
  }
  EXPECT_TRUE(comm->AllGather(data_, 5, data_).ok());
  EXPECT_EQ(fake_.last_type(), nccl::kInt8);
  EXPECT_EQ(fake_.last_count(), 5u);
  EXPECT_TRUE(absl::IsInvalidArgument(comm->AllReduceSum(data_, 3, DataType::kI32)));
  EXPECT_EQ(comm->state(), NcclState::kReady);
}

TEST_F(NcclCommunicatorTest, MessagesGoFromRankToRank) {
  auto receiver = Ready();
  options_.rank = 0;
  options_.about = "the link to rank 5: ";
  auto sender = Ready();
  const float sent[4] = {1, 2, 3, 4};
  EXPECT_TRUE(sender->Send(sent, sizeof(sent), /*to=*/1).ok());
  EXPECT_TRUE(receiver->Receive(data_, sizeof(data_), /*from=*/0).ok());
  EXPECT_EQ(data_[3], 4);
  fake_.Answer("ncclSend", {nccl::kRemoteError});
  const absl::Status lost = sender->Send(sent, sizeof(sent), 1);
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(lost.message().find("the link to rank 5: ncclSend: remote process exited"), 0u) << lost;
  EXPECT_EQ(sender->Send(sent, sizeof(sent), 1), lost);
  EXPECT_EQ(sender->state(), NcclState::kFailed);
}

// The first message connects the ranks, for which the receiver's call waits.
TEST_F(NcclCommunicatorTest, AbortFreesAReceiverWhoseSenderDoesNotCome) {
  auto comm = Ready();
  absl::Status stuck;
  std::thread runner([&] { stuck = comm->Receive(data_, sizeof(data_), 0); });
  while (fake_.calls("ncclRecv") == 0) absl::SleepFor(absl::Milliseconds(1));
  comm->Abort("rank 0 died");
  runner.join();
  EXPECT_TRUE(absl::IsAborted(stuck) && stuck.message() == "rank 0 died") << stuck;
}

// The wait used to poll every 20 us.
TEST_F(NcclCommunicatorTest, CollectivesAskForNoProgress) {
  auto comm = Ready();
  const int polls = fake_.calls("ncclCommGetAsyncError");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(comm->AllReduceSum(data_, 4, DataType::kF32).ok());
  EXPECT_EQ(fake_.calls("ncclCommGetAsyncError"), polls);
}

TEST_F(NcclCommunicatorTest, ErrorOfACallIsTheEnd) {
  auto comm = Ready();
  fake_.Answer("ncclAllGather", {nccl::kSystemError});
  EXPECT_TRUE(absl::IsUnavailable(comm->AllGather(data_, 4, data_)));
  EXPECT_EQ(comm->state(), NcclState::kFailed);
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1) << "what is queued must leave the device";
  EXPECT_TRUE(absl::IsUnavailable(comm->AllReduceSum(data_, 4, DataType::kF32)));
  EXPECT_EQ(fake_.calls("ncclAllReduce"), 0);
}

// Errors that happen on the device after a collective was queued.
TEST_F(NcclCommunicatorTest, PollFindsAsyncErrors) {
  auto comm = Ready();
  EXPECT_TRUE(comm->AllReduceSum(data_, 4, DataType::kF32).ok());
  EXPECT_TRUE(comm->Poll().ok());
  fake_.SetAsyncError(nccl::kInProgress);
  EXPECT_TRUE(comm->Poll().ok()) << "not an error";
  fake_.SetAsyncError(nccl::kRemoteError);
  EXPECT_TRUE(absl::IsUnavailable(comm->Poll()));
  EXPECT_EQ(comm->state(), NcclState::kFailed);
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1);
  comm->Abort("too late");
  EXPECT_TRUE(absl::IsUnavailable(comm->status())) << "the first cause stays";
}

// A device whose queue is full of work that waits for a dead rank blocks the thread that queues.
TEST_F(NcclCommunicatorTest, AbortFreesAThreadThatIsStuckInsideNccl) {
  auto comm = Ready();
  fake_.Hold("ncclAllReduce");
  absl::Status stuck;
  std::thread runner([&] { stuck = comm->AllReduceSum(data_, 4, DataType::kF32); });
  while (fake_.calls("ncclAllReduce") == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(comm->Poll().ok()) << "does not wait for it";
  const absl::Time start = absl::Now();
  comm->Abort("rank 0 died");
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  runner.join();
  EXPECT_TRUE(absl::IsAborted(stuck)) << stuck;
}

// The first collective connects the ranks, and a blocking collective waits for ever.
TEST_F(NcclCommunicatorTest, PollEndsACallThatDoesNotReturn) {
  options_.call_timeout = absl::Milliseconds(50);
  auto comm = Ready();
  fake_.Hold("ncclAllReduce");
  absl::Status stuck;
  std::thread runner([&] { stuck = comm->AllReduceSum(data_, 4, DataType::kF32); });
  while (fake_.calls("ncclAllReduce") == 0) absl::SleepFor(absl::Milliseconds(1));
  while (comm->Poll().ok()) absl::SleepFor(absl::Milliseconds(5));
  runner.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(stuck)) << stuck;
  EXPECT_EQ(comm->state(), NcclState::kFailed);
}

TEST_F(NcclCommunicatorTest, SuspendsAndResumes) {
  auto comm = Ready();
  EXPECT_TRUE(comm->Resume().ok()) << "ready already";
  EXPECT_EQ(fake_.calls("ncclCommResume"), 0);
  EXPECT_TRUE(comm->Suspend().ok());
  EXPECT_TRUE(comm->Suspend().ok()) << "again";
  EXPECT_EQ(comm->state(), NcclState::kSuspended);
  EXPECT_EQ(fake_.calls("ncclCommSuspend"), 1);
  const absl::Status status = comm->AllReduceSum(data_, 4, DataType::kF32);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.message().find("suspended"), std::string::npos) << status;
  EXPECT_TRUE(comm->Resume().ok());
  EXPECT_EQ(comm->state(), NcclState::kReady);
  EXPECT_TRUE(comm->AllReduceSum(data_, 4, DataType::kF32).ok());
  fake_.Answer("ncclCommSuspend", {nccl::kInternalError});
  EXPECT_TRUE(absl::IsInternal(comm->Suspend()));
  EXPECT_EQ(comm->state(), NcclState::kFailed);
}

TEST_F(NcclCommunicatorTest, SuspendedGroupIsAbortedWhenItGoes) {
  auto comm = Ready();
  EXPECT_TRUE(comm->Suspend().ok());
  comm.reset();
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1);
  EXPECT_EQ(fake_.calls("ncclCommFinalize"), 1) << "of the one that the group formed by";
}

TEST_F(NcclCommunicatorTest, LeavesInOrder) {
  Ready().reset();
  EXPECT_EQ(fake_.calls("ncclCommFinalize"), 2) << "and of the one that the group formed by";
  EXPECT_EQ(fake_.calls("ncclCommDestroy"), 2);
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 0);
}

TEST_F(NcclCommunicatorTest, LeavesByForceWhenPeersDoNotFinish) {
  options_.finalize_timeout = absl::Milliseconds(50);
  auto comm = Ready();
  fake_.Hold("ncclCommFinalize");
  const absl::Time start = absl::Now();
  comm.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(fake_.calls("ncclCommDestroy"), 1) << "it could block for ever";
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 1);
}

TEST_F(NcclCommunicatorTest, UniqueIdsAreWhole) {
  const absl::StatusOr<std::string> id = MakeNcclUniqueId(fake_.api());
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(*id, std::string(128, '\7'));
  fake_.Answer("ncclGetUniqueId", {nccl::kSystemError});
  EXPECT_TRUE(absl::IsUnavailable(MakeNcclUniqueId(fake_.api()).status()));
  options_.unique_id = "short";
  const auto status = NcclCommunicator::Start(fake_.api(), options_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(OldNccl, DoesNotSuspend) {
  FakeNccl fake(/*can_suspend=*/false);
  NcclOptions options{.unique_id = std::string(128, 'x')};
  auto comm = NcclCommunicator::Start(fake.api(), options);
  ASSERT_TRUE(comm.ok() && (*comm)->AwaitReady().ok());
  EXPECT_TRUE((*comm)->Suspend().ok());
  EXPECT_EQ((*comm)->state(), NcclState::kReady);
  EXPECT_TRUE((*comm)->Resume().ok());
}

// The variable used to be set when NCCL was first needed, on a thread beside threads that read the
// environment.
TEST(RealNccl, IsRefusedWhereMainHasNotSetItsEnvironment) {
  unsetenv("NCCL_GRAPH_REGISTER");
  const absl::Status status = NcclApi::Load().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(getenv("NCCL_GRAPH_REGISTER"), nullptr) << "only main writes it";
}

// On every machine: a complete table, or a reason. Graph registration is off either way.
TEST(RealNccl, LoadsOrSaysWhyNot) {
  SetNcclEnvironment();
  const absl::StatusOr<const NcclApi*> api = NcclApi::Load();
  EXPECT_STREQ(getenv("NCCL_GRAPH_REGISTER"), "0");
  if (!api.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(api.status()));
    EXPECT_NE(api.status().message().find("NCCL"), std::string::npos) << api.status();
    return;
  }
  EXPECT_GE((*api)->version, 21800);
  EXPECT_EQ((*api)->ncclCommSuspend == nullptr, (*api)->ncclCommResume == nullptr);
  EXPECT_EQ(*NcclApi::Load(), *api) << "once per process";
}

}  // namespace
}  // namespace somnus
