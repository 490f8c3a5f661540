// Steps, loading, and ranks that are lost. grpc_executor_sleep_test.cc tests sleep.

#include <thread>

#include "tests/executor/grpc_executor_fixture.h"

namespace somnus {
namespace {

TEST_F(GrpcExecutorTest, StepsArePipelinedAndAnsweredInOrder) {
  Connect(3);
  const std::vector<int32_t> reference = FakeWorker::ReferenceTokens({1, 2, 3}, 20);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  for (int64_t id = 1; id <= 20; ++id) {
    if (id < 20) {
      ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(id + 1)).ok());
    }
    const absl::StatusOr<v1::StepReply> reply = executor_->Wait(absl::Minutes(1));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->step_id(), id);
    EXPECT_EQ(reply->tokens(0).token_id(), reference[id - 1]);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(executor_->Wait(absl::Seconds(1)).status()));
  EXPECT_TRUE(executor_->Health().ok());
}

TEST_F(GrpcExecutorTest, AStepThatIsTooLargeIsRefusedAndTheStreamGoesOn) {
  Connect(2);
  v1::StepRequest step = MakeStep(1);
  google::protobuf::RepeatedField<int32_t>* tokens = step.mutable_new_sequences(0)->mutable_token_ids();
  constexpr int kBytesOfMinusOne = 10;
  const int largest = (kMaxWorkerMessageBytes - 200) / kBytesOfMinusOne;
  tokens->Resize(largest + 100, -1);
  EXPECT_TRUE(absl::IsInvalidArgument(executor_->ExecuteAsync(step)));
  EXPECT_TRUE(executor_->Health().ok());
  tokens->Truncate(largest);
  ASSERT_TRUE(executor_->ExecuteAsync(step).ok());
  const absl::StatusOr<v1::StepReply> reply = executor_->Wait(absl::Minutes(1));
  ASSERT_TRUE(reply.ok()) << reply.status() << ": the largest message reaches every worker";
}

TEST_F(GrpcExecutorTest, LifecycleReachesEveryRank) {
  Connect(2);
  std::vector<std::pair<int64_t, int64_t>> progress;
  const auto loaded = executor_->LoadModel(v1::LoadModelRequest(), [&](int64_t done, int64_t total) {
    progress.push_back({done, total});
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)[0].kv_block_bytes, 10);
  EXPECT_EQ((*loaded)[1].kv_block_bytes, 11);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), (std::pair<int64_t, int64_t>(200, 200)));
  v1::KvCacheConfig config;
  config.set_num_blocks(33);
  EXPECT_TRUE(executor_->AllocateKvCache(config).ok());
  const auto freed = executor_->Sleep(1, Residency());
  ASSERT_TRUE(freed.ok());
  EXPECT_EQ(freed->at("weights"), 14) << "the sum over ranks";
  EXPECT_EQ(executor_->WakeUp({}, Slept(1))->at("weights"), 14);
  const auto statuses = executor_->RankStatuses(absl::Seconds(10));
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[1]->state(), "awake");
  executor_->Shutdown(absl::Seconds(10));
  EXPECT_EQ(workers_[1]->calls(),
            (std::vector<std::string>{"load 1/2", "allocate 33", "sleep 1", "wake 0", "shutdown"}));
}

TEST_F(GrpcExecutorTest, RanksOnGpusMeetByWhatRankZeroMade) {
  Connect(3, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  v1::LoadModelRequest request;
  request.mutable_parallel()->set_group_name("group");
  ASSERT_TRUE(executor_->LoadModel(request, [](int64_t, int64_t) {}).ok());
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"new group", "load 0/3"}));
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"load 1/3"}));
  for (int rank = 0; rank < 3; ++rank) {
    const v1::ParallelConfig parallel = workers_[rank]->parallel();
    EXPECT_EQ(parallel.rank(), rank);
    EXPECT_EQ(parallel.group_name(), "group");
    EXPECT_EQ(parallel.nccl_unique_id(), std::string("\0made by ", 9) + workers_[0]->address());
    ASSERT_EQ(parallel.rank_hosts_size(), 3);
    EXPECT_EQ(parallel.rank_hosts(2), "host2");
  }
}

TEST_F(GrpcExecutorTest, NobodyElseNeedsAGroupMade) {
  Connect(2);
  ASSERT_TRUE(executor_->LoadModel(v1::LoadModelRequest(), [](int64_t, int64_t) {}).ok());
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"load 0/2"}));
  EXPECT_EQ(workers_[0]->parallel().nccl_unique_id(), "");
}

TEST_F(GrpcExecutorTest, AGroupThatCannotBeMadeIsAFailedLoad) {
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  workers_[0]->FailNextCall(absl::UnavailableError("ncclGetUniqueId: no network"));
  const absl::Status status = executor_->LoadModel(v1::LoadModelRequest(), [](int64_t, int64_t) {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "rank 0 (pid 70): ncclGetUniqueId: no network");
  EXPECT_TRUE(workers_[1]->calls().empty());
}

TEST_F(GrpcExecutorTest, AFailedLoadNamesTheRankAndTheReason) {
  Connect(2);
  workers_[1]->FailNextCall(absl::NotFoundError("model.norm.weight"));
  const absl::Status status = executor_->LoadModel(v1::LoadModelRequest(), [](int64_t, int64_t) {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(), "rank 1 (pid 71): model.norm.weight");
}

TEST_F(GrpcExecutorTest, AStepDeadlineGoesByTheMonotonicClock) {
  absl::Mutex mu;
  MonotonicTime now = absl::Seconds(5);
  options_.now = [&] {
    absl::MutexLock lock(&mu);
    return now;
  };
  Connect(1);
  workers_[0]->Hold(true);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  absl::Notification ended;
  std::thread clock([&] {
    do {
      absl::MutexLock lock(&mu);
      now += absl::Hours(1);
    } while (!ended.WaitForNotificationWithTimeout(absl::Milliseconds(1)));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(executor_->Wait(absl::Hours(100)).status()));
  ended.Notify();
  clock.join();
}

TEST_F(GrpcExecutorTest, AStallIsReportedUntilItEnds) {
  Connect(1);
  EXPECT_TRUE(executor_->Progress().ok());
  executor_->ReportStall(absl::UnavailableError("rank 0 (pid 70) has been in step 3 for longer than 1m"));
  EXPECT_EQ(executor_->Progress().message(), "rank 0 (pid 70) has been in step 3 for longer than 1m");
  EXPECT_TRUE(executor_->Health().ok()) << "it may go on";
  executor_->ReportStall(absl::OkStatus());
  EXPECT_TRUE(executor_->Progress().ok());
}

TEST_F(GrpcExecutorTest, AFailedStepNamesTheRankAndIsFinal) {
  Connect(2);
  workers_[1]->FailStep(2);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(2)).ok());
  ASSERT_TRUE(executor_->Wait(absl::Minutes(1)).ok());
  const absl::Status status = executor_->Wait(absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "rank 1 (pid 71) failed step 2: out of luck");
  EXPECT_EQ(executor_->ExecuteAsync(MakeStep(3)), status);
  EXPECT_EQ(executor_->Sleep(1, Residency()).status().message(), status.message());
  EXPECT_EQ(executor_->Health(), status);
}

TEST_F(GrpcExecutorTest, AStepDeadlineNamesTheRankThatHangs) {
  Connect(2);
  workers_[1]->Hold(true);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  const absl::Status status = executor_->Wait(absl::Milliseconds(100)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1 (pid 71) did not reply to step 1"), absl::string_view::npos)
      << status;
}

TEST_F(GrpcExecutorTest, AReportedLossEndsTheWaitAndIsTheReason) {
  Connect(2, absl::Minutes(1));
  absl::Notification failed;
  executor_->OnFailure([&](const absl::Status&) { failed.Notify(); });
  workers_[0]->Hold(true);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  std::thread reporter(
      [&] { executor_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9")); });
  const absl::Status status = executor_->Wait(absl::Minutes(5)).status();
  reporter.join();
  EXPECT_EQ(status.message(), "rank 1 (pid 71) was killed by signal 9");
  failed.WaitForNotification();
}

TEST_F(GrpcExecutorTest, ABrokenConnectionIsNoticedWhileIdle) {
  Connect(2);
  absl::Notification failed;
  absl::Status reason;
  executor_->OnFailure([&](const absl::Status& status) {
    reason = status;
    failed.Notify();
  });
  workers_[1]->Die();
  failed.WaitForNotification();
  EXPECT_NE(reason.message().find("rank 1 (pid 71)"), absl::string_view::npos) << reason;
}

TEST_F(GrpcExecutorTest, AWorkerThatDiesInAStepIsNamed) {
  Connect(2);
  workers_[1]->Hold(true);
  ASSERT_TRUE(executor_->ExecuteAsync(MakeStep(1)).ok());
  std::thread killer([&] { workers_[1]->Die(); });
  const absl::Status status = executor_->Wait(absl::Minutes(5)).status();
  killer.join();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("rank 1 (pid 71)"), absl::string_view::npos) << status;
}

TEST_F(GrpcExecutorTest, NobodyThere) {
  GrpcExecutorOptions options;
  options.connect_timeout = absl::Milliseconds(50);
  auto executor = GrpcExecutor::Create({{"unix:" + directory_ + "/none", "host", 9}}, options);
  ASSERT_TRUE(executor.ok());
  const absl::Status status = (*executor)->AwaitConnections();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("rank 0 (pid 9)"), absl::string_view::npos) << status;
}

TEST_F(GrpcExecutorTest, LossOfAProcessEndsTheWaitForItsConnection) {
  GrpcExecutorOptions options;
  options.connect_timeout = absl::InfiniteDuration();
  auto executor = GrpcExecutor::Create({{"unix:" + directory_ + "/none", "host", 9}}, options);
  ASSERT_TRUE(executor.ok());
  std::thread reporter([&] { (*executor)->ReportLoss(absl::UnavailableError("rank 0 was killed")); });
  EXPECT_EQ((*executor)->AwaitConnections(), absl::UnavailableError("rank 0 was killed"));
  reporter.join();
}

}  // namespace
}  // namespace somnus
