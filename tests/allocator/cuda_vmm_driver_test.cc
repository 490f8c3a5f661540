// With a GPU: sleep and wake on the GPU. Without a GPU: the error names the missing part.

#include "allocator/cuda_vmm_driver.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/sleepable_allocator.h"

namespace somnus {
namespace {

TEST(CudaVmmDriver, LackIsSaid) {
  const auto driver = MakeCudaVmmDriver(1000);
  ASSERT_FALSE(driver.ok());
  EXPECT_TRUE(absl::IsUnavailable(driver.status()) || absl::IsUnimplemented(driver.status()))
      << driver.status();
  EXPECT_NE(driver.status().message().find("CUDA"), std::string::npos) << driver.status();
}

TEST(CudaVmmDriver, SleepsAndWakesOnTheDevice) {
  auto driver = MakeCudaVmmDriver(0);
  if (!driver.ok()) GTEST_SKIP() << driver.status();
  auto allocator = SleepableAllocator::Create(driver->get());
  const int64_t bytes = 200 << 20;
  void* data = allocator->Allocate("weights", bytes).value();
  std::vector<char> pattern(bytes), back(bytes);
  for (int64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(i * 31 >> 5);
  ASSERT_TRUE((*driver)->CopyFromHost(data, pattern.data(), bytes).ok());
  ASSERT_TRUE((*driver)->Synchronize().ok());
  const int64_t awake = (*driver)->AvailableBytes().value();
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_GE((*driver)->AvailableBytes().value() - awake, bytes * 99 / 100);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  ASSERT_TRUE((*driver)->CopyToHost(back.data(), data, bytes).ok());
  ASSERT_TRUE((*driver)->Synchronize().ok());
  EXPECT_EQ(pattern, back);
  EXPECT_TRUE(allocator->Free(data).ok());
}

}  // namespace
}  // namespace somnus
