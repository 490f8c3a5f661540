// Which calls of the CUDA driver are made, and how often, through a fake of it: needs CUDA's header, and no
// GPU.

#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/cuda_vmm_driver.h"
#include "allocator/sleepable_allocator.h"
#include "tests/allocator/fake_cuda_driver.h"

namespace somnus {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

std::unique_ptr<VmmDriver> Make(const FakeCudaDriver& fake, const CudaVmmDriverOptions& options = {}) {
  auto driver = MakeCudaVmmDriver(fake.api(), 0, options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

// The flag used to be tried, and refused, for every chunk of memory.
TEST(CudaVmmCalls, RefusedRdmaIsAskedForOnce) {
  FakeCudaDriver fake(/*reports_rdma=*/true, /*takes_rdma=*/false);
  const auto driver = Make(fake);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(driver->Create(2 * kMiB).ok());
  EXPECT_EQ(std::count(fake.asked_rdma().begin(), fake.asked_rdma().end(), true), 1);
  EXPECT_EQ(fake.asked_rdma().size(), 4u);
}

TEST(CudaVmmCalls, RdmaIsAskedForWhereItIsTaken) {
  FakeCudaDriver fake;
  const auto driver = Make(fake);
  EXPECT_EQ(fake.calls("cuMemRelease"), 1) << "the piece that was tried";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(driver->Create(2 * kMiB).ok());
  EXPECT_EQ(fake.asked_rdma(), std::vector<bool>(4, true));
}

TEST(CudaVmmCalls, NothingIsTriedWithoutRdma) {
  FakeCudaDriver fake(/*reports_rdma=*/false);
  const auto driver = Make(fake);
  EXPECT_TRUE(fake.asked_rdma().empty());
  EXPECT_TRUE(driver->Create(2 * kMiB).ok());
  EXPECT_EQ(fake.asked_rdma(), std::vector<bool>{false});
}

TEST(CudaVmmCalls, ChunksAreOfTheWantedSize) {
  FakeCudaDriver fake;
  EXPECT_EQ(Make(fake)->ChunkBytes(), kGiB);
  EXPECT_EQ(Make(fake, {.chunk_bytes = 5 * kMiB})->ChunkBytes(), 4 * kMiB);
  EXPECT_EQ(Make(fake, {.chunk_bytes = 1})->ChunkBytes(), FakeCudaDriver::kGranularity);
}

// The KV cache of a large GPU: one call for every GiB, or one for the whole where that is enough.
TEST(CudaVmmCalls, LargeRegionTakesFewCalls) {
  FakeCudaDriver fake(/*reports_rdma=*/false);
  const auto driver = Make(fake);
  const auto allocator = SleepableAllocator::Create(driver.get());
  ASSERT_TRUE(allocator->Allocate("kv_cache", 110 * kGiB + kMiB).ok());
  EXPECT_EQ(fake.created().size(), 111u);
  EXPECT_EQ(fake.created().back(), 2u * kMiB);
  EXPECT_EQ(fake.calls("cuMemMap"), 111);
  EXPECT_EQ(fake.calls("cuMemSetAccess"), 1);
  ASSERT_TRUE(allocator->Sleep({{"kv_cache", RestoreMode::kDiscard}}).ok());
  EXPECT_EQ(fake.calls("cuMemUnmap"), 1);
  EXPECT_EQ(fake.calls("cuMemRelease"), 111);
}

}  // namespace
}  // namespace somnus
