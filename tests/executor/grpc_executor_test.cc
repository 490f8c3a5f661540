#include "coordinator/executor/grpc_executor.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fakes/fake_worker_service.h"

namespace somnus {
namespace {

// What a group is in after a Sleep.
Residency Slept(int level) {
  Residency residency;
  residency.Slept(level);
  return residency;
}

class GrpcExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = "/tmp/somnus_executor_test_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    executor_.reset();
    workers_.clear();
    std::filesystem::remove_all(directory_);
  }

  void Connect(int world_size, absl::Duration blame_grace = absl::Milliseconds(50),
               v1::DeviceType device = v1::DEVICE_TYPE_CPU) {
    std::vector<WorkerEndpoint> endpoints;
    for (int rank = 0; rank < world_size; ++rank) {
      workers_.push_back(
          std::make_unique<FakeWorkerService>(FakeWorkerOptions(), directory_ + "/" + std::to_string(rank)));
      endpoints.push_back({workers_.back()->address(), absl::StrCat("host", rank), 70 + rank, device});
    }
    options_.blame_grace = blame_grace;
    absl::StatusOr<std::unique_ptr<GrpcExecutor>> executor =
        GrpcExecutor::Create(std::move(endpoints), options_);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    const absl::Status connected = executor_->AwaitConnections();
    ASSERT_TRUE(connected.ok()) << connected;
  }

  // Step 1 computes a prompt of three tokens, each later one decodes.
  v1::StepRequest MakeStep(int64_t step_id) {
    v1::StepRequest step;
    step.set_step_id(step_id);
    if (step_id == 1) {
      v1::NewSequence* sequence = step.add_new_sequences();
      for (int32_t token : {1, 2, 3}) sequence->add_token_ids(token);
      sequence->set_num_prompt_tokens(3);
      for (int32_t block = 1; block < 10; ++block) sequence->add_block_ids(block);
      sequence->mutable_sampling()->set_num_logprobs(-1);
      sequence->mutable_sampling()->set_num_prompt_logprobs(-1);
    }
    v1::ScheduledSequence* scheduled = step.add_sequences();
    scheduled->set_num_tokens(step_id == 1 ? 3 : 1);
    return step;
  }

  // What every rank says of itself: "awake", or "asleep" with the tags that are resident all the same.
  std::vector<std::string> RankStates() {
    std::vector<std::string> states;
    for (const auto& status : executor_->RankStatuses(absl::Minutes(1))) {
      states.push_back(status.ok() ? status->state() : std::string(status.status().message()));
      if (!status.ok() || status->state() == "awake") continue;
      const std::map<std::string, int64_t> bytes(status->bytes_by_tag().begin(),
                                                 status->bytes_by_tag().end());
      for (const auto& [tag, count] : bytes) {
        if (count > 0) absl::StrAppend(&states.back(), " ", tag);
      }
    }
    return states;
  }

  std::string directory_;
  GrpcExecutorOptions options_;
  std::vector<std::unique_ptr<FakeWorkerService>> workers_;
  std::unique_ptr<GrpcExecutor> executor_;
};

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

const std::vector<std::string> kBothAwake = {"awake", "awake"};
const std::vector<std::string> kBothAsleep = {"asleep", "asleep"};

TEST_F(GrpcExecutorTest, AFailedSleepWakesEveryRankAgain) {
  Connect(2);
  workers_[1]->FailNextCall(absl::InternalError("cannot"));
  const absl::Status status = executor_->Sleep(2, Residency()).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "rank 1 (pid 71): cannot");
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"sleep 2", "wake 0"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_TRUE(executor_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(executor_->Sleep(2, Residency()).ok());
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GrpcExecutorTest, AFailedWakeUpPutsEveryRankBackToSleep) {
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(2, Residency()).ok());
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  const absl::Status status = executor_->WakeUp({}, Slept(2)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "rank 0 (pid 70): 5 MiB missing");
  EXPECT_EQ(workers_[1]->calls().back(), "sleep 2") << "at the same level";
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(executor_->Health().ok()) << "it can be tried again";
  EXPECT_TRUE(executor_->WakeUp({}, Slept(2)).ok());
  EXPECT_EQ(RankStates(), kBothAwake);
}

TEST_F(GrpcExecutorTest, AFailedWakeOfTheCacheLeavesNoWeightsOnAnyRank) {
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(2, Residency()).ok());
  Residency residency = Slept(2);
  ASSERT_TRUE(executor_->WakeUp({"weights"}, residency).ok());
  residency.Woke({"weights"});
  EXPECT_EQ(RankStates(), (std::vector<std::string>{"asleep weights", "asleep weights"}));
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("5 MiB missing"));
  EXPECT_TRUE(absl::IsResourceExhausted(executor_->WakeUp({"kv_cache"}, residency).status()));
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(executor_->Health().ok());
}

TEST_F(GrpcExecutorTest, ARankThatDidNotAnswerInTimeIsUndoneToo) {
  options_.lifecycle_timeout = absl::Milliseconds(100);
  Connect(2);
  workers_[1]->HoldCalls();
  // It does what it was asked after all, when the coordinator has long given up the call.
  std::thread release([&] {
    while (workers_[1]->calls().size() < 2) std::this_thread::yield();
    workers_[1]->ReleaseCalls();
  });
  const absl::Status status = executor_->Sleep(2, Residency()).status();
  release.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1 (pid 71)"), absl::string_view::npos) << status;
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"sleep 2", "wake 0"}));
  EXPECT_EQ(RankStates(), kBothAwake);
  EXPECT_TRUE(executor_->Health().ok());
}

TEST_F(GrpcExecutorTest, ARankThatNeverAnswersIsLost) {
  options_.lifecycle_timeout = absl::Milliseconds(50);
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(1, Residency()).ok());
  workers_[1]->HoldCalls();
  EXPECT_TRUE(absl::IsDeadlineExceeded(executor_->WakeUp({}, Slept(1)).status()));
  const absl::Status health = executor_->Health();
  EXPECT_NE(health.message().find("not every rank is asleep after a failed call"), absl::string_view::npos)
      << health;
  EXPECT_NE(health.message().find("rank 1 (pid 71)"), absl::string_view::npos) << health;
}

TEST_F(GrpcExecutorTest, AFailedDeepeningWakesNobody) {
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(1, Residency()).ok());
  workers_[1]->ScriptCalls({absl::InternalError("cannot"), absl::InternalError("still cannot")});
  const absl::Status status = executor_->Sleep(2, Slept(1)).status();
  EXPECT_EQ(status.message(), "rank 1 (pid 71): cannot");
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"sleep 1", "sleep 2", "sleep 2"}));
  EXPECT_EQ(RankStates(), kBothAsleep);
  EXPECT_TRUE(executor_->Health().ok());
}

TEST_F(GrpcExecutorTest, ADeepeningThatFailsOnceIsTriedAgain) {
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(1, Residency()).ok());
  workers_[1]->FailNextCall(absl::InternalError("cannot"));
  EXPECT_TRUE(executor_->Sleep(2, Slept(1)).ok());
  EXPECT_EQ(RankStates(), kBothAsleep);
}

TEST_F(GrpcExecutorTest, ASleepThatFreesOnlySomeRanksIsFinal) {
  Connect(2);
  ASSERT_TRUE(executor_->Sleep(2, Residency()).ok());
  Residency residency = Slept(2);
  ASSERT_TRUE(executor_->WakeUp({"weights"}, residency).ok());
  residency.Woke({"weights"});
  workers_[1]->ScriptCalls({absl::InternalError("cannot"), absl::InternalError("still cannot")});
  EXPECT_FALSE(executor_->Sleep(2, residency).ok());
  EXPECT_NE(executor_->Health().message().find("rank 1 (pid 71): still cannot"), absl::string_view::npos)
      << executor_->Health();
}

TEST_F(GrpcExecutorTest, AWakeUpThatReadsTheCheckpointHasTheTimeOfALoad) {
  options_.lifecycle_timeout = absl::Milliseconds(20);
  options_.load_timeout = absl::Hours(1);
  Connect(1);
  ASSERT_TRUE(executor_->Sleep(2, Residency()).ok());
  workers_[0]->HoldCalls();
  std::thread release([&] {
    absl::SleepFor(absl::Milliseconds(200));  // longer than other calls may take
    workers_[0]->ReleaseCalls();
  });
  EXPECT_TRUE(executor_->WakeUp({"weights"}, Slept(2)).ok());
  release.join();
}

TEST_F(GrpcExecutorTest, ARollbackThatFailsIsFinal) {
  Connect(2);
  absl::Notification failed;
  executor_->OnFailure([&](const absl::Status&) { failed.Notify(); });
  ASSERT_TRUE(executor_->Sleep(1, Residency()).ok());
  workers_[0]->FailNextCall(absl::ResourceExhaustedError("no memory"));
  workers_[1]->ScriptCalls({absl::OkStatus(), absl::InternalError("stuck")});
  EXPECT_TRUE(absl::IsResourceExhausted(executor_->WakeUp({}, Slept(1)).status()));
  failed.WaitForNotification();
  EXPECT_NE(executor_->Health().message().find("rank 1 (pid 71): stuck"), absl::string_view::npos);
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
  EXPECT_NE(status.message().find("rank 1 (pid 71) did not answer step 1"), absl::string_view::npos)
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
