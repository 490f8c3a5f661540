// Regions of rows whose tails have no memory, over a driver that fails on command, and random calls checked
// against a model.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kUnit = FakeVmmDriver::kUnit;
constexpr char kTag[] = "kv_cache";
// Neither rows nor the wanted parts of rows consist of whole chunks.
constexpr int64_t kRow = 10 * kUnit + 24, kRows = 3;
const std::vector<std::string> kNoViolations;

// A region and the expected bytes; 0: undefined.
class Rows {
 public:
  Rows(FakeVmmDriver* driver, SleepableAllocator* allocator, int64_t wanted)
      : driver_(*driver), allocator_(*allocator), wanted_(wanted), bytes_(kRow * kRows, 0) {
    data_ = static_cast<char*>(allocator_.AllocateRows(kTag, kRow, kRows, wanted).value());
  }

  void* data() const { return data_; }
  int64_t wanted() const { return wanted_; }
  absl::Status Resize(int64_t wanted) {
    const absl::Status status = allocator_.Resize(data_, wanted);
    if (!status.ok()) return status;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = wanted; i < kRow; ++i) bytes_[row * kRow + i] = 0;
    }
    wanted_ = wanted;
    return status;
  }
  void Fill(char value) {
    for (int64_t row = 0; row < kRows; ++row) {
      driver_.Fill(data_ + row * kRow, wanted_, static_cast<char>(value + row));
      std::fill_n(bytes_.begin() + row * kRow, wanted_, static_cast<char>(value + row));
    }
  }
  void Forget() { std::fill(bytes_.begin(), bytes_.end(), 0); }
  bool Holds() {
    for (int64_t i = 0; i < kRow * kRows; ++i) {
      if (bytes_[i] != 0 && !driver_.Holds(data_ + i, 1, bytes_[i])) return false;
    }
    return true;
  }

 private:
  FakeVmmDriver& driver_;
  SleepableAllocator& allocator_;
  int64_t wanted_;
  std::string bytes_;
  char* data_ = nullptr;
};

TEST(Resize, ReleasesTheChunksThatHoldNothingThatIsWanted) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  Rows rows(&driver, allocator.get(), kRow);
  const int64_t all = driver.live_bytes();
  EXPECT_EQ(all, 32 * kUnit);  // 3 * 664 bytes, in whole units
  rows.Fill('a');
  ASSERT_TRUE(rows.Resize(2 * kUnit).ok());
  // 128 bytes from 0, 664 and 1328 on lie in 2, 3 and 3 chunks.
  EXPECT_EQ(driver.live_bytes(), 8 * kUnit);
  EXPECT_EQ(allocator->ResidentBytes().at(kTag), 8 * kUnit);
  EXPECT_TRUE(rows.Holds());
  ASSERT_TRUE(rows.Resize(kRow).ok());
  EXPECT_EQ(driver.live_bytes(), all);
  EXPECT_TRUE(rows.Holds());
  rows.Fill('b');
  EXPECT_TRUE(rows.Holds());
  ASSERT_TRUE(allocator->Free(rows.data()).ok());
  EXPECT_EQ(driver.live_bytes(), 0);
  EXPECT_EQ(driver.reserved_bytes(), 0);
  EXPECT_EQ(driver.violations(), kNoViolations);
}

TEST(Resize, BeginsSmallAndTouchesOnlyWhatChanges) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  Rows rows(&driver, allocator.get(), 1);
  EXPECT_EQ(driver.live_bytes(), 3 * kUnit);
  driver.ClearCalls();
  ASSERT_TRUE(rows.Resize(2).ok());
  EXPECT_EQ(driver.calls(), kNoViolations);
  ASSERT_TRUE(rows.Resize(kRow).ok());
  const auto opened = std::count(driver.calls().begin(), driver.calls().end(), "SetAccess");
  EXPECT_EQ(opened, 3);  // a range between each row's first chunk and the next row
  driver.ClearCalls();
  ASSERT_TRUE(rows.Resize(1).ok());
  EXPECT_EQ(std::count(driver.calls().begin(), driver.calls().end(), "Unmap"), 3);
  EXPECT_EQ(driver.violations(), kNoViolations);
}

TEST(Resize, OneRowCanShrink) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver, {.chunk_bytes = kUnit});
  void* data = allocator->Allocate("any", 10 * kUnit).value();
  driver.Fill(data, 10 * kUnit, 'x');
  ASSERT_TRUE(allocator->Resize(data, 3 * kUnit + 1).ok());
  EXPECT_EQ(driver.live_bytes(), 4 * kUnit);
  EXPECT_TRUE(driver.Holds(data, 4 * kUnit, 'x'));
}

TEST(Resize, BadArguments) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->AllocateRows(kTag, kRow, 0, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->AllocateRows(kTag, kRow, 2, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->AllocateRows(kTag, kRow, 2, kRow + 1).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(allocator->AllocateRows(kTag, int64_t{1} << 40, int64_t{1} << 40, 1).status()));
  Rows rows(&driver, allocator.get(), kRow);
  EXPECT_TRUE(absl::IsInvalidArgument(rows.Resize(0)));
  EXPECT_TRUE(absl::IsInvalidArgument(rows.Resize(kRow + 1)));
  EXPECT_TRUE(absl::IsNotFound(allocator->Resize(&driver, 1)));
  ASSERT_TRUE(allocator->PrepareSleep({{kTag, RestoreMode::kDiscard}}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(rows.Resize(1)));
  allocator->AbortSleep();
  EXPECT_TRUE(rows.Resize(1).ok());
}

class ResizeAndSleep : public testing::TestWithParam<BackupPolicy> {
 protected:
  void SetUp() override {
    if (GetParam() == BackupPolicy::kCompress && !CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
    allocator_ = SleepableAllocator::Create(&driver_, Options());
  }
  static SleepableAllocatorOptions Options() {
    return {.backup = GetParam(), .spill_dir = testing::TempDir()};
  }

  FakeVmmDriver driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
};

INSTANTIATE_TEST_SUITE_P(Policies, ResizeAndSleep,
                         testing::Values(BackupPolicy::kRetain, BackupPolicy::kRelease, BackupPolicy::kFile,
                                         BackupPolicy::kCompress));

TEST_P(ResizeAndSleep, WakesUpInItsSize) {
  Rows rows(&driver_, allocator_.get(), kRow);
  ASSERT_TRUE(rows.Resize(3 * kUnit).ok());
  rows.Fill('a');
  const int64_t small = driver_.live_bytes();
  ASSERT_TRUE(allocator_->PrepareSleep({{kTag, RestoreMode::kBackup}}).ok());
  const SleepReport slept = allocator_->CommitSleep();
  EXPECT_EQ(slept.tags.at(kTag).freed, small);
  EXPECT_EQ(slept.tags.at(kTag).backed_up, small);
  EXPECT_EQ(driver_.live_bytes(), 0);
  EXPECT_EQ(allocator_->Stats().at(kTag).sleeping, small);
  EXPECT_EQ(allocator_->CheckWake({})->needed.at(kTag), small);
  EXPECT_TRUE(absl::IsFailedPrecondition(rows.Resize(kRow)));  // the contents sleep
  driver_.SetCapacity(small);
  EXPECT_EQ(allocator_->WakeUp({})->at(kTag), small);
  EXPECT_TRUE(rows.Holds());

  // The retained copy is not of the new size.
  driver_.SetCapacity(int64_t{1} << 40);
  ASSERT_TRUE(rows.Resize(5 * kUnit).ok());
  rows.Fill('k');
  ASSERT_TRUE(allocator_->Sleep({{kTag, RestoreMode::kBackup}}).ok());
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(rows.Holds());
  EXPECT_EQ(driver_.violations(), kNoViolations);
}

TEST_P(ResizeAndSleep, WhileItSleepsWithoutContents) {
  Rows rows(&driver_, allocator_.get(), kRow);
  ASSERT_TRUE(allocator_->Sleep({{kTag, RestoreMode::kDiscard}}).ok());
  driver_.FailAt(1);  // growing and shrinking need no driver
  ASSERT_TRUE(rows.Resize(kUnit).ok());
  EXPECT_FALSE(driver_.failed());
  driver_.FailAt(0);
  EXPECT_EQ(allocator_->WakeUp({})->at(kTag), 5 * kUnit);
  EXPECT_EQ(driver_.live_bytes(), 5 * kUnit);
  EXPECT_EQ(driver_.violations(), kNoViolations);
}

// Growth happens whole or not at all, at any call that the driver fails.
TEST_P(ResizeAndSleep, GrowthThatFailsChangesNothing) {
  Rows rows(&driver_, allocator_.get(), 2 * kUnit);
  rows.Fill('a');
  const int64_t small = driver_.live_bytes();
  for (int nth = 1;; ++nth) {
    driver_.FailAt(nth);
    const absl::Status status = rows.Resize(kRow);
    driver_.FailAt(0);
    ASSERT_TRUE(rows.Holds());
    if (status.ok()) break;
    EXPECT_EQ(driver_.live_bytes(), small) << nth;
    EXPECT_EQ(allocator_->ResidentBytes().at(kTag), small);
    ASSERT_LT(nth, 1000);
  }
  ASSERT_TRUE(rows.Resize(2 * kUnit).ok());
  driver_.SetCapacity(driver_.live_bytes() + 2 * kUnit);
  const absl::Status short_of = rows.Resize(kRow);
  EXPECT_TRUE(absl::IsResourceExhausted(short_of)) << short_of;
  EXPECT_NE(short_of.message().find("missing"), std::string::npos) << short_of;
  EXPECT_EQ(driver_.live_bytes(), small);
  EXPECT_TRUE(rows.Holds());
  EXPECT_EQ(driver_.violations(), kNoViolations);
}

// Memory that the driver does not release is counted, and released later.
TEST_P(ResizeAndSleep, ShrinkingCannotFail) {
  for (int nth = 1;; ++nth) {
    Rows rows(&driver_, allocator_.get(), kRow);
    rows.Fill('a');
    driver_.FailAt(nth);
    ASSERT_TRUE(rows.Resize(kUnit).ok());
    const bool failed = driver_.failed();
    driver_.FailAt(0);
    EXPECT_EQ(allocator_->ResidentBytes().at(kTag), driver_.live_bytes());
    ASSERT_TRUE(rows.Holds());
    ASSERT_TRUE(rows.Resize(kUnit).ok());
    EXPECT_EQ(driver_.live_bytes(), 5 * kUnit);
    ASSERT_TRUE(allocator_->Free(rows.data()).ok());
    if (!failed) break;
    driver_.ClearFailed();
  }
  EXPECT_EQ(driver_.violations(), kNoViolations);
}

class RandomResizes : public testing::TestWithParam<std::tuple<BackupPolicy, int>> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomResizes,
                         testing::Combine(testing::Values(BackupPolicy::kRetain, BackupPolicy::kRelease,
                                                          BackupPolicy::kFile, BackupPolicy::kCompress),
                                          testing::Range(0, 25)));

// Resizes, sleeps and wake-ups in any order, each failing now and then: the contents that should be there
// are, and at the end no memory is lost.
TEST_P(RandomResizes, AgreeWithTheModel) {
  const auto [policy, seed] = GetParam();
  if (policy == BackupPolicy::kCompress && !CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver, {.backup = policy, .spill_dir = testing::TempDir()});
  Rows rows(&driver, allocator.get(), 1 + pick(kRow));
  std::optional<RestoreMode> asleep;
  char value = 1;
  for (int step = 0; step < 150; ++step) {
    if (pick(3) == 0) driver.FailAt(1 + pick(12));
    switch (pick(4)) {
      case 0: {
        const int64_t wanted = 1 + pick(kRow), before = rows.wanted();
        const absl::Status status = rows.Resize(wanted);
        if (asleep == RestoreMode::kBackup) {
          EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        } else if (wanted <= before || asleep.has_value()) {
          EXPECT_TRUE(status.ok()) << status;
        }
        break;
      }
      case 1:
        if (!asleep.has_value()) {
          driver.FailAt(0);
          rows.Fill(value);
          value = static_cast<char>(1 + (value + 4) % 100);
          allocator->DropBackups(kTag);
        }
        break;
      case 2: {
        const RestoreMode mode = pick(2) == 0 ? RestoreMode::kBackup : RestoreMode::kDiscard;
        if (!allocator->Sleep({{kTag, mode}}).ok()) break;
        if (!asleep.has_value()) asleep = mode;
        if (mode == RestoreMode::kDiscard) asleep = mode;
        if (asleep == RestoreMode::kDiscard) rows.Forget();
        break;
      }
      case 3:
        if (allocator->WakeUp({}).ok()) asleep.reset();
        break;
    }
    driver.FailAt(0);
    ASSERT_TRUE(asleep.has_value() || rows.Holds()) << "step " << step;
    ASSERT_EQ(driver.violations(), kNoViolations) << "step " << step;
  }
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  ASSERT_TRUE(rows.Resize(rows.wanted()).ok());
  EXPECT_TRUE(rows.Holds());
  EXPECT_LE(driver.live_bytes(), kRows * (rows.wanted() + 2 * kUnit));
  EXPECT_EQ(allocator->ResidentBytes().at(kTag), driver.live_bytes());
  ASSERT_TRUE(allocator->Free(rows.data()).ok());
  EXPECT_EQ(driver.live_bytes(), 0);
  EXPECT_EQ(driver.violations(), kNoViolations);
}

}  // namespace
}  // namespace somnus
