// The drivers count the bytes of a sleep and of a wake-up: as many as were announced, bit by bit.

#include "allocator/byte_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/host_vmm_driver.h"
#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kUnit = FakeVmmDriver::kUnit;
using Modes = std::map<std::string, RestoreMode>;
const Modes kLevel1 = {{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}};
const Modes kLevel2 = {{"weights", RestoreMode::kDiscard}, {"kv_cache", RestoreMode::kDiscard}};

TEST(ByteMeterTest, CountsOfSeveralThreadsAddUp) {
  ByteMeter meter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&meter] {
      for (int k = 0; k < 10'000; ++k) meter.Advance(3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(meter.bytes(), 4 * 10'000 * 3);
  meter.Reset();
  EXPECT_EQ(meter.bytes(), 0);
}

class MeterTest : public testing::TestWithParam<BackupPolicy> {
 protected:
  void SetUp() override {
    if (GetParam() == BackupPolicy::kCompress && !CheckCompression().ok()) GTEST_SKIP() << "no zstd";
  }
  // A chunk has two units; each call of the driver moves one chunk.
  template <typename Driver>
  Driver* Open(std::unique_ptr<Driver> owned, int64_t unit) {
    Driver* const driver = owned.get();
    driver_ = std::move(owned);
    allocator_ = SleepableAllocator::Create(
        driver, {.backup = GetParam(), .spill_dir = testing::TempDir(), .chunk_bytes = 2 * unit});
    weights_ = allocator_->Allocate("weights", 8 * unit).value();
    kv_ = allocator_->Allocate("kv_cache", 6 * unit).value();
    return driver;
  }
  FakeVmmDriver* OpenFake() { return Open(std::make_unique<FakeVmmDriver>(), kUnit); }
  // Both return how many bytes were announced, and expect as many to be counted.
  int64_t Sleep(const Modes& modes) {
    const int64_t expected = allocator_->SleepBytes(modes);
    meter_.Reset();
    const MeterScope counted(driver_.get(), &meter_);
    EXPECT_EQ(allocator_->PrepareSleep(modes), absl::OkStatus());
    allocator_->CommitSleep();
    EXPECT_EQ(meter_.bytes(), expected);
    return expected;
  }
  int64_t WakeUp() {
    const int64_t expected = allocator_->WakeBytes({});
    meter_.Reset();
    const MeterScope counted(driver_.get(), &meter_);
    EXPECT_EQ(allocator_->PrepareWake({}), absl::OkStatus());
    allocator_->CommitWake();
    EXPECT_EQ(meter_.bytes(), expected);
    return expected;
  }
  static bool retains() { return GetParam() != BackupPolicy::kRelease; }

  ByteMeter meter_;
  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
  void *weights_ = nullptr, *kv_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Policies, MeterTest,
                         testing::Values(BackupPolicy::kRetain, BackupPolicy::kRelease, BackupPolicy::kFile,
                                         BackupPolicy::kCompress));

TEST_P(MeterTest, CountsWhatWasAnnounced) {
  FakeVmmDriver* const driver = OpenFake();
  EXPECT_EQ(allocator_->WakeBytes({}), 0) << "all is resident";
  EXPECT_EQ(Sleep(kLevel1), (8 + 8 + 6) * kUnit) << "a copy of the weights, and all memory";
  EXPECT_EQ(Sleep(kLevel1), 0) << "it sleeps";
  EXPECT_EQ(WakeUp(), (8 + 8 + 6) * kUnit);
  EXPECT_EQ(Sleep(kLevel1), retains() ? (8 + 6) * kUnit : (8 + 8 + 6) * kUnit);
  EXPECT_EQ(Sleep(kLevel2), 0) << "a backup goes with its memory, which nobody has to wait for";
  EXPECT_EQ(WakeUp(), (8 + 6) * kUnit);
  EXPECT_EQ(Sleep(kLevel2), (8 + 6) * kUnit);
  EXPECT_EQ(allocator_->WakeBytes({"kv_cache"}), 6 * kUnit);
  EXPECT_EQ(driver->violations(), std::vector<std::string>{});
}

TEST_P(MeterTest, AdvancesWithEveryChunkAndNeverBeyond) {
  FakeVmmDriver* const driver = OpenFake();
  std::vector<int64_t> seen;
  driver->OnCall([&] { seen.push_back(meter_.bytes()); });
  const auto expect_steps = [&](int64_t total) {
    seen.push_back(meter_.bytes());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), total);
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_GE(seen.size(), 7u) << "memory is made and released chunk by chunk";
  };
  const int64_t slept = Sleep(kLevel1);
  expect_steps(slept);
  seen.clear();
  meter_.Reset();
  const int64_t woken = WakeUp();
  expect_steps(woken);
  driver->OnCall(nullptr);
}

TEST_P(MeterTest, NothingIsCountedOutsideAScope) {
  OpenFake();
  ASSERT_TRUE(allocator_->Sleep(kLevel1).ok());
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_EQ(meter_.bytes(), 0);
}

// The host's driver, which may keep pages in place of a copy, and reads the file into the pages.
TEST_P(MeterTest, TheHostsMemoryIsCountedAsItBecomesResident) {
  constexpr int64_t kPage = 2 << 20;
  Open(MakeHostVmmDriver({.num_threads = 2}), kPage);
  const bool in_place = GetParam() == BackupPolicy::kRelease;
  EXPECT_EQ(Sleep(kLevel1), in_place ? 6 * kPage : (8 + 8 + 6) * kPage);
  EXPECT_EQ(WakeUp(), in_place ? (8 + 6) * kPage : (8 + 8 + 6) * kPage) << "kept pages are opened again";
  EXPECT_EQ(Sleep(kLevel1), in_place ? 6 * kPage : (8 + 6) * kPage);
  EXPECT_EQ(Sleep(kLevel2), in_place ? 8 * kPage : 0);
  EXPECT_EQ(WakeUp(), (8 + 6) * kPage);
}

}  // namespace
}  // namespace somnus
