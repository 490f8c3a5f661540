// Forming an epoch, its steps, and ranks that are lost. group_epoch_sleep_test.cc tests sleep.

#include <thread>

#include "proto/limits.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

TEST_F(GroupEpochTest, StepsArePipelinedAndAnsweredInOrder) {
  Connect(3);
  const std::vector<int32_t> reference = FakeWorker::ReferenceTokens({1, 2, 3}, 20);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  for (int64_t id = 1; id <= 20; ++id) {
    if (id < 20) {
      ASSERT_TRUE(Send(*epoch_, id + 1).ok());
    }
    const absl::StatusOr<v1::StepReply> reply = epoch_->Wait(absl::Minutes(1));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->step_id(), id);
    EXPECT_EQ(reply->tokens(0).token_id(), reference[id - 1]);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(epoch_->Wait(absl::Seconds(1)).status()));
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupEpochTest, AStepThatIsTooLargeIsRefusedAndTheStreamGoesOn) {
  Connect(2);
  v1::StepRequest step = MakeStep(1);
  google::protobuf::RepeatedField<int32_t>* tokens = step.mutable_new_sequences(0)->mutable_token_ids();
  constexpr int kBytesOfMinusOne = 10;
  const int largest = (kMaxWorkerMessageBytes - 200) / kBytesOfMinusOne;
  tokens->Resize(largest + 100, -1);
  EXPECT_TRUE(absl::IsInvalidArgument(epoch_->ExecuteAsync(&step)));
  EXPECT_TRUE(epoch_->Health().ok());
  tokens->Truncate(largest);
  ASSERT_TRUE(epoch_->ExecuteAsync(&step).ok());
  const absl::StatusOr<v1::StepReply> reply = epoch_->Wait(absl::Minutes(1));
  ASSERT_TRUE(reply.ok()) << reply.status() << ": the largest message reaches every worker";
}

TEST_F(GroupEpochTest, LifecycleReachesEveryRank) {
  Connect(2);
  std::vector<std::pair<int64_t, int64_t>> progress;
  const auto loaded = epoch_->LoadModel(All(2), v1::LoadModelRequest(), [&](int64_t done, int64_t total) {
    progress.push_back({done, total});
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)[0].kv_block_bytes(), 10);
  EXPECT_EQ((*loaded)[1].kv_block_bytes(), 11);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), (std::pair<int64_t, int64_t>(200, 200)));
  ASSERT_TRUE(epoch_->JoinGroup("group-1").ok());
  const auto profiles = epoch_->Profile();
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  EXPECT_EQ((*profiles)[1].available_kv_cache_memory_bytes(), 1000);
  v1::KvCacheConfig config;
  config.set_num_blocks(33);
  EXPECT_TRUE(epoch_->AllocateKvCache(All(2), config, /*defer_graphs=*/false).ok());
  const auto freed = Sleep(1);
  ASSERT_TRUE(freed.ok());
  EXPECT_EQ(freed->freed_bytes().at("weights"), 14) << "the sum over ranks";
  EXPECT_EQ(WakeUp()->mapped_bytes().at("weights"), 14);
  const auto statuses = epoch_->RankStatuses(absl::Seconds(10));
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[1]->state(), "awake");
  epoch_->Shutdown(absl::Seconds(10));
  EXPECT_EQ(workers_[1]->calls(),
            (std::vector<std::string>{"fence 1", "load 1/2", "join group-1", "profile", "allocate 33",
                                      "prepare sleep 1", "commit", "prepare wake", "commit", "shutdown"}));
}

TEST_F(GroupEpochTest, OnlyTheRanksThatAreNamedLoadAndAllocate) {
  Connect(2);
  ASSERT_TRUE(epoch_->LoadModel({false, true}, v1::LoadModelRequest(), [](int64_t, int64_t) {}).ok());
  v1::KvCacheConfig config;
  config.set_num_blocks(5);
  ASSERT_TRUE(epoch_->AllocateKvCache({false, true}, config, /*defer_graphs=*/true).ok());
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"fence 1"}));
  EXPECT_EQ(workers_[1]->calls(),
            (std::vector<std::string>{"fence 1", "load 1/2", "allocate 5 without graphs"}));
}

TEST_F(GroupEpochTest, RanksOnGpusMeetByWhatRankZeroMade) {
  Connect(3, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"fence 1", "new group", "join group"}));
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"fence 1", "join group"}));
  for (int rank = 0; rank < 3; ++rank) {
    const v1::ParallelConfig parallel = workers_[rank]->parallel();
    EXPECT_EQ(parallel.rank(), rank);
    EXPECT_EQ(parallel.group_name(), "group");
    EXPECT_EQ(parallel.nccl_unique_id(), std::string("\0made by ", 9) + workers_[0]->address());
    ASSERT_EQ(parallel.rank_hosts_size(), 3);
    EXPECT_EQ(parallel.rank_hosts(2), "host2");
  }
}

TEST_F(GroupEpochTest, NobodyElseNeedsAGroupMade) {
  Connect(2);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  EXPECT_EQ(workers_[0]->calls(), (std::vector<std::string>{"fence 1", "join group"}));
  EXPECT_EQ(workers_[0]->parallel().nccl_unique_id(), "");
}

TEST_F(GroupEpochTest, RanksOnCpusOfSeveralHostsMeetAtPortsThatEachOpens) {
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CPU, /*over_tcp=*/true);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->calls(), (std::vector<std::string>{"fence 1", "new group at 127.0.0.1", "join group"}));
    const v1::ParallelConfig parallel = worker->parallel();
    ASSERT_EQ(parallel.rank_addresses_size(), 2);
    EXPECT_EQ(parallel.rank_addresses(1), absl::StrCat("127.0.0.1:", FakeWorkerService::kOpenPort));
    EXPECT_GE(parallel.group_secret().size(), 32u);
    EXPECT_EQ(parallel.group_secret(), workers_[0]->parallel().group_secret());
  }
  const std::string secret = workers_[0]->parallel().group_secret();
  ASSERT_TRUE(epoch_->JoinGroup("another").ok());
  EXPECT_NE(workers_[0]->parallel().group_secret(), secret) << "it is new for every group";
}

TEST_F(GroupEpochTest, StagesOfSeveralHostsOpenAPortForTheNextStageToo) {
  options_.num_stages = 2;
  Connect(4, absl::Milliseconds(50), v1::DEVICE_TYPE_CPU, /*over_tcp=*/true);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  for (int rank = 0; rank < 4; ++rank) {
    const v1::ParallelConfig parallel = workers_[rank]->parallel();
    EXPECT_EQ(parallel.rank(), rank);
    EXPECT_EQ(parallel.world_size(), 4);
    EXPECT_EQ(parallel.num_stages(), 2);
    ASSERT_EQ(parallel.link_addresses_size(), 4);
    EXPECT_EQ(parallel.link_addresses(3), absl::StrCat("127.0.0.1:", FakeWorkerService::kOpenLinkPort));
  }
}

TEST_F(GroupEpochTest, TheFirstRankOfEachStageOfGpusMakesAnIdAndEachSenderAnother) {
  options_.num_stages = 3;
  Connect(6, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  const auto made_by = [this](int rank) { return std::string("\0made by ", 9) + workers_[rank]->address(); };
  for (int rank = 0; rank < 6; ++rank) {
    const std::vector<std::string> calls = workers_[rank]->calls();
    const int of_stage = rank % 2 == 0 ? 1 : 0, of_link = rank < 4 ? 1 : 0;
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "new group"), of_stage + of_link) << "rank " << rank;
    const v1::ParallelConfig parallel = workers_[rank]->parallel();
    EXPECT_EQ(parallel.nccl_unique_id(), made_by(rank / 2 * 2)) << "rank " << rank;
    ASSERT_EQ(parallel.nccl_link_ids_size(), 4) << "rank " << rank;
    for (int sender = 0; sender < 4; ++sender)
      EXPECT_EQ(parallel.nccl_link_ids(sender), made_by(sender)) << "rank " << rank;
  }
}

TEST_F(GroupEpochTest, StagesOfOneGpuEachHaveLinksAlone) {
  options_.num_stages = 2;
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  ASSERT_TRUE(epoch_->JoinGroup("group").ok());
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"fence 1", "join group"}));
  EXPECT_EQ(workers_[1]->parallel().nccl_unique_id(), "");
  EXPECT_EQ(workers_[1]->parallel().nccl_link_ids_size(), 1);
}

TEST_F(GroupEpochTest, TheFirstRankOfTheLastStageRepliesWithTokens) {
  options_.num_stages = 2;
  Connect(2);
  workers_[0]->Mute();
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  const absl::StatusOr<v1::StepReply> reply = epoch_->Wait(absl::Minutes(1));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->tokens_size(), 1);
}

// The masks of a step, of which each has so many bytes; the last one, of slot 0, lets slot 0 sample token 7.
v1::StepMasks MasksOf(int64_t step_id, const std::vector<int64_t>& sizes) {
  v1::StepMasks masks;
  masks.set_step_id(step_id);
  for (size_t i = 0; i < sizes.size(); ++i) {
    v1::SlotMask* mask = masks.add_masks();
    const bool is_last = i + 1 == sizes.size();
    mask->set_slot(is_last ? 0 : static_cast<int32_t>(i) + 1);
    mask->set_allowed(std::string(sizes[i], is_last ? '\0' : static_cast<char>('a' + i)));
    if (is_last) (*mask->mutable_allowed())[0] = static_cast<char>(1 << 7);
  }
  return masks;
}

// Large vocabularies and many slots: the masks of a step may have more bytes than a message of their own.
TEST_F(GroupEpochTest, MasksArriveWholeAndOnceAtTheRankThatSamplesAlone) {
  constexpr int kSampling = 2;  // rank 0 of the last stage
  const int64_t mask_bytes = (FakeWorkerOptions().vocab_size + 31) / 32 * 4;
  options_.num_stages = 2;
  Connect(4);
  for (const int rank : {0, 1, 3}) workers_[rank]->Mute();
  struct Case {
    std::vector<int64_t> sizes;
    std::vector<int> messages;  // the masks in each message
  };
  const Case cases[] = {
      {{mask_bytes}, {1}},
      {{kStepBytes / 2, kStepBytes / 2 - 1, kStepBytes / 2, mask_bytes, mask_bytes}, {3, 2}},
      {{kStepBytes / 2, kStepBytes / 2}, {2}},  // full, and no empty message follows
      {{kStepBytes + mask_bytes, mask_bytes}, {1, 1}},
  };
  size_t num_messages = 0;
  for (int64_t step_id = 1; const Case& one : cases) {
    v1::StepRequest step = MakeStep(step_id);
    step.set_awaits_masks(true);
    ASSERT_TRUE(epoch_->ExecuteAsync(&step).ok());
    const v1::StepMasks masks = MasksOf(step_id, one.sizes);
    ASSERT_TRUE(epoch_->SendMasks(masks).ok());
    const absl::StatusOr<v1::StepReply> reply = epoch_->Wait(absl::Minutes(1));
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->tokens_size(), 1);
    EXPECT_EQ(reply->tokens(0).token_id(), 7);

    const std::vector<v1::StepMasks> messages = workers_[kSampling]->mask_messages();
    ASSERT_EQ(messages.size(), num_messages + one.messages.size()) << "of step " << step_id;
    v1::StepMasks whole;
    for (const int count : one.messages) {
      const v1::StepMasks& message = messages[num_messages++];
      EXPECT_EQ(message.masks_size(), count) << "of step " << step_id;
      EXPECT_EQ(message.has_more(), num_messages < messages.size());
      EXPECT_EQ(message.step_id(), step_id);
      for (const v1::SlotMask& mask : message.masks()) *whole.add_masks() = mask;
    }
    whole.set_step_id(step_id++);
    EXPECT_TRUE(whole.SerializeAsString() == masks.SerializeAsString()) << "of step " << masks.step_id();
  }
  for (const int rank : {0, 1, 3}) EXPECT_EQ(workers_[rank]->mask_messages().size(), 0u) << "rank " << rank;
}

TEST_F(GroupEpochTest, AGroupThatCannotBeMadeIsAFailedJoin) {
  Connect(2, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  workers_[0]->FailNextCall(absl::UnavailableError("ncclGetUniqueId: no network"));
  const absl::Status status = epoch_->JoinGroup("group");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "rank 0 (pid 70): ncclGetUniqueId: no network");
  EXPECT_EQ(workers_[1]->calls(), (std::vector<std::string>{"fence 1"}));
}

TEST_F(GroupEpochTest, AFailedLoadNamesTheRankAndTheReason) {
  Connect(2);
  workers_[1]->FailNextCall(absl::NotFoundError("model.norm.weight"));
  const absl::Status status =
      epoch_->LoadModel(All(2), v1::LoadModelRequest(), [](int64_t, int64_t) {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(), "rank 1 (pid 71): model.norm.weight");
}

TEST_F(GroupEpochTest, AStepDeadlineGoesByTheMonotonicClock) {
  absl::Mutex mu;
  MonotonicTime now = absl::Seconds(5);
  options_.now = [&] {
    absl::MutexLock lock(&mu);
    return now;
  };
  Connect(1);
  workers_[0]->Hold(true);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  absl::Notification ended;
  std::thread clock([&] {
    do {
      absl::MutexLock lock(&mu);
      now += absl::Hours(1);
    } while (!ended.WaitForNotificationWithTimeout(absl::Milliseconds(1)));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(epoch_->Wait(absl::Hours(100)).status()));
  ended.Notify();
  clock.join();
}

TEST_F(GroupEpochTest, AFailedStepNamesTheRankAndEndsTheEpoch) {
  Connect(2);
  workers_[1]->FailStep(2);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  ASSERT_TRUE(epoch_->Wait(absl::Minutes(1)).ok());
  ASSERT_TRUE(Send(*epoch_, 2).ok());
  const absl::Status status = epoch_->Wait(absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_EQ(status.message(), "rank 1 (pid 71) failed step 2: out of luck");
  EXPECT_EQ(Send(*epoch_, 3), status);
  EXPECT_EQ(Sleep(1).status().message(), status.message());
  EXPECT_EQ(epoch_->Health(), status);
}

TEST_F(GroupEpochTest, RanksWithDifferentWeightsDoNotFormAGroup) {
  Connect(3);
  workers_[2]->EditWeights([](FakeWeights* weights) { weights->SetVersion(2); });
  const absl::Status status = epoch_->JoinGroup("group");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(status.message(), "rank 2 (pid 72) has version 2 of the weights, rank 0 has 1");
}

TEST_F(GroupEpochTest, AStepThatRanksComputedWithDifferentWeightsEndsTheEpoch) {
  Connect(2);
  workers_[1]->EditWeights([](FakeWeights* weights) { weights->SetVersion(2); });
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  const absl::Status status = epoch_->Wait(absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(status.message(), "rank 1 (pid 71) computed step 1 with version 2 of the weights, rank 0 with 1");
  EXPECT_EQ(epoch_->Health(), status);
}

TEST_F(GroupEpochTest, AStepDeadlineNamesTheRankThatHangs) {
  Connect(2);
  workers_[1]->Hold(true);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  const absl::Status status = epoch_->Wait(absl::Milliseconds(100)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1 (pid 71) did not reply to step 1"), absl::string_view::npos)
      << status;
}

TEST_F(GroupEpochTest, AReportedLossEndsTheWaitAndIsTheReason) {
  Connect(2, absl::Minutes(1));
  absl::Notification failed;
  epoch_->OnFailure([&](const absl::Status&) { failed.Notify(); });
  workers_[0]->Hold(true);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  std::thread reporter(
      [&] { epoch_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9")); });
  const absl::Status status = epoch_->Wait(absl::Minutes(5)).status();
  reporter.join();
  EXPECT_EQ(status.message(), "rank 1 (pid 71) was killed by signal 9");
  failed.WaitForNotification();
}

TEST_F(GroupEpochTest, ABrokenConnectionIsNoticedWhileIdle) {
  Connect(2);
  absl::Notification failed;
  absl::Status reason;
  epoch_->OnFailure([&](const absl::Status& status) {
    reason = status;
    failed.Notify();
  });
  workers_[1]->Die();
  failed.WaitForNotification();
  EXPECT_NE(reason.message().find("rank 1 (pid 71)"), absl::string_view::npos) << reason;
}

TEST_F(GroupEpochTest, AWorkerThatDiesInAStepIsNamed) {
  Connect(2);
  workers_[1]->Hold(true);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  std::thread killer([&] { workers_[1]->Die(); });
  const absl::Status status = epoch_->Wait(absl::Minutes(5)).status();
  killer.join();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("rank 1 (pid 71)"), absl::string_view::npos) << status;
}

TEST_F(GroupEpochTest, ItEndsWhileAStepIsBeingSent) {
  Connect(2);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  epoch_->Shutdown(absl::Minutes(1));
  EXPECT_EQ(workers_[1]->calls().back(), "shutdown");
}

TEST_F(GroupEpochTest, TheErrorOfOneRankIsSeenWhileAnotherWaits) {
  Connect(2, absl::Minutes(1));
  workers_[0]->Hold(true);  // as in a collective, for a rank that will not come
  workers_[1]->FailStep(1);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  // Only the reply of rank 1 can be the reason: nothing else ends, and the grace is long.
  std::thread reporter([&] {
    while (epoch_->missing_ranks() != std::vector<size_t>{0}) std::this_thread::yield();
    epoch_->ReportLoss(absl::UnavailableError("rank 1 (pid 71) was killed by signal 9"));
  });
  const absl::Status status = epoch_->Wait(absl::Minutes(5)).status();
  reporter.join();
  EXPECT_EQ(status.message(), "rank 1 (pid 71) was killed by signal 9");
}

TEST_F(GroupEpochTest, SurvivorsServeTheNextEpochAndRefuseTheLast) {
  Connect(2);
  workers_[1]->FailStep(1);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  ASSERT_FALSE(epoch_->Wait(absl::Minutes(1)).ok());
  const std::vector<WorkerLink> links = epoch_->workers();
  const std::unique_ptr<GroupEpoch> last = std::move(epoch_);
  workers_[1]->FailStep(0);
  BeginEpoch(2, links);
  ASSERT_TRUE(Send(*epoch_, 1).ok());
  const absl::StatusOr<v1::StepReply> reply = epoch_->Wait(absl::Minutes(1));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->tokens(0).token_id(), FakeWorker::ReferenceTokens({1, 2, 3}, 1)[0]);
  GroupEpoch stale(1, links, options_);
  const absl::Status refused = stale.JoinGroup("group");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::IsFailedPrecondition(stale.Fence().status()));
}

TEST_F(GroupEpochTest, EveryRankIsBroughtToWhatIsHeld) {
  Connect(3);
  std::vector<size_t> seen(3, 1);  // "fence 1"
  const auto new_calls = [&](size_t rank) {
    const std::vector<std::string> calls = workers_[rank]->calls();
    const size_t first = std::exchange(seen[rank], calls.size());
    return std::vector<std::string>(calls.begin() + static_cast<int64_t>(first), calls.end());
  };
  const auto with = [](int level, std::vector<std::string> resident) {
    v1::WorkerSnapshot snapshot;
    snapshot.set_sleep_level(level);
    for (const std::string& tag : resident) snapshot.add_resident_tags(tag);
    return snapshot;
  };
  const std::vector<std::string> all = {"kv_cache", "weights", "workspace"};
  // Rank 0 has done the sleep that was held, rank 1 has not, rank 2 is deeper asleep.
  ASSERT_TRUE(epoch_->SetResidency({with(1, {}), with(0, all), with(2, {})}, Slept(1)).ok());
  EXPECT_EQ(new_calls(0), std::vector<std::string>{});
  EXPECT_EQ(new_calls(1), (std::vector<std::string>{"prepare sleep 1 weights kv_cache workspace", "commit"}));
  EXPECT_EQ(new_calls(2), std::vector<std::string>{});
  // Awake: a sleeping rank is woken, and no other rank.
  ASSERT_TRUE(epoch_->SetResidency({with(1, {}), with(0, all), with(1, {"weights"})}, Residency()).ok());
  EXPECT_EQ(new_calls(0), (std::vector<std::string>{"prepare wake weights kv_cache workspace", "commit"}));
  EXPECT_EQ(new_calls(1), std::vector<std::string>{});
  EXPECT_EQ(new_calls(2), (std::vector<std::string>{"prepare wake kv_cache workspace", "commit"}));
  // The weights alone are to be resident.
  Residency held = Slept(1);
  held.Woke({"weights"});
  ASSERT_TRUE(epoch_->SetResidency({with(1, {"weights"}), with(0, all), with(1, {})}, held).ok());
  EXPECT_EQ(new_calls(0), std::vector<std::string>{});
  EXPECT_EQ(new_calls(1), (std::vector<std::string>{"prepare sleep 1 kv_cache workspace", "commit"}));
  EXPECT_EQ(new_calls(2), (std::vector<std::string>{"prepare wake weights", "commit"}));
  // The weights are to be discarded: a rank that holds the weights, or a copy, gives them up.
  held = Residency();
  held.Slept({.level = 2, .tags = {"weights"}});
  ASSERT_TRUE(
      epoch_
          ->SetResidency(
              {with(1, {"kv_cache", "workspace"}), with(0, all), with(2, {"kv_cache", "workspace"})}, held)
          .ok());
  EXPECT_EQ(new_calls(0), (std::vector<std::string>{"prepare sleep 2 weights", "commit"}));
  EXPECT_EQ(new_calls(1), (std::vector<std::string>{"prepare sleep 2 weights", "commit"}));
  EXPECT_EQ(new_calls(2), std::vector<std::string>{});
}

TEST_F(GroupEpochTest, NoRankKeepsAdaptersThatAnotherRankCannotRead) {
  Connect(2);
  FailureLatch goes_on;
  ASSERT_EQ(epoch_->ReadAdapters({{.slot = 1, .id = 5, .name = "poet"}}, &goes_on).status(),
            absl::OkStatus());
  workers_[1]->FailNextRead(absl::NotFoundError("no such file"));
  const absl::Status failed =
      epoch_->ReadAdapters({{.slot = 1, .id = 6, .name = "lawyer"}}, &goes_on).status();
  EXPECT_TRUE(absl::IsNotFound(failed)) << failed;
  EXPECT_NE(failed.message().find("rank 1"), absl::string_view::npos) << failed;
  for (const auto& worker : workers_) {
    const std::vector<std::string> calls = worker->calls();
    EXPECT_EQ(calls.back(), "read adapters") << "which drops the adapter";
  }
  EXPECT_EQ(epoch_->Health(), absl::OkStatus());
}

TEST_F(GroupEpochTest, AReadThatIsCancelledLosesNoRank) {
  Connect(2);
  workers_[1]->HoldCalls("read adapters poet");
  FailureLatch cancelled;
  const absl::Status reason = absl::AbortedError("an operator ends it");
  std::thread canceller([&] {
    while (workers_[1]->calls().back() != "read adapters poet") absl::SleepFor(absl::Milliseconds(1));
    cancelled.Fail(reason);
  });
  EXPECT_EQ(epoch_->ReadAdapters({{.slot = 1, .id = 5, .name = "poet"}}, &cancelled).status(), reason);
  canceller.join();
  EXPECT_EQ(epoch_->ReadAdapters({{.slot = 1, .id = 5, .name = "poet"}}, &cancelled).status(), reason)
      << "also before it begins";
  EXPECT_EQ(workers_[1]->calls().back(), "read adapters");
  EXPECT_EQ(epoch_->Health(), absl::OkStatus());
}

TEST_F(GroupEpochTest, NobodyThere) {
  options_.connect_timeout = absl::Milliseconds(50);
  GroupEpoch epoch(1, {MakeWorkerLink(0, {"unix:" + directory_.path() + "/none", "host", 9})}, options_);
  const absl::Status status = epoch.AwaitConnections();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("rank 0 (pid 9)"), absl::string_view::npos) << status;
}

TEST_F(GroupEpochTest, LossOfAProcessEndsTheWaitForItsConnection) {
  options_.connect_timeout = absl::InfiniteDuration();
  GroupEpoch epoch(1, {MakeWorkerLink(0, {"unix:" + directory_.path() + "/none", "host", 9})}, options_);
  std::thread reporter([&] { epoch.ReportLoss(absl::UnavailableError("rank 0 was killed")); });
  EXPECT_EQ(epoch.AwaitConnections(), absl::UnavailableError("rank 0 was killed"));
  reporter.join();
}

// Workers answer late, in a time in which the coordinator stood still: the coordinator's clock does not count
// the time.
TEST_F(GroupEpochTest, AStandstillOfTheCoordinatorIsNoDelayOfWorkers) {
  std::atomic<int64_t> now{0};
  options_.now = [&now] { return absl::Milliseconds(now.load()); };
  options_.fence_timeout = options_.load_timeout = options_.lifecycle_timeout = absl::Milliseconds(50);
  Connect(2);
  const auto join = [this] { return epoch_->JoinGroup("group"); };
  workers_[1]->HoldCalls();
  std::thread late([this] {
    absl::SleepFor(absl::Milliseconds(500));
    workers_[1]->ReleaseCalls();
  });
  EXPECT_EQ(join(), absl::OkStatus());
  late.join();
  // Time that the clock counts is the workers' delay.
  workers_[1]->HoldCalls();
  std::thread passes([&now] {
    absl::SleepFor(absl::Milliseconds(200));
    now += 60;
  });
  const absl::Status status = join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos) << status;
  passes.join();
  workers_[1]->ReleaseCalls();
}

TEST_F(GroupEpochTest, ACallThatItsDeadlineEndsTellsItsNameAndTheWayOut) {
  options_.load_timeout = options_.lifecycle_timeout = absl::Milliseconds(50);
  options_.way_to_longer_deadlines = "ask for more";
  Connect(1);
  workers_[0]->HoldCalls();
  const auto ends = [](const char* call) {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank 0 (pid 70): ", call,
        " has not returned within 50ms: the worker hangs, or its machine is overloaded; ask for more"));
  };
  EXPECT_EQ(epoch_->LoadModel(All(1), {}, [](int64_t, int64_t) {}).status(), ends("LoadModel"));
  EXPECT_EQ(epoch_->JoinGroup("group"), ends("JoinGroup"));
  EXPECT_EQ(epoch_->weights()->Reload("other", 2).status, ends("ReloadWeights"));
  workers_[0]->ReleaseCalls();
}

// A worker's own error of this code says what the worker has waited for.
TEST_F(GroupEpochTest, AWorkersOwnDeadlineIsToldAsItIs) {
  Connect(1);
  workers_[0]->FailNextCall(absl::DeadlineExceededError("no sign of rank 1 within 1m"));
  EXPECT_EQ(epoch_->JoinGroup("group"),
            absl::DeadlineExceededError("rank 0 (pid 70): no sign of rank 1 within 1m"));
}

}  // namespace
}  // namespace somnus
