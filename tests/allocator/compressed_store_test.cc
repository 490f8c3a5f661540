#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "allocator/host_vmm_driver.h"
#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"

namespace somnus {
namespace {

// Several batches on several threads, and a last piece that is not whole.
constexpr int64_t kBytes = (150 << 20) + (2 << 20);

class CompressedStore : public testing::Test {
 protected:
  void SetUp() override {
    if (!CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
    driver_ = MakeHostVmmDriver({.num_threads = 2});
    allocator_ = SleepableAllocator::Create(driver_.get(), {.backup = BackupPolicy::kCompress});
    weights_ = static_cast<uint16_t*>(allocator_->Allocate("weights", kBytes).value());
    for (int64_t i = 0; i < kBytes / 2; ++i) weights_[i] = Weight(i);
  }

  // As bfloat16: a few exponents, and mantissas that look like noise.
  static uint16_t Weight(int64_t i) {
    const uint64_t noise = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u >> 24;
    const auto exponent = static_cast<uint16_t>(120 - (noise >> 8) % 4);
    return static_cast<uint16_t>((noise & 0x80) << 8 | exponent << 7 | (noise & 0x7f));
  }
  int64_t CountWrong() const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < kBytes / 2; ++i) wrong += weights_[i] != Weight(i);
    return wrong;
  }

  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<SleepableAllocator> allocator_;
  uint16_t* weights_ = nullptr;
};

TEST_F(CompressedStore, ContentsComeBackFromLessMemory) {
  ASSERT_TRUE(allocator_->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  TagStats stats = allocator_->Stats().at("weights");
  EXPECT_EQ(stats.resident, 0);
  EXPECT_LT(stats.host_backup, kBytes * 7 / 10);
  EXPECT_GT(stats.host_backup, kBytes / 2);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_EQ(CountWrong(), 0);
  EXPECT_EQ(allocator_->Stats().at("weights").host_backup, stats.host_backup)
      << "the next sleep copies nothing";

  ASSERT_TRUE(allocator_->PrepareSleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(allocator_->CommitSleep().tags.at("weights").copied, 0);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_EQ(CountWrong(), 0);

  weights_[kBytes / 2 - 1] ^= 1;
  allocator_->DropBackups("weights");
  EXPECT_EQ(allocator_->Stats().at("weights").host_backup, 0);
  ASSERT_TRUE(allocator_->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_EQ(CountWrong(), 1) << "what has changed is what was saved";
}

}  // namespace
}  // namespace somnus
