// Sleep and wake over a driver that fails on command, and random calls checked against a model.

#include "allocator/sleepable_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "allocator/piece_codec.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kUnit = FakeVmmDriver::kUnit;
constexpr BackupPolicy kPolicies[] = {BackupPolicy::kRetain, BackupPolicy::kRelease, BackupPolicy::kFile,
                                      BackupPolicy::kCompress};
using Modes = std::map<std::string, RestoreMode>;

TEST(SleepableAllocator, SleepsAndWakesByTagAtTheSameAddress) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  void* weights = allocator->Allocate("weights", 5 * kUnit).value();
  void* kv = allocator->Allocate("kv_cache", 3 * kUnit - 1).value();
  driver.Fill(weights, 5 * kUnit, 'w');
  driver.Fill(kv, 3 * kUnit, 'k');
  EXPECT_EQ(driver.live_bytes(), 8 * kUnit);

  auto freed = allocator->Sleep({{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}});
  ASSERT_TRUE(freed.ok());
  EXPECT_EQ(*freed, (std::map<std::string, int64_t>{{"kv_cache", 3 * kUnit}, {"weights", 5 * kUnit}}));
  EXPECT_EQ(driver.live_bytes(), 0);
  EXPECT_EQ(allocator->ResidentBytes().at("weights"), 0);

  auto mapped = allocator->WakeUp({"weights"});
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(*mapped, (std::map<std::string, int64_t>{{"weights", 5 * kUnit}}));
  EXPECT_TRUE(driver.Holds(weights, 5 * kUnit, 'w'));
  EXPECT_EQ(allocator->ResidentBytes().at("kv_cache"), 0);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  driver.Fill(kv, 3 * kUnit, 'k');
  EXPECT_EQ(driver.violations(), std::vector<std::string>{});
}

TEST(SleepableAllocator, ResidentBytesReturnsWhileAnotherCallWorks) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  ASSERT_TRUE(allocator->Allocate("weights", 4 * kUnit).ok());
  ASSERT_TRUE(allocator->Allocate("kv_cache", 2 * kUnit).ok());
  // Called on the working thread, within a call: waiting for the end of that call would be a deadlock.
  std::vector<int64_t> sums;
  driver.OnCall([&] {
    int64_t sum = 0;
    for (const auto& [tag, bytes] : allocator->ResidentBytes()) sum += bytes;
    if (sums.empty() || sums.back() != sum) sums.push_back(sum);
  });
  ASSERT_TRUE(
      allocator->Sleep({{"weights", RestoreMode::kDiscard}, {"kv_cache", RestoreMode::kDiscard}}).ok());
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_EQ(sums, (std::vector<int64_t>{6 * kUnit, 2 * kUnit, 0, 4 * kUnit, 6 * kUnit}))
      << "region by region, first to none and then to all";
  driver.OnCall(nullptr);
}

TEST(SleepableAllocator, OneSetAccessForManyChunks) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  ASSERT_TRUE(allocator->Allocate("weights", 6 * kUnit).ok());
  const std::vector<std::string> wanted = {"Reserve", "Create", "Create", "Create",
                                           "Map",     "Map",    "Map",    "SetAccess"};
  EXPECT_EQ(driver.calls(), wanted);
}

TEST(SleepableAllocator, OneUnmapForManyChunks) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  ASSERT_TRUE(allocator->Allocate("kv_cache", 6 * kUnit).ok());
  driver.ClearCalls();
  ASSERT_TRUE(allocator->Sleep({{"kv_cache", RestoreMode::kDiscard}}).ok());
  const std::vector<std::string> wanted = {"Synchronize", "Unmap", "Release", "Release", "Release"};
  EXPECT_EQ(driver.calls(), wanted);
}

// Pinning memory is slow: one piece holds the backups of many regions, and is used again.
TEST(SleepableAllocator, OneArenaForManyRegions) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  std::vector<void*> regions;
  for (int i = 0; i < 10; ++i) {
    regions.push_back(allocator->Allocate("weights", (1 + i % 3) * kUnit).value());
    driver.Fill(regions.back(), (1 + i % 3) * kUnit, static_cast<char>('a' + i));
  }
  const auto pieces = [&] {
    return std::count(driver.calls().begin(), driver.calls().end(), "AllocateHost");
  };
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(pieces(), 1);
  EXPECT_EQ(driver.host_bytes(), 19 * kUnit);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  // A part of a new region is in the space of a region that is gone.
  ASSERT_TRUE(allocator->Free(regions[4]).ok());
  ASSERT_TRUE(allocator->Free(regions[7]).ok());
  regions[4] = allocator->Allocate("weights", 4 * kUnit).value();
  driver.Fill(regions[4], 4 * kUnit, 'e');
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(pieces(), 1);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_TRUE(driver.Holds(regions[4], 4 * kUnit, 'e'));
  EXPECT_TRUE(driver.Holds(regions[9], kUnit, 'j'));
  allocator->DropBackups("weights");
  EXPECT_EQ(driver.host_bytes(), 0);
}

TEST(SleepableAllocator, ChunksOfTheWantedSize) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver, {.chunk_bytes = 3 * kUnit + 1});
  ASSERT_TRUE(allocator->Allocate("weights", 7 * kUnit).ok());
  EXPECT_EQ(std::count(driver.calls().begin(), driver.calls().end(), "Create"), 3);
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_EQ(driver.violations(), std::vector<std::string>{});
}

// A copy takes long and goes on by itself once queued: meanwhile the region without a backup is mapped,
// though the region has the lower address.
TEST(SleepableAllocator, TheRestIsMappedWhileTheBackupIsCopied) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  void* const kv = allocator->Allocate("kv_cache", 4 * kUnit).value();
  void* const weights = allocator->Allocate("weights", kUnit).value();
  ASSERT_LT(kv, weights);
  driver.Fill(weights, kUnit, 'w');
  ASSERT_TRUE(
      allocator->Sleep({{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}}).ok());
  driver.ClearCalls();
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  const std::vector<std::string> wanted = {"Create", "Map", "SetAccess", "CopyFromHost", "Create",
                                           "Create", "Map", "Map",       "SetAccess",    "Synchronize"};
  EXPECT_EQ(driver.calls(), wanted);
  EXPECT_TRUE(driver.Holds(weights, kUnit, 'w'));
}

TEST(SleepableAllocator, RepeatedCallsDoNothing) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  void* data = allocator->Allocate("weights", kUnit).value();
  driver.Fill(data, kUnit, 'w');
  EXPECT_TRUE(allocator->WakeUp({})->empty());
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}})->empty());
  EXPECT_TRUE(allocator->Sleep({{"nothing", RestoreMode::kDiscard}})->empty());
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_TRUE(driver.Holds(data, kUnit, 'w'));
}

TEST(SleepableAllocator, RetainedBackupIsNotCopiedAgain) {
  for (const bool retain : {true, false}) {
    FakeVmmDriver driver;
    auto allocator = SleepableAllocator::Create(
        &driver, {.backup = retain ? BackupPolicy::kRetain : BackupPolicy::kRelease});
    void* data = allocator->Allocate("weights", kUnit).value();
    driver.Fill(data, kUnit, 'w');
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    EXPECT_EQ(driver.host_bytes(), retain ? kUnit : 0);
    driver.ClearCalls();
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
    const bool copied = std::count(driver.calls().begin(), driver.calls().end(), "CopyToHost") > 0;
    EXPECT_EQ(copied, !retain);
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    EXPECT_TRUE(driver.Holds(data, kUnit, 'w'));
    // Changed bytes are saved anew after DropBackups.
    driver.Fill(data, kUnit, 'x');
    allocator->DropBackups("weights");
    EXPECT_EQ(driver.host_bytes(), 0);
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    EXPECT_TRUE(driver.Holds(data, kUnit, 'x'));
  }
}

TEST(SleepableAllocator, DeeperSleepGivesTheBackupUp) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  ASSERT_TRUE(allocator->Allocate("weights", kUnit).ok());
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(driver.host_bytes(), kUnit);
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kDiscard}}).ok());
  EXPECT_EQ(driver.host_bytes(), 0);
}

TEST(SleepableAllocator, ShortageIsSaidInBytesAndLeavesAllAsleep) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  void* data = allocator->Allocate("weights", 4 * kUnit).value();
  ASSERT_TRUE(allocator->Allocate("kv_cache", 4 * kUnit).ok());
  driver.Fill(data, 4 * kUnit, 'w');
  ASSERT_TRUE(
      allocator->Sleep({{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}}).ok());
  driver.SetCapacity(7 * kUnit);
  const auto woken = allocator->WakeUp({});
  EXPECT_TRUE(absl::IsResourceExhausted(woken.status()));
  EXPECT_NE(woken.status().message().find("256 bytes needed, 192 available, 64 missing"), std::string::npos)
      << woken.status();
  EXPECT_EQ(driver.live_bytes(), 0);
  driver.SetCapacity(8 * kUnit);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_TRUE(driver.Holds(data, 4 * kUnit, 'w'));
  EXPECT_TRUE(absl::IsResourceExhausted(allocator->Allocate("more", kUnit).status()));
}

TEST(SleepableAllocator, BadArguments) {
  FakeVmmDriver driver;
  auto allocator = SleepableAllocator::Create(&driver);
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->Allocate("x", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->Allocate("x", -1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->Allocate("x", INT64_MAX).status()));
  int elsewhere;
  EXPECT_TRUE(absl::IsNotFound(allocator->Free(&elsewhere)));
  EXPECT_EQ(driver.reserved_bytes(), 0);
}

// Makes the n-th driver call of the whole test fail, for every n: after the error nothing is lost or leaked,
// and the same call works when tried again.
class FailEveryCall : public testing::TestWithParam<std::tuple<BackupPolicy, int>> {};

template <typename Call>
void RetryOnce(const Call& call, bool* failed) {
  if (call()) return;
  EXPECT_FALSE(*failed) << "only one call was to fail";
  *failed = true;
  EXPECT_TRUE(call()) << "the second try fails too";
}

TEST_P(FailEveryCall, RollsBackAndWorksWhenTriedAgain) {
  const auto [policy, nth] = GetParam();
  if (policy == BackupPolicy::kCompress && !CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
  FakeVmmDriver driver;
  bool failed = false;
  {
    auto allocator = SleepableAllocator::Create(&driver, {.backup = policy, .spill_dir = testing::TempDir()});
    driver.FailAt(nth);
    void *weights = nullptr, *kv = nullptr;
    const auto allocate = [&](void** data, const char* tag, int64_t bytes) {
      return [&, data, tag, bytes] {
        auto made = allocator->Allocate(tag, bytes);
        if (made.ok()) *data = *made;
        return made.ok();
      };
    };
    RetryOnce(allocate(&weights, "weights", 5 * kUnit), &failed);
    RetryOnce(allocate(&kv, "kv_cache", 3 * kUnit), &failed);
    EXPECT_EQ(driver.live_bytes(), 8 * kUnit);
    EXPECT_EQ(driver.reserved_bytes(), 8 * kUnit);
    for (const char value : {'a', 'b'}) {
      driver.Fill(weights, 5 * kUnit, value);
      driver.Fill(kv, 3 * kUnit, 'k');
      allocator->DropBackups("weights");
      const Modes modes = {{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}};
      RetryOnce(
          [&] {
            const bool ok = allocator->Sleep(modes).ok();
            // All or nothing: awake and intact after an error.
            EXPECT_TRUE(ok || (driver.Holds(weights, 5 * kUnit, value) && driver.Holds(kv, 3 * kUnit, 'k')));
            return ok;
          },
          &failed);
      RetryOnce(
          [&] {
            const bool ok = allocator->WakeUp({}).ok();
            EXPECT_TRUE(ok || driver.live_bytes() == 0);
            return ok;
          },
          &failed);
      EXPECT_TRUE(driver.Holds(weights, 5 * kUnit, value));
      EXPECT_EQ(driver.live_bytes(), 8 * kUnit);
    }
    RetryOnce([&] { return allocator->Free(kv).ok(); }, &failed);
    RetryOnce([&] { return allocator->Free(weights).ok(); }, &failed);
    driver.FailAt(0);
  }
  EXPECT_EQ(driver.live_bytes(), 0);
  EXPECT_EQ(driver.reserved_bytes(), 0);
  EXPECT_EQ(driver.host_bytes(), 0);
  EXPECT_EQ(driver.violations(), std::vector<std::string>{});
  // Beyond the last call nothing fails; up to the last call every n must have been reached.
  EXPECT_EQ(driver.failed(), nth <= static_cast<int>(driver.calls().size())) << driver.calls().size();
}
INSTANTIATE_TEST_SUITE_P(Allocator, FailEveryCall,
                         testing::Combine(testing::ValuesIn(kPolicies), testing::Range(1, 110)));

// The destructor alone also releases everything, in any state of the regions.
TEST(SleepableAllocator, DestructorGivesAllBack) {
  FakeVmmDriver driver;
  {
    auto allocator = SleepableAllocator::Create(&driver);
    ASSERT_TRUE(allocator->Allocate("a", 3 * kUnit).ok());
    ASSERT_TRUE(allocator->Allocate("b", 3 * kUnit).ok());
    ASSERT_TRUE(allocator->Sleep({{"a", RestoreMode::kBackup}}).ok());
  }
  EXPECT_EQ(driver.live_bytes() + driver.reserved_bytes() + driver.host_bytes(), 0);
}

struct ModelRegion {
  std::string tag;
  int64_t bytes;
  bool resident = true, known = true;  // known: contents must be `value`
  bool backed = false;                 // a backup with the contents exists
  char value = 0;
};

class RandomWalk : public testing::TestWithParam<std::tuple<BackupPolicy, int>> {
 protected:
  RandomWalk()
      : random_(std::get<1>(GetParam())),
        allocator_(SleepableAllocator::Create(
            &driver_, {.backup = std::get<0>(GetParam()), .spill_dir = testing::TempDir()})) {}

  int Pick(int n) { return static_cast<int>(random_() % n); }
  std::string Tag() { return std::string(1, static_cast<char>('a' + Pick(3))); }

  void Allocate() {
    const std::string tag = Tag();
    const int64_t bytes = (1 + Pick(7)) * kUnit;
    auto made = allocator_->Allocate(tag, bytes);
    if (!made.ok()) return;
    const char value = static_cast<char>(Pick(100));
    driver_.Fill(*made, bytes, value);
    model_[*made] = {.tag = tag, .bytes = bytes, .value = value};
  }
  void Free() {
    if (model_.empty()) return;
    auto it = std::next(model_.begin(), Pick(static_cast<int>(model_.size())));
    if (allocator_->Free(it->first).ok()) model_.erase(it);
  }
  void Sleep() {
    Modes modes;
    for (int i = Pick(3); i >= 0; --i) modes[Tag()] = Pick(2) ? RestoreMode::kBackup : RestoreMode::kDiscard;
    if (!allocator_->Sleep(modes).ok()) return;
    for (auto& [data, region] : model_) {
      const auto mode = modes.find(region.tag);
      if (mode == modes.end()) continue;
      if (mode->second == RestoreMode::kDiscard) {
        region.backed = region.known = false;
      } else if (region.resident) {
        region.backed = true;
      }
      region.resident = false;
    }
  }
  void WakeUp() {
    const std::vector<std::string> tags =
        Pick(2) ? std::vector<std::string>{} : std::vector<std::string>{Tag()};
    if (!allocator_->WakeUp(tags).ok()) return;
    for (auto& [data, region] : model_) {
      if (region.resident || (!tags.empty() && tags[0] != region.tag)) continue;
      region.resident = true;
      if (region.backed) continue;
      region.value = static_cast<char>(Pick(100));
      region.known = true;
      driver_.Fill(data, region.bytes, region.value);
    }
  }
  void Check() {
    std::map<std::string, int64_t> resident;
    for (const auto& [data, region] : model_) {
      resident[region.tag] += region.resident ? region.bytes : 0;
      if (!region.resident || !region.known) continue;
      ASSERT_TRUE(driver_.Holds(data, region.bytes, region.value));
    }
    ASSERT_EQ(driver_.violations(), std::vector<std::string>{});
    ASSERT_EQ(allocator_->ResidentBytes(), resident);
  }

  std::mt19937 random_;
  FakeVmmDriver driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
  std::map<void*, ModelRegion> model_;
};

TEST_P(RandomWalk, AgreesWithTheModel) {
  if (std::get<0>(GetParam()) == BackupPolicy::kCompress && !CheckCompression().ok())
    GTEST_SKIP() << CheckCompression();
  for (int i = 0; i < 400; ++i) {
    const int choice = Pick(5);
    choice == 0 ? Allocate() : choice == 1 ? Free() : choice < 4 ? Sleep() : WakeUp();
    Check();
    if (HasFatalFailure()) return;
  }
  allocator_.reset();
  EXPECT_EQ(driver_.live_bytes() + driver_.reserved_bytes() + driver_.host_bytes(), 0);
}
INSTANTIATE_TEST_SUITE_P(Allocator, RandomWalk,
                         testing::Combine(testing::ValuesIn(kPolicies), testing::Range(0, 10)));

}  // namespace
}  // namespace somnus
