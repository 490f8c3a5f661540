// The engine's figures of the ranks' memory equal the ranks' figures after every kind of change.

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr int64_t kWeights = 100;

class EngineBytesTest : public ::testing::Test {
 protected:
  EngineBytesTest() {
    const EngineOptions options = SmallEngine();
    executor_.emplace(SmallWorker(options));
    executor_->SetRecovery(FakeExecutor::Recovery::kSucceeds);
    const int64_t cache = options.scheduler.blocks.num_blocks * FakeExecutor::kDeviceBlockBytes;
    executor_->SetResidentBytes({{"weights", kWeights}, {"kv_cache", cache}});
    executor_->SetRetainsBackups();
    engine_.emplace(options, &*executor_, nullptr);
  }
  // The copy is retained after the wake-up.
  void MakeBackup() {
    ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
    ASSERT_TRUE(engine_->WakeUp({}).ok());
    EXPECT_EQ(Backup(), kWeights);
  }
  int64_t Backup() { return engine_->Stats().host_bytes["weights"]; }
  void AwaitRecoveries(int64_t count) {
    while (engine_->Stats().num_recoveries < count) absl::SleepFor(absl::Milliseconds(1));
  }

  std::optional<FakeExecutor> executor_;
  std::optional<EngineLoop> engine_;
};

TEST_F(EngineBytesTest, ThoseThatTakeTheLostOnesPlacesHaveNoBackup) {
  MakeBackup();
  executor_->Lose(absl::UnavailableError("rank 1 was killed"));
  AwaitRecoveries(1);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(Backup(), 0);
}

TEST_F(EngineBytesTest, NewWeightsHaveNoBackup) {
  MakeBackup();
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  EXPECT_EQ(Backup(), 0);
  MakeBackup();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(Backup(), 0) << "the old weights are gone";
  update->reset();
}

TEST_F(EngineBytesTest, AReloadThatFailsInTheMiddleLeavesNoBackup) {
  MakeBackup();
  executor_->SetNextWeightsOutcome({.status = absl::DataLossError("a bad file")});
  EXPECT_FALSE(engine_->ReloadWeights({}).ok());
  EXPECT_EQ(Backup(), 0);
}

TEST_F(EngineBytesTest, ADeeperSleepGivesTheBackupUp) {
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_EQ(Backup(), kWeights);
  EXPECT_EQ(engine_->Stats().resident_bytes.at("weights"), 0);
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_EQ(Backup(), 0);
}

// The recovery brings all ranks to the smaller size, as was wanted.
TEST_F(EngineBytesTest, ALossWithinAShrinkingChangesTheCache) {
  executor_->HoldLifecycle(true);
  absl::StatusOr<int32_t> resized = -1;
  std::thread caller([&] { resized = engine_->ResizeKvCache(55); });
  while (executor_->lifecycle_calls().empty()) absl::SleepFor(absl::Milliseconds(1));
  executor_->Lose(absl::UnavailableError("rank 1 was killed"));
  caller.join();
  EXPECT_EQ(resized.value(), 55);
  EXPECT_EQ(engine_->Stats().resident_bytes.at("kv_cache"), 56 * FakeExecutor::kDeviceBlockBytes);
}

}  // namespace
}  // namespace somnus
