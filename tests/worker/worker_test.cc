// The lifecycle of one rank: the calls that are legal in each state, the memory that a sleep keeps, and the
// state after an error.

#include "worker/worker.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/worker/fake_parts.h"

namespace somnus {
namespace {

constexpr int64_t kTagBytes = FakeRunner::kBytes;

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() : worker_({.num_threads = 1}, FakeParts(&control_)) {
    EXPECT_TRUE(BeginEpoch(worker_, 1).ok());
  }

  void Load() {
    ASSERT_TRUE(worker_.LoadModel(LoadRequest(), [](int64_t, int64_t) {}).ok());
    ASSERT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
  }
  void MakeAwake() {
    Load();
    ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  }
  v1::StepReply Step(int64_t id) { return RunStep(worker_, EmptyStep(id)); }
  std::string State() { return worker_.GetStatus().state(); }
  int64_t Resident(const std::string& tag) { return worker_.GetStatus().bytes_by_tag().at(tag); }

  FakeModelControl control_;
  Worker worker_;
};

TEST_F(WorkerTest, LoadsAllocatesAndSteps) {
  EXPECT_EQ(State(), "created");
  int64_t loaded = 0, total = 0;
  const auto event = worker_.LoadModel(LoadRequest(), [&](int64_t l, int64_t t) { loaded = l, total = t; });
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(loaded, total);
  EXPECT_TRUE(event->done());
  EXPECT_EQ(event->weights_bytes(), kTagBytes);
  EXPECT_EQ(event->kv_block_bytes(), 1 << 16);
  EXPECT_EQ(event->weights_version(), 1);
  EXPECT_EQ(event->checkpoint_fingerprint(), "fingerprint of fake");
  EXPECT_EQ(State(), "loaded");
  EXPECT_EQ(worker_.GetStatus().weight_types(), "float32 0.5 MiB");
  ASSERT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
  v1::ProfileRequest profile;
  profile.set_group_epoch(1);
  EXPECT_GT(worker_.Profile(profile)->available_kv_cache_memory_bytes(), 0);
  const auto bytes = worker_.AllocateKvCache(KvRequest(KvConfig(64)));
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, 64 << 16);
  EXPECT_EQ(State(), "awake");
  const v1::StepReply reply = Step(5);
  EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
  EXPECT_EQ(reply.step_id(), 5);
  EXPECT_EQ(reply.tokens(0).token_id(), 12);
  EXPECT_EQ(reply.weights_version(), 1);
  EXPECT_EQ(worker_.last_step_id(), 5);
  EXPECT_GT(worker_.GetStatus().rss_bytes(), 0);
}

TEST_F(WorkerTest, TheKvCacheShrinksAndGrowsAlsoWhileItSleeps) {
  constexpr int64_t kBlock = 1 << 16;
  const auto resize = [&](int32_t num_blocks) {
    v1::ResizeKvCacheRequest request;
    request.set_group_epoch(1);
    request.set_num_blocks(num_blocks);
    return worker_.ResizeKvCache(request);
  };
  Load();
  EXPECT_TRUE(absl::IsFailedPrecondition(resize(64).status()));
  v1::KvCacheConfig config = KvConfig(256);
  config.set_num_mapped_blocks(257);
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.AllocateKvCache(KvRequest(config)).status()));
  config.set_num_mapped_blocks(128);
  EXPECT_EQ(worker_.AllocateKvCache(KvRequest(config)).value(), 128 * kBlock);
  EXPECT_EQ(Resident("kv_cache"), 128 * kBlock);
  EXPECT_EQ(worker_.Snapshot().num_blocks(), 256);
  EXPECT_EQ(worker_.Snapshot().num_mapped_blocks(), 128);
  EXPECT_EQ(resize(32)->kv_cache_bytes(), 32 * kBlock);
  EXPECT_EQ(resize(256)->kv_cache_bytes(), 256 * kBlock);
  EXPECT_EQ(resize(256)->weights_version(), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(resize(257).status()));
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  EXPECT_EQ(resize(64)->kv_cache_bytes(), 0);
  ASSERT_TRUE(WakeUp(worker_).ok());
  EXPECT_EQ(Resident("kv_cache"), 64 * kBlock);
  EXPECT_EQ(resize(256)->kv_cache_bytes(), 256 * kBlock);
  control_.kv_error = absl::ResourceExhaustedError("no memory");
  EXPECT_TRUE(absl::IsResourceExhausted(resize(64).status()));
  control_.kv_error = absl::OkStatus();
  EXPECT_EQ(worker_.Snapshot().num_mapped_blocks(), 256);
  EXPECT_EQ(Step(1).error_code(), 0) << "the worker has not failed";
}

TEST_F(WorkerTest, EveryCallInTheWrongStateNamesTheState) {
  const auto expect = [&](const absl::Status& status, const std::string& state) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("the worker is " + state), std::string::npos) << status;
  };
  int64_t last_step = 0;
  const auto step_status = [&] {
    const v1::StepReply reply = Step(++last_step);
    return absl::Status(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
  };
  expect(worker_.AllocateKvCache(KvRequest()).status(), "created");
  expect(Sleep(worker_, 1).status(), "created");
  expect(WakeUp(worker_).status(), "created");
  expect(step_status(), "created");
  Load();
  expect(worker_.LoadModel(LoadRequest(), [](int64_t, int64_t) {}).status(), "loaded");
  expect(Sleep(worker_, 1).status(), "loaded");
  expect(step_status(), "loaded");
  ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  expect(worker_.AllocateKvCache(KvRequest()).status(), "awake");
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  expect(step_status(), "asleep");
  // None of the calls changed anything.
  ASSERT_TRUE(WakeUp(worker_).ok());
  EXPECT_EQ(Step(++last_step).error_code(), 0);
}

TEST_F(WorkerTest, BadRequestsAreRefused) {
  const auto load = [](v1::LoadModelRequest request) {
    FakeModelControl control;
    Worker worker({.num_threads = 1}, FakeParts(&control));
    EXPECT_TRUE(BeginEpoch(worker, 1).ok());
    return worker.LoadModel(request, [](int64_t, int64_t) {}).status();
  };
  v1::LoadModelRequest request = LoadRequest();
  request.set_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(load(request).message().find("dtype"), 0u);
  request.set_dtype(v1::DTYPE_FLOAT8_E4M3);  // of a KV cache only
  EXPECT_EQ(load(request).message().find("dtype"), 0u);
  request = LoadRequest();
  request.set_kv_cache_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(load(request).message().find("kv_cache_dtype"), 0u);
  request = LoadRequest();
  request.set_weights_version(0);
  EXPECT_EQ(load(request).message().find("weights_version"), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(load(LoadRequest(2, 2))));
  EXPECT_TRUE(absl::IsInvalidArgument(load(LoadRequest(0, 0))));
  Load();
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.AllocateKvCache(KvRequest(KvConfig(1))).status()));
  v1::KvCacheConfig other = KvConfig();
  other.set_block_size(8);
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.AllocateKvCache(KvRequest(other)).status()));
  other = KvConfig();
  other.set_dtype(v1::DTYPE_FLOAT8_E4M3);
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.AllocateKvCache(KvRequest(other)).status()));
  ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Sleep(worker_, -1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Sleep(worker_, 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(WakeUp(worker_, {"weigths"}).status()));
  EXPECT_EQ(State(), "awake");
}

TEST_F(WorkerTest, LevelOneKeepsWeightsOnly) {
  MakeAwake();
  ASSERT_EQ(Step(1).error_code(), 0);
  const auto freed = Sleep(worker_, 1);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->tags().at("weights").freed_bytes(), kTagBytes);
  EXPECT_EQ(freed->tags().at("weights").backed_up_bytes(), kTagBytes);
  EXPECT_EQ(freed->tags().at("weights").discarded_bytes(), 0);
  EXPECT_EQ(freed->tags().at("kv_cache").freed_bytes(), 64 << 16);
  EXPECT_EQ(freed->tags().at("kv_cache").discarded_bytes(), 64 << 16);
  EXPECT_EQ(freed->tags().at("kv_cache").resident_bytes(), 0);
  EXPECT_EQ(State(), "asleep");
  for (const char* tag : {"weights", "kv_cache", "workspace"}) EXPECT_EQ(Resident(tag), 0) << tag;
  const auto mapped = WakeUp(worker_);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  for (const auto& [tag, bytes] : mapped->tags()) {
    EXPECT_EQ(bytes.mapped_bytes(), freed->tags().at(tag).freed_bytes()) << tag;
    EXPECT_EQ(bytes.resident_bytes(), bytes.mapped_bytes()) << tag;
    EXPECT_EQ(bytes.backed_up_bytes(), 0) << tag;
  }
  EXPECT_EQ(State(), "awake");
  EXPECT_EQ(control_.reloads, 0);
  EXPECT_EQ(control_.resets, 1);
  EXPECT_EQ(control_.kv_cache[0], 0);  // discarded
  EXPECT_EQ(Step(2).tokens(0).token_id(), 9);
}

TEST_F(WorkerTest, WakesByTagAndServesOnlyWhenWhole) {
  MakeAwake();
  ASSERT_TRUE(Sleep(worker_, 2).ok());
  const auto weights = WakeUp(worker_, {"weights"});
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->tags().at("weights").mapped_bytes(), kTagBytes);
  EXPECT_EQ(weights->tags().at("kv_cache").mapped_bytes(), 0);
  EXPECT_EQ(control_.reloads, 1);
  EXPECT_EQ(State(), "asleep");
  EXPECT_EQ(control_.resets, 0);
  EXPECT_NE(Step(2).error_code(), 0);
  ASSERT_TRUE(WakeUp(worker_, {"kv_cache"}).ok());
  EXPECT_EQ(State(), "asleep");
  ASSERT_TRUE(WakeUp(worker_, {"workspace"}).ok());
  EXPECT_EQ(State(), "awake");
  EXPECT_EQ(control_.reloads, 1);
  EXPECT_EQ(control_.resets, 1);
}

TEST_F(WorkerTest, StatusHasTheLevelOfTheSleep) {
  const auto level = [&] { return worker_.GetStatus().sleep_level(); };
  MakeAwake();
  EXPECT_EQ(level(), 0);
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  EXPECT_EQ(level(), 1);
  ASSERT_TRUE(Sleep(worker_, 2).ok());
  EXPECT_EQ(level(), 2);
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  EXPECT_EQ(level(), 2) << "the weights are gone already";
  ASSERT_TRUE(WakeUp(worker_, {"weights"}).ok());
  EXPECT_EQ(level(), 1) << "the weights were read again, the KV cache still sleeps";
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  EXPECT_EQ(level(), 1);
  ASSERT_TRUE(WakeUp(worker_).ok());
  EXPECT_EQ(level(), 0);
}

TEST_F(WorkerTest, ASleepAfterAPartialWakeUpFreesWhatIsResident) {
  MakeAwake();
  ASSERT_TRUE(Sleep(worker_, 2).ok());
  ASSERT_TRUE(WakeUp(worker_, {"weights"}).ok());
  EXPECT_EQ(Resident("weights"), kTagBytes);
  const auto freed = Sleep(worker_, 2);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->tags().at("weights").freed_bytes(), kTagBytes);
  EXPECT_EQ(freed->tags().at("kv_cache").freed_bytes(), 0);
  for (const char* tag : {"weights", "kv_cache", "workspace"}) EXPECT_EQ(Resident(tag), 0) << tag;
  ASSERT_TRUE(WakeUp(worker_).ok());
  EXPECT_EQ(control_.reloads, 2);
  EXPECT_EQ(Step(2).tokens(0).token_id(), 9);
}

TEST_F(WorkerTest, RepeatedCallsChangeNothing) {
  MakeAwake();
  EXPECT_EQ(WakeUp(worker_)->tags().at("weights").mapped_bytes(), 0);
  EXPECT_EQ(control_.resets, 0);
  ASSERT_TRUE(Sleep(worker_, 1).ok());
  EXPECT_EQ(Sleep(worker_, 1)->tags().at("weights").freed_bytes(), 0);
  ASSERT_TRUE(WakeUp(worker_).ok());
  EXPECT_EQ(control_.reloads, 0);
  EXPECT_EQ(Step(2).tokens(0).token_id(), 9);
}

// The second step was under way when the first failed; the second error says less.
TEST_F(WorkerTest, TheFirstErrorOfStepsUnderWayStays) {
  MakeAwake();
  control_.wait_errors = {absl::DataLossError("the first"), absl::AbortedError("what came of it")};
  std::vector<Worker::AwaitReply> steps;
  for (const int64_t id : {1, 2}) {
    absl::Notification launched;
    worker_.ExecuteAsync(EmptyStep(id), [&](Worker::AwaitReply step) {
      steps.push_back(std::move(step));
      launched.Notify();
    });
    launched.WaitForNotification();
  }
  EXPECT_EQ(steps[0]().error_message(), "the first");
  EXPECT_EQ(steps[1]().error_message(), "what came of it");
  EXPECT_EQ(State(), "failed");
  const int steps_until_then = control_.steps;
  EXPECT_EQ(Step(3).error_message(), "the first");
  EXPECT_EQ(control_.steps, steps_until_then) << "a failed worker computes nothing";
}

TEST_F(WorkerTest, FailedLoadFailsTheWorker) {
  control_.load_error = absl::InvalidArgumentError("tensor x has a bad shape");
  EXPECT_TRUE(absl::IsInvalidArgument(worker_.LoadModel(LoadRequest(), [](int64_t, int64_t) {}).status()));
  EXPECT_EQ(State(), "failed");
}

TEST_F(WorkerTest, TooLargeAKvCacheCanBeTriedSmaller) {
  Load();
  control_.kv_error = absl::ResourceExhaustedError("too large");
  EXPECT_TRUE(absl::IsResourceExhausted(worker_.AllocateKvCache(KvRequest()).status()));
  EXPECT_EQ(State(), "loaded");
  control_.kv_error = absl::OkStatus();
  EXPECT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
}

TEST_F(WorkerTest, StatusAnswersWhileAStepRuns) {
  MakeAwake();
  absl::Notification hold, done;
  control_.hold_step = &hold;
  worker_.ExecuteAsync(EmptyStep(9), [&](const Worker::AwaitReply& step) {
    step();
    done.Notify();
  });
  while (!worker_.step_in_progress()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(worker_.last_step_id(), 9);
  EXPECT_FALSE(worker_.WaitIdle(absl::Milliseconds(1)));
  hold.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(worker_.WaitIdle(absl::Seconds(10)));
}

std::string RandomGroup() {
  std::random_device random;
  return absl::StrCat("worker-test-", absl::Hex(random()), absl::Hex(random()));
}

TEST(WorkerGroup, FailureOfOneRankEndsTheOthersStep) {
  FakeModelControl controls[2];
  Worker first({.num_threads = 1}, FakeParts(&controls[0])),
      second({.num_threads = 1}, FakeParts(&controls[1]));
  const std::string group = RandomGroup();
  std::thread other([&] { EXPECT_TRUE(MakeAwake(second, 1, 2, group).ok()); });
  EXPECT_TRUE(MakeAwake(first, 0, 2, group).ok());
  other.join();
  controls[1].execute_error = absl::InternalError("boom");
  absl::Notification done[2];
  v1::StepReply replies[2];
  const v1::StepRequest request = EmptyStep(1);
  first.ExecuteAsync(request, [&](const Worker::AwaitReply& step) { replies[0] = step(), done[0].Notify(); });
  second.ExecuteAsync(request,
                      [&](const Worker::AwaitReply& step) { replies[1] = step(), done[1].Notify(); });
  for (auto& notification : done) notification.WaitForNotification();
  EXPECT_EQ(replies[0].error_code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(replies[0].error_message(), "rank 1 failed: boom");
  EXPECT_EQ(replies[1].error_message(), "boom");
}

}  // namespace
}  // namespace somnus
