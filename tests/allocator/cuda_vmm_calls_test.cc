// The calls of the CUDA driver and their numbers, through a fake driver: needs CUDA's header, and no GPU.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/cuda_vmm_driver.h"
#include "allocator/host_account.h"
#include "allocator/sleepable_allocator.h"
#include "base/numa.h"
#include "tests/allocator/fake_cuda_driver.h"
#include "tests/fakes/numa_maps.h"

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

TEST(CudaVmmCalls, TheStreamCountsCopiesAsTheyEnd) {
  FakeCudaDriver fake;
  const auto driver = Make(fake);
  auto allocator = SleepableAllocator::Create(driver.get(), {.chunk_bytes = 2 * kMiB});
  ASSERT_TRUE(allocator->Allocate("weights", 8 * kMiB).ok());
  const std::map<std::string, RestoreMode> level1 = {{"weights", RestoreMode::kBackup}};
  ByteMeter meter;
  {
    const MeterScope counted(driver.get(), &meter);
    ASSERT_TRUE(allocator->Sleep(level1).ok());
    EXPECT_EQ(meter.bytes(), 16 * kMiB);
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    EXPECT_EQ(meter.bytes(), 32 * kMiB);
  }
  EXPECT_EQ(fake.calls("cuLaunchHostFunc"), 2);
  ASSERT_TRUE(allocator->Sleep(level1).ok());
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_EQ(fake.calls("cuLaunchHostFunc"), 2) << "nobody counts";
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

// The KV cache of a large GPU: a call for every GiB, or a single call where a single call is enough.
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

// Backups of ranks on GPUs take the host's memory like backups of ranks on CPUs, and so go through the host's
// account.
class PinnedMemoryTest : public testing::Test {
 protected:
  ~PinnedMemoryTest() override { unlink(path_.c_str()); }

  std::shared_ptr<HostMemoryAccount> Open() {
    return HostMemoryAccount::Open(
        {.path = path_, .available = [this] { return free_; }, .patience = absl::ZeroDuration()});
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/pinned-account-", getpid());
  int64_t free_ = 100;
  FakeCudaDriver fake_;
};

TEST_F(PinnedMemoryTest, IsReservedUntilItIsResident) {
  const auto another = Open();
  int64_t seen_by_another = -1;
  fake_.on_host_register = [&](void*, size_t bytes) {
    seen_by_another = another->Available();
    free_ -= static_cast<int64_t>(bytes);
    return CUDA_SUCCESS;
  };
  const auto driver = Make(fake_, {.account = Open()});
  const absl::StatusOr<void*> data = driver->AllocateHost(60);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(seen_by_another, 40);
  EXPECT_EQ(another->Available(), 40) << "resident, and not counted twice";
  driver->FreeHost(*data, 60);
}

TEST_F(PinnedMemoryTest, IsRefusedWhereTheHostHasTooLittle) {
  int calls = 0;
  fake_.on_host_register = [&](void*, size_t) {
    ++calls;
    return CUDA_SUCCESS;
  };
  const auto driver = Make(fake_, {.account = Open()});
  const absl::Status refused = driver->AllocateHost(101).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "101 bytes of host memory asked for, 100 available, 1 missing");
  EXPECT_EQ(calls, 0);
}

TEST_F(PinnedMemoryTest, ReleasesItsReservationAfterAnError) {
  fake_.on_host_register = [](void*, size_t) { return CUDA_ERROR_OUT_OF_MEMORY; };
  const auto driver = Make(fake_, {.account = Open()});
  EXPECT_TRUE(absl::IsResourceExhausted(driver->AllocateHost(60).status()));
  EXPECT_EQ(Open()->Available(), 100);
}

TEST_F(PinnedMemoryTest, IsResidentAndEmptyWhenTheDriverGetsIt) {
  constexpr int64_t kBytes = 24 * kMiB + 1;  // for several threads, and no whole number of pages
  int64_t resident = 0;
  fake_.on_host_register = [&](void* data, size_t bytes) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (2 * kMiB), 0u);
    std::vector<unsigned char> pages(bytes / sysconf(_SC_PAGESIZE) + 1);
    EXPECT_EQ(mincore(data, bytes, pages.data()), 0);
    resident = std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
    EXPECT_EQ(resident, static_cast<int64_t>(pages.size()));
    return CUDA_SUCCESS;
  };
  free_ = kBytes;
  const auto driver = Make(fake_, {.account = Open()});
  const absl::StatusOr<void*> data = driver->AllocateHost(kBytes);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_GT(resident, 0);
  EXPECT_EQ(static_cast<const char*>(*data)[kBytes - 1], 0);
  driver->FreeHost(*data, kBytes);
  EXPECT_EQ(fake_.calls("cuMemHostUnregister"), 1);
}

TEST_F(PinnedMemoryTest, IsMappedForKernelsOfEveryContext) {
  const auto driver = Make(fake_, {.account = Open()});
  const absl::StatusOr<void*> data = driver->AllocateHost(60);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(fake_.host_register_flags(),
            unsigned{CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP});
  driver->FreeHost(*data, 60);
}

TEST_F(PinnedMemoryTest, IsTakenFromTheNodesThatWereNamed) {
  if (const absl::Status status = CheckPlacePages({0}); !status.ok()) GTEST_SKIP() << status;
  std::string policy;
  fake_.on_host_register = [&](void* data, size_t) {
    policy = PolicyAt(data);
    return CUDA_SUCCESS;
  };
  const auto driver = Make(fake_, {.account = Open(), .numa_nodes = {0}});
  const absl::StatusOr<void*> data = driver->AllocateHost(60);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(policy, "prefer:0");
  driver->FreeHost(*data, 60);
}

TEST(CudaPciBusId, IsWrittenAsTheKernelDoes) {
  const FakeCudaDriver fake;  // all attributes are 1
  EXPECT_EQ(*CudaPciBusId(fake.api(), 0), "0001:01:01.0");
}

}  // namespace
}  // namespace somnus
