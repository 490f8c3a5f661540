// A sleep and a wake-up in two phases: the first phase can be undone without loss, and the second cannot
// fail.

#include <gtest/gtest.h>

#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kUnit = FakeVmmDriver::kUnit;
using Modes = std::map<std::string, RestoreMode>;
const Modes kLevel1 = {{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}};

class TwoPhases : public testing::TestWithParam<BackupPolicy> {
 protected:
  TwoPhases()
      : allocator_(
            SleepableAllocator::Create(&driver_, {.backup = GetParam(), .spill_dir = testing::TempDir()})) {
    weights_ = allocator_->Allocate("weights", 4 * kUnit).value();
    kv_ = allocator_->Allocate("kv_cache", 2 * kUnit).value();
    driver_.Fill(weights_, 4 * kUnit, 'w');
    driver_.Fill(kv_, 2 * kUnit, 'k');
  }
  void SetUp() override {
    if (GetParam() == BackupPolicy::kCompress && !CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
  }
  ~TwoPhases() override { EXPECT_EQ(driver_.violations(), std::vector<std::string>{}); }

  static bool retains() { return GetParam() != BackupPolicy::kRelease; }
  int64_t WeightsBackup() const {
    const TagStats stats = allocator_->Stats().at("weights");
    return GetParam() == BackupPolicy::kFile ? stats.file_backup : stats.host_backup;
  }

  FakeVmmDriver driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
  void* weights_;
  void* kv_;
};
INSTANTIATE_TEST_SUITE_P(Policies, TwoPhases,
                         testing::Values(BackupPolicy::kRetain, BackupPolicy::kRelease, BackupPolicy::kFile,
                                         BackupPolicy::kCompress));

TEST_P(TwoPhases, AnAbortedSleepReleasesNothing) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  EXPECT_EQ(driver_.live_bytes(), 6 * kUnit);
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
  EXPECT_TRUE(driver_.Holds(kv_, 2 * kUnit, 'k'));
  allocator_->AbortSleep();
  EXPECT_EQ(WeightsBackup(), 0) << "another rank may lack the memory";
  EXPECT_EQ(driver_.host_bytes(), 0);
  EXPECT_TRUE(allocator_->CommitSleep().tags.empty()) << "nothing is prepared any longer";
  EXPECT_EQ(driver_.live_bytes(), 6 * kUnit);
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
}

TEST_P(TwoPhases, TheReportsSayWhatBecameOfEachTag) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  const SleepReport slept = allocator_->CommitSleep();
  ASSERT_EQ(slept.tags.size(), 2u);
  const SleepReport::Tag& weights = slept.tags.at("weights");
  EXPECT_EQ(weights.freed, 4 * kUnit);
  EXPECT_EQ(weights.backed_up, 4 * kUnit);
  EXPECT_EQ(weights.copied, 4 * kUnit);
  EXPECT_EQ(weights.discarded, 0);
  EXPECT_EQ(weights.still_resident, 0);
  EXPECT_EQ(slept.tags.at("kv_cache").discarded, 2 * kUnit);
  EXPECT_EQ(slept.tags.at("kv_cache").backed_up, 0);
  EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit);

  ASSERT_TRUE(allocator_->PrepareWake({}).ok());
  EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit) << "until it is committed";
  const WakeReport woken = allocator_->CommitWake();
  EXPECT_EQ(woken.tags.at("weights").mapped, 4 * kUnit);
  EXPECT_EQ(woken.tags.at("weights").restored, 4 * kUnit);
  EXPECT_EQ(woken.tags.at("kv_cache").restored, 0);
  EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 0);
  EXPECT_TRUE(allocator_->CommitWake().tags.empty());

  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  EXPECT_EQ(allocator_->CommitSleep().tags.at("weights").copied, retains() ? 0 : 4 * kUnit);
}

TEST_P(TwoPhases, AnAbortedWakeUpKeepsTheBackup) {
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
  ASSERT_TRUE(allocator_->PrepareWake({}).ok());
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
  driver_.Fill(kv_, 2 * kUnit, 'x');
  allocator_->AbortWake();
  EXPECT_EQ(driver_.live_bytes(), 0);
  EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
}

TEST_P(TwoPhases, OneChangeAtATime) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(allocator_->PrepareSleep(kLevel1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(allocator_->PrepareWake({})));
  allocator_->AbortWake();  // of nothing: the prepared sleep stays
  EXPECT_EQ(allocator_->CommitSleep().tags.size(), 2u);
  ASSERT_TRUE(allocator_->PrepareWake({"weights"}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(allocator_->PrepareSleep(kLevel1)));
  allocator_->AbortSleep();
  EXPECT_EQ(allocator_->CommitWake().tags.size(), 1u);
}

TEST_P(TwoPhases, RegionsMayComeAndGoInBetween) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  void* const late = allocator_->Allocate("weights", kUnit).value();
  driver_.Fill(late, kUnit, 'l');
  ASSERT_TRUE(allocator_->Free(weights_).ok());
  EXPECT_EQ(driver_.host_bytes(), 0) << "the backup of a freed region goes with it";
  const SleepReport slept = allocator_->CommitSleep();
  EXPECT_EQ(slept.tags.size(), 1u);
  EXPECT_EQ(driver_.live_bytes(), kUnit);
  EXPECT_TRUE(driver_.Holds(late, kUnit, 'l'));
  ASSERT_TRUE(allocator_->PrepareWake({}).ok());
  ASSERT_TRUE(allocator_->Free(kv_).ok());
  EXPECT_TRUE(allocator_->CommitWake().tags.empty());
  EXPECT_EQ(driver_.live_bytes(), kUnit);
}

TEST_P(TwoPhases, CheckWakeSaysWhatIsMissing) {
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
  driver_.SetCapacity(5 * kUnit);
  const WakeNeed all = allocator_->CheckWake({}).value();
  EXPECT_EQ(all.needed, (BytesByTag{{"kv_cache", 2 * kUnit}, {"weights", 4 * kUnit}}));
  EXPECT_EQ(all.available, 5 * kUnit);
  EXPECT_EQ(all.missing, (BytesByTag{{"weights", kUnit}}));
  const WakeNeed weights = allocator_->CheckWake({"weights"}).value();
  EXPECT_EQ(weights.needed, (BytesByTag{{"weights", 4 * kUnit}}));
  EXPECT_TRUE(weights.missing.empty());
  EXPECT_TRUE(absl::IsResourceExhausted(allocator_->PrepareWake({})));
  EXPECT_TRUE(allocator_->PrepareWake({"weights"}).ok()) << "an error leaves nothing prepared";
}

// While a file is read a second thread maps the rest; a failure there is the wake-up's error, too.
TEST_P(TwoPhases, EachCallOfAWakeUpFails) {
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
  for (int nth = 1;; ++nth) {
    driver_.FailAt(nth);
    const bool ok = allocator_->PrepareWake({}).ok();
    driver_.FailAt(0);
    if (ok) break;
    EXPECT_EQ(driver_.live_bytes(), 0) << nth;
    EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit);
    ASSERT_LT(nth, 30);
  }
  allocator_->CommitWake();
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
}

// A wake-up brings all or nothing, however much of the device's memory is left.
TEST_P(TwoPhases, OutOfMemoryAtEachChunk) {
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
  for (int64_t units = 0; units < 6; ++units) {
    driver_.SetCapacity(units * kUnit);
    EXPECT_TRUE(absl::IsResourceExhausted(allocator_->WakeUp({}).status())) << units;
    EXPECT_EQ(driver_.live_bytes(), 0);
    EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit);
  }
  driver_.SetCapacity(6 * kUnit);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
}

// The driver fails to unmap when it is too late to go back: the region sleeps, says that memory is still
// held, and the wake-up finds that memory, with the right contents even after writes meanwhile.
TEST_P(TwoPhases, CommittingCannotFail) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  driver_.FailAt(2, /*times=*/100);  // the first region's Release, and all that follows
  const SleepReport slept = allocator_->CommitSleep();
  driver_.FailAt(0);
  ASSERT_TRUE(driver_.failed());
  EXPECT_EQ(slept.tags.at("weights").still_resident + slept.tags.at("kv_cache").still_resident,
            driver_.live_bytes());
  EXPECT_GT(driver_.live_bytes(), 0);
  EXPECT_EQ(allocator_->Stats().at("weights").sleeping, 4 * kUnit);
  EXPECT_EQ(allocator_->Stats().at("kv_cache").sleeping, 2 * kUnit);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
  EXPECT_EQ(driver_.live_bytes(), 6 * kUnit);
}

TEST_P(TwoPhases, ADriverThatFailsOnceIsAskedAgainAtOnce) {
  for (int nth = 1;; ++nth) {
    driver_.ClearFailed();
    ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
    driver_.FailAt(nth);
    allocator_->CommitSleep();
    driver_.FailAt(0);
    EXPECT_EQ(driver_.live_bytes(), 0);
    ASSERT_TRUE(allocator_->WakeUp({}).ok());
    if (!driver_.failed()) break;
  }
}

TEST_P(TwoPhases, AnotherSleepReleasesWhatWasLeft) {
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  driver_.FailAt(1, /*times=*/2);  // the Unmap of the first region, and the second try
  allocator_->CommitSleep();
  EXPECT_GT(driver_.live_bytes(), 0);
  ASSERT_TRUE(allocator_->PrepareSleep(kLevel1).ok());
  allocator_->CommitSleep();
  EXPECT_EQ(driver_.live_bytes(), 0);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(driver_.Holds(weights_, 4 * kUnit, 'w'));
}

TEST(BornAsleep, ARegionThatBeginsAsleepTakesNoMemoryBeforeItsWakeUp) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  allocator->BeginAsleep({"weights", "kv_cache"});
  void* weights = allocator->Allocate("weights", 4 * kUnit).value();
  void* kv = allocator->AllocateRows("kv_cache", 2 * kUnit, 2, 2 * kUnit).value();
  ASSERT_TRUE(allocator->Allocate("workspace", kUnit).ok());
  EXPECT_EQ(driver.live_bytes(), kUnit);
  EXPECT_EQ(allocator->Stats().at("weights").sleeping, 4 * kUnit);
  EXPECT_EQ(allocator->CheckWake({}).value().needed,
            (std::map<std::string, int64_t>{{"kv_cache", 4 * kUnit}, {"weights", 4 * kUnit}}));
  // A deeper sleep changes nothing for regions that have no memory, and a new size is for the wake-up.
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kDiscard}}).ok());
  ASSERT_TRUE(allocator->Resize(kv, kUnit).ok());
  EXPECT_EQ(driver.live_bytes(), kUnit);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  driver.Fill(weights, 4 * kUnit, 'w');
  driver.Fill(kv, kUnit, 'k');
  EXPECT_EQ(allocator->Stats().at("weights").sleeping, 0);
  allocator->BeginAsleep({});
  ASSERT_TRUE(allocator->Allocate("kv_cache", kUnit).ok());
  EXPECT_EQ(allocator->Stats().at("kv_cache").sleeping, 0);
  EXPECT_EQ(driver.violations(), std::vector<std::string>{});
}

}  // namespace
}  // namespace somnus
