// The executor over epochs that end and are replaced.

#include "coordinator/executor/grpc_executor.h"

#include <optional>
#include <thread>

#include "proto/limits.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

class GrpcExecutorTest : public GroupEpochTest {
 protected:
  void TearDown() override {
    executor_.reset();
    GroupEpochTest::TearDown();
  }

  void Serve(int world_size) {
    Connect(world_size);
    links_ = epoch_->workers();
    executor_ = std::make_unique<GrpcExecutor>(
        std::move(epoch_),
        [this](const Held& held, bool restart) {
          wanted_ = held.residency;
          restarts_ = restart;
        },
        [this](const absl::Status& reason) { aborted_ = reason; });
  }

  std::vector<WorkerLink> links_;
  std::optional<Residency> wanted_;
  bool restarts_ = false;
  absl::Status aborted_;
  std::unique_ptr<GrpcExecutor> executor_;
};

TEST_F(GrpcExecutorTest, ANewEpochTakesThePlaceOfOneThatFailed) {
  Serve(2);
  std::vector<std::string> failures;
  executor_->OnFailure([&](const absl::Status& status) { failures.emplace_back(status.message()); });
  absl::Status recovered = absl::UnknownError("not yet");
  executor_->OnRecovered([&](const absl::Status& status) { recovered = status; });
  EXPECT_EQ(executor_->group_epoch(), 1);
  workers_[1]->FailStep(1);
  ASSERT_TRUE(Send(*executor_, 1).ok());
  const absl::Status failure = executor_->Wait(absl::Minutes(1)).status();
  ASSERT_FALSE(failure.ok());
  EXPECT_EQ(failures, (std::vector<std::string>{std::string(failure.message())}));
  EXPECT_EQ(executor_->Health(), failure);

  executor_->Recover(Slept(2));
  ASSERT_TRUE(wanted_.has_value());
  EXPECT_EQ(wanted_->level(), 2);
  EXPECT_FALSE(restarts_);
  EXPECT_TRUE(absl::IsUnknown(recovered)) << "the call only starts it";
  EXPECT_EQ(Send(*executor_, 2), failure) << "until there is another epoch";

  workers_[1]->FailStep(0);
  BeginEpoch(2, links_);
  executor_->Serve(std::move(epoch_));
  EXPECT_TRUE(recovered.ok()) << recovered;
  EXPECT_TRUE(executor_->Health().ok());
  EXPECT_EQ(executor_->group_epoch(), 2);
  ASSERT_TRUE(Send(*executor_, 1).ok());
  EXPECT_TRUE(executor_->Wait(absl::Minutes(1)).ok());

  executor_->Abort(absl::CancelledError("enough"));
  EXPECT_EQ(failures.back(), "enough") << "the callback has moved to the new epoch";
  EXPECT_EQ(aborted_, absl::CancelledError("enough"));
}

TEST_F(GrpcExecutorTest, ARefusalToSwapOutComesFromAnyRank) {
  Serve(2);
  v1::StepRequest step = MakeStep(1);
  v1::BlockCopy* swap = step.add_swap_outs();
  swap->set_src(1);
  swap->set_dst(FakeWorkerOptions().num_host_blocks);
  ASSERT_TRUE(executor_->ExecuteAsync(&step).ok());
  const absl::StatusOr<v1::StepReply> reply = executor_->Wait(absl::Minutes(1));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->slot_errors_size(), 2) << "that of rank 1, too";
  EXPECT_EQ(reply->slot_errors(1).slot(), kSwapsSlot);
  EXPECT_EQ(reply->slot_errors(1).code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
}

TEST_F(GrpcExecutorTest, WhatStepsTakeOfHostMemoryIsKnownWithTheirReplies) {
  Serve(2);
  v1::StepRequest step = MakeStep(1);
  for (const int32_t block : {1, 2}) {
    v1::BlockCopy* swap = step.add_swap_outs();
    swap->set_src(block);
    swap->set_dst(block);
  }
  ASSERT_TRUE(executor_->ExecuteAsync(&step).ok());
  ASSERT_TRUE(executor_->Wait(absl::Minutes(1)).ok());
  EXPECT_EQ(executor_->bytes().host["kv_cache"], 2 * 2) << "of both ranks";
  absl::Notification read;
  const auto note = [&](const absl::StatusOr<TransitionReport>&) { read.Notify(); };
  executor_->ReadAdaptersAsync({{.slot = 1, .id = 5, .name = "poet"}}, note);
  read.WaitForNotification();
  EXPECT_EQ(executor_->bytes().host["kv_cache"], 2 * 2) << "a read beside steps knows no better";
}

TEST_F(GrpcExecutorTest, ARestartReplacesEveryWorker) {
  Serve(1);
  executor_->Restart(Slept(1));
  ASSERT_TRUE(wanted_.has_value());
  EXPECT_EQ(wanted_->level(), 1);
  EXPECT_TRUE(restarts_);
}

TEST_F(GrpcExecutorTest, ARecoveryThatIsGivenUpTellsWhy) {
  Serve(1);
  absl::Status recovered;
  executor_->OnRecovered([&](const absl::Status& status) { recovered = status; });
  executor_->GiveUp(absl::NotFoundError("no files"));
  EXPECT_EQ(recovered, absl::NotFoundError("no files"));
}

TEST_F(GrpcExecutorTest, LifecycleCallsReturnAtOnceAndTellTheirEnd) {
  Serve(2);
  workers_[0]->HoldCalls();
  absl::Notification slept, woke;
  absl::StatusOr<TransitionReport> freed, mapped;
  executor_->SleepAsync({.level = 1}, {}, [&](absl::StatusOr<TransitionReport> bytes) {
    freed = std::move(bytes);
    slept.Notify();
  });
  EXPECT_FALSE(slept.HasBeenNotified());
  workers_[0]->ReleaseCalls();
  slept.WaitForNotification();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes().at("weights"), 14) << "the sum over ranks";
  executor_->WakeUpAsync({}, /*reads_weights=*/true, {}, [&](absl::StatusOr<TransitionReport> bytes) {
    mapped = std::move(bytes);
    woke.Notify();
  });
  woke.WaitForNotification();
  EXPECT_EQ(mapped->mapped_bytes().at("weights"), 14);
}

TEST_F(GrpcExecutorTest, WhatTheRanksHoldIsKnownAfterEveryCallAndRecovery) {
  Serve(2);
  EXPECT_EQ(executor_->bytes().resident.at("weights"), 14);
  absl::Notification slept;
  executor_->SleepAsync({.level = 1}, {}, [&](const absl::StatusOr<TransitionReport>& report) {
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(executor_->bytes().resident.at("weights"), 0) << "before whoever waits for the call goes on";
    slept.Notify();
  });
  slept.WaitForNotification();
  EXPECT_EQ(executor_->bytes().host.at("weights"), 14);

  BeginEpoch(2, links_);
  std::atomic<bool> committed{false};
  ASSERT_TRUE(epoch_->WakeUp({}, /*reads_weights=*/false, {}, &committed).ok());
  executor_->Serve(std::move(epoch_));
  EXPECT_EQ(executor_->bytes().resident.at("weights"), 14);
  EXPECT_EQ(executor_->bytes().host.at("weights"), 0);
}

TEST_F(GrpcExecutorTest, AnUpdateReachesEveryRank) {
  Serve(2);
  const auto run = [](const auto& call) {
    absl::Notification ended;
    WeightsOutcome result;
    call([&](const WeightsOutcome& outcome) {
      result = outcome;
      ended.Notify();
    });
    ended.WaitForNotification();
    return result;
  };
  v1::WeightChunk chunk;
  chunk.set_name("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(executor_->SendWeights("u1", chunk))) << "none is under way";
  ASSERT_TRUE(run([&](auto done) { executor_->BeginWeightUpdateAsync("u1", "", {}, done); }).status.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(executor_->SendWeights("u0", chunk))) << "another one is";
  ASSERT_TRUE(executor_->SendWeights("u1", chunk).ok());
  const WeightsOutcome outcome =
      run([&](auto done) { executor_->FinishWeightUpdateAsync(4, std::nullopt, done); });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.received.num_tensors, 1);
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->chunks(), std::vector<std::string>{"a"});
    EXPECT_EQ(worker->calls(), (std::vector<std::string>{"fence 1", "begin update", "finish update"}));
  }
  ASSERT_TRUE(run([&](auto done) { executor_->BeginWeightUpdateAsync("u2", "", {}, done); }).status.ok());
  executor_->CancelWeightUpdate();
  EXPECT_FALSE(
      run([&](auto done) { executor_->FinishWeightUpdateAsync(5, std::nullopt, done); }).status.ok());
  EXPECT_EQ(run([&](auto done) { executor_->ReloadWeightsAsync("new", 5, done); }).fingerprint, "of new");
}

TEST_F(GrpcExecutorTest, AnAbortEndsALifecycleCall) {
  Serve(1);
  workers_[0]->HoldCalls();
  absl::Notification ended;
  absl::StatusOr<TransitionReport> freed;
  executor_->SleepAsync({.level = 1}, {}, [&](absl::StatusOr<TransitionReport> bytes) {
    freed = std::move(bytes);
    ended.Notify();
  });
  executor_->Abort(absl::CancelledError("stopped"));
  ended.WaitForNotification();
  EXPECT_EQ(freed.status().message(), "stopped");
  workers_[0]->ReleaseCalls();
}

TEST_F(GrpcExecutorTest, AStallIsReportedUntilItEnds) {
  Serve(1);
  EXPECT_TRUE(executor_->Progress().ok());
  executor_->ReportStall(absl::UnavailableError("rank 0 (pid 70) has been in step 3 for longer than 1m"));
  EXPECT_EQ(executor_->Progress().message(), "rank 0 (pid 70) has been in step 3 for longer than 1m");
  EXPECT_TRUE(executor_->Health().ok()) << "it may go on";
  executor_->ReportStall(absl::OkStatus());
  EXPECT_TRUE(executor_->Progress().ok());
}

}  // namespace
}  // namespace somnus
