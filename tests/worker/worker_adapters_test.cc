// Adapters that a worker reads ahead, while steps and other calls go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/checkpoint/lora_files.h"
#include "tests/worker/weights_test.h"
#include "worker/runner/adapter_reader.h"

namespace somnus {
namespace {

using testing::HasSubstr;

class WorkerAdaptersTest : public WeightsTest {
 protected:
  void SetUp() override {
    const ModelConfig config = FakeConfig();
    adapter_ = WriteLora(*MemoryCheckpoint::Create(config), {.rank = 2});
    control_.adapter_reader = std::make_shared<AdapterReader>(config, MakeShards(config, 0, 1),
                                                              ModelRunnerOptions{.dtype = DataType::kF32});
    MakeAwake();
  }
  absl::Status Read(const std::string& path, const std::function<bool()>& has_left, int64_t epoch = 1) {
    v1::ReadAdaptersRequest request;
    request.set_group_epoch(epoch);
    v1::WorkerAdapter* const adapter = request.add_adapters();
    adapter->set_slot(1);
    adapter->set_id(5);
    adapter->set_name("poet");
    adapter->set_path(path);
    return worker_.ReadAdapters(request, has_left);
  }
  // Names no adapter.
  absl::Status Drop() {
    v1::ReadAdaptersRequest request;
    request.set_group_epoch(1);
    return worker_.ReadAdapters(request, Stays);
  }
  int64_t HostBytes() const { return worker_.GetStatus().host_bytes_by_tag().at("workspace"); }
  static bool Stays() { return false; }

  std::string adapter_;
};

// Each step waits for the thread that a reading would keep, if the reading were there.
TEST_F(WorkerAdaptersTest, StepsRunMeanwhile) {
  int64_t steps = 0;
  const auto step = [&] {
    EXPECT_EQ(RunStep(worker_, EmptyStep(++steps)).error_message(), "");
    return false;
  };
  ASSERT_EQ(Read(adapter_, step), absl::OkStatus());
  EXPECT_EQ(steps, kNumLoraTargets + 1) << "one between two matrices, and one at the end";
  ASSERT_EQ(control_.read_adapters.size(), 1u);
  EXPECT_EQ(control_.read_adapters[0]->id, 5u);
  EXPECT_EQ(control_.read_adapters[0]->linears.size(), static_cast<size_t>(kNumLoraTargets));
  EXPECT_EQ(control_.read_adapters[0]->fingerprint.size(), 64u);
}

TEST_F(WorkerAdaptersTest, ErrorsKeepNothing) {
  EXPECT_TRUE(absl::IsCancelled(Read(adapter_, [] { return true; })));
  const absl::Status missing = Read("/nowhere", Stays);
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("adapter 'poet' (/nowhere)"));
  ExpectRefused(Read(adapter_, Stays, /*epoch=*/2), "the request is of epoch 2");
  const auto lose = [&] {
    EXPECT_TRUE(BeginEpoch(worker_, 2).ok());
    return false;
  };
  EXPECT_FALSE(Read(adapter_, lose).ok()) << "of an epoch that is over";
  EXPECT_THAT(control_.read_adapters, testing::IsEmpty());
  control_.adapter_reader = nullptr;
  ExpectRefused(Read(adapter_, Stays, /*epoch=*/2), "--enable-lora");
}

TEST_F(WorkerAdaptersTest, WhatWasReadCountsUntilItIsDropped) {
  const int64_t before = HostBytes();
  ASSERT_EQ(Read(adapter_, Stays), absl::OkStatus());
  EXPECT_EQ(HostBytes(), before + 1);
  EXPECT_EQ(Drop(), absl::OkStatus());
  EXPECT_THAT(control_.read_adapters, testing::IsEmpty());
  EXPECT_EQ(HostBytes(), before);
}

// The reader asks the last question but one.
TEST_F(WorkerAdaptersTest, NothingIsKeptOfACallThatWasLeftAfterItsLastMatrix) {
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(Read(adapter_, [&] { return ++asked > kNumLoraTargets; })));
  EXPECT_EQ(asked, kNumLoraTargets + 1);
  EXPECT_THAT(control_.read_adapters, testing::IsEmpty());
}

TEST_F(WorkerAdaptersTest, ARequestIsCheckedBeforeFilesAreRead) {
  control_.adapters_error = absl::InvalidArgumentError("slot 9");
  EXPECT_EQ(Read("/nowhere", Stays), control_.adapters_error);
}

TEST_F(WorkerAdaptersTest, AReadingThatHangsHoldsUpNeitherTheDropNorTheEnd) {
  absl::Notification reads, goes_on;
  std::thread hangs([&] {
    const auto hang = [&] {
      if (!reads.HasBeenNotified()) reads.Notify();
      goes_on.WaitForNotification();
      return true;
    };
    EXPECT_TRUE(absl::IsCancelled(Read(adapter_, hang)));
  });
  reads.WaitForNotification();
  EXPECT_EQ(Drop(), absl::OkStatus());
  EXPECT_FALSE(worker_.WaitIdle(absl::Milliseconds(20)));
  const absl::Status second = Read(adapter_, Stays);
  EXPECT_TRUE(absl::IsAborted(second)) << second;
  goes_on.Notify();
  hangs.join();
  EXPECT_TRUE(worker_.WaitIdle(absl::InfiniteDuration()));
  EXPECT_EQ(Read(adapter_, Stays), absl::OkStatus());
}

}  // namespace
}  // namespace somnus
