// The host driver on real memory: sleep really releases pages, and a wake-up really maps the pages.

#include "allocator/host_vmm_driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "allocator/host_memory.h"
#include "allocator/sleepable_allocator.h"
#include "base/numa.h"
#include "tests/fakes/numa_maps.h"

namespace somnus {
namespace {

int64_t ResidentSet() {
  std::ifstream statm("/proc/self/statm");
  int64_t size, resident;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

constexpr int64_t kBytes = 96 << 20;

TEST(HostVmmDriver, SleepGivesMemoryBackAndWakeRestoresIt) {
  auto driver = MakeHostVmmDriver({.num_threads = 2});
  auto allocator = SleepableAllocator::Create(driver.get(), {.backup = BackupPolicy::kRelease});
  const int64_t before = ResidentSet();
  auto* weights = static_cast<uint32_t*>(allocator->Allocate("weights", kBytes / 4).value());
  auto* kv = static_cast<uint8_t*>(allocator->Allocate("kv_cache", kBytes).value());
  EXPECT_EQ(kv[0], 0);
  EXPECT_EQ(kv[kBytes - 1], 0);
  const int64_t words = kBytes / 4 / sizeof(uint32_t);
  for (int64_t i = 0; i < words; ++i) weights[i] = static_cast<uint32_t>(i * 2654435761u);
  memset(kv, 0xab, kBytes);
  const int64_t awake = ResidentSet();
  EXPECT_GE(awake - before, kBytes + kBytes / 4);

  ASSERT_TRUE(
      allocator->Sleep({{"weights", RestoreMode::kDiscard}, {"kv_cache", RestoreMode::kDiscard}}).ok());
  EXPECT_GE(awake - ResidentSet(), (kBytes + kBytes / 4) * 99 / 100);
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_EQ(weights[words - 1], 0u);
  EXPECT_GE(ResidentSet() - before, kBytes + kBytes / 4);  // populated, not faulted in later

  for (int64_t i = 0; i < words; ++i) weights[i] = static_cast<uint32_t>(i * 2654435761u);
  memset(kv, 0xab, kBytes);
  ASSERT_TRUE(
      allocator->Sleep({{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}}).ok());
  EXPECT_GE(awake - ResidentSet(), kBytes * 98 / 100);  // the copy of the weights stays in memory
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  for (int64_t i = 0; i < words; ++i) ASSERT_EQ(weights[i], static_cast<uint32_t>(i * 2654435761u));
  EXPECT_EQ(kv[kBytes / 2], 0);

  ASSERT_TRUE(allocator->Free(weights).ok());
  ASSERT_TRUE(allocator->Free(kv).ok());
  EXPECT_GE(awake - ResidentSet(), (kBytes + kBytes / 4) * 98 / 100);
}

TEST(HostVmmDriver, LimitIsAnErrorWithNumbers) {
  auto driver = MakeHostVmmDriver({.memory_limit_bytes = 8 << 20});
  auto allocator = SleepableAllocator::Create(driver.get());
  void* first = allocator->Allocate("weights", 6 << 20).value();
  const auto second = allocator->Allocate("kv_cache", 4 << 20);
  EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_NE(
      second.status().message().find("kv_cache: 4194304 bytes needed, 2097152 available, 2097152 missing"),
      std::string::npos)
      << second.status();
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kDiscard}}).ok());
  EXPECT_TRUE(allocator->Allocate("kv_cache", 4 << 20).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(allocator->WakeUp({"weights"}).status()));
  EXPECT_TRUE(allocator->Free(first).ok());
}

TEST(HostVmmDriver, MoreThanTheHostHasIsRefusedNotKilled) {
  auto driver = MakeHostVmmDriver();
  auto allocator = SleepableAllocator::Create(driver.get());
  EXPECT_TRUE(absl::IsResourceExhausted(allocator->Allocate("kv_cache", int64_t{1} << 43).status()));
}

TEST(HostVmmDriver, ContentsStayWithTheHandle) {
  auto driver = MakeHostVmmDriver();
  const int64_t bytes = 2 * driver->Granularity();
  auto* data = static_cast<char*>(driver->Reserve(bytes).value());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % driver->Granularity(), 0u);
  const VmmDriver::Handle handle = driver->Create(bytes).value();
  ASSERT_TRUE(driver->Map(data, bytes, handle).ok());
  ASSERT_TRUE(driver->SetAccess(data, bytes).ok());
  strcpy(data, "still here");
  EXPECT_FALSE(driver->Map(data, bytes, handle).ok());
  EXPECT_FALSE(driver->Release(handle).ok());
  ASSERT_TRUE(driver->Unmap(data, bytes).ok());
  EXPECT_FALSE(driver->Unmap(data, bytes).ok());
  EXPECT_DEATH(data[0] = 1, "");
  ASSERT_TRUE(driver->Map(data, bytes, handle).ok());
  ASSERT_TRUE(driver->SetAccess(data, bytes).ok());
  EXPECT_STREQ(data, "still here");
  ASSERT_TRUE(driver->Unmap(data, bytes).ok());
  ASSERT_TRUE(driver->Release(handle).ok());
  EXPECT_FALSE(driver->Release(handle).ok());
  EXPECT_TRUE(driver->FreeAddress(data, bytes).ok());
}

// Ten pieces, including a piece that is still mapped, a piece never mapped and a piece already gone.
TEST(HostVmmDriver, ManyPiecesAreReleasedButForThoseThatCannotBe) {
  auto driver = MakeHostVmmDriver();
  const int64_t unit = driver->Granularity();
  auto* data = static_cast<char*>(driver->Reserve(10 * unit).value());
  std::vector<VmmDriver::Handle> handles, kept;
  ASSERT_TRUE(driver->CreateAll(std::vector<int64_t>(10, unit), &handles).ok());
  for (int i = 0; i < 10; ++i) {
    if (i != 7) ASSERT_TRUE(driver->Map(data + i * unit, unit, handles[i]).ok());
  }
  ASSERT_TRUE(driver->SetAccess(data, 7 * unit).ok());
  memset(data, 0x5a, 7 * unit);
  const int64_t before = ResidentSet();
  ASSERT_TRUE(driver->Unmap(data, 3 * unit).ok());
  ASSERT_TRUE(driver->Unmap(data + 4 * unit, 3 * unit).ok());
  ASSERT_TRUE(driver->Unmap(data + 8 * unit, 2 * unit).ok());
  ASSERT_TRUE(driver->Release(handles[9]).ok());

  std::vector<VmmDriver::Piece> pieces;
  for (const VmmDriver::Handle handle : handles) pieces.push_back({handle, unit});
  ByteMeter meter;
  const MeterScope scope(driver.get(), &meter);
  const absl::Status status = driver->ReleaseAll(pieces, &kept);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(kept, (std::vector<VmmDriver::Handle>{handles[3], handles[9]}));
  EXPECT_EQ(meter.bytes(), 8 * unit);
  EXPECT_GE(before - ResidentSet(), 6 * unit - (1 << 20));
  for (int64_t i = 0; i < unit; ++i) ASSERT_EQ(data[3 * unit + i], 0x5a);
  ASSERT_TRUE(driver->Unmap(data + 3 * unit, unit).ok());
  kept.clear();
  EXPECT_TRUE(driver->ReleaseAll({{handles[3], unit}}, &kept).ok());
  EXPECT_TRUE(kept.empty());
  EXPECT_TRUE(driver->FreeAddress(data, 10 * unit).ok());
}

TEST(HostVmmDriver, MemoryComesFromTheNodesThatWereNamedAlsoAfterAWakeUp) {
  if (const absl::Status status = CheckPlacePages({0}); !status.ok()) GTEST_SKIP() << status;
  auto driver = MakeHostVmmDriver({.num_threads = 2, .numa_nodes = {0}});
  auto allocator = SleepableAllocator::Create(driver.get(), {.backup = BackupPolicy::kRetain});
  auto* weights = static_cast<uint8_t*>(allocator->Allocate("weights", kBytes / 4).value());
  auto* kv = static_cast<uint8_t*>(allocator->Allocate("kv_cache", kBytes).value());
  void* const pinned = driver->AllocateHost(1 << 20).value();
  for (const bool after_wake : {false, true}) {
    EXPECT_EQ(PolicyAt(weights), "prefer:0") << after_wake;
    EXPECT_EQ(PolicyAt(kv), "prefer:0") << after_wake;
    EXPECT_EQ(PolicyAt(pinned), "prefer:0") << after_wake;
    if (after_wake) break;
    ASSERT_TRUE(
        allocator->Sleep({{"weights", RestoreMode::kBackup}, {"kv_cache", RestoreMode::kDiscard}}).ok());
    ASSERT_TRUE(allocator->WakeUp({}).ok());
  }
  driver->FreeHost(pinned, 1 << 20);
}

TEST(HostVmmDriver, ANodeThatTheKernelRefusesIsNoError) {
  auto driver = MakeHostVmmDriver({.num_threads = 2, .numa_nodes = {1023}});
  auto allocator = SleepableAllocator::Create(driver.get(), {.backup = BackupPolicy::kRelease});
  const auto kv = allocator->Allocate("kv_cache", kBytes);
  ASSERT_TRUE(kv.ok()) << kv.status();
  memset(*kv, 1, kBytes);
}

class FakeRoot {
 public:
  FakeRoot() : path_(testing::TempDir() + "/host_memory") { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) {
    const std::string path = path_ + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(AvailableHostMemory, TakesTheTightestCgroup) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
  EXPECT_EQ(AvailableHostMemory(root.path()), 8000 * 1024);
  root.Write("/proc/self/cgroup", "0::/slice/job\n");
  root.Write("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/slice/job/memory.current", "500\n");
  EXPECT_EQ(AvailableHostMemory(root.path()), 8000 * 1024);
  root.Write("/sys/fs/cgroup/slice/memory.max", "100000\n");
  root.Write("/sys/fs/cgroup/slice/memory.current", "60000\n");
  root.Write("/sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 20000\n");
  EXPECT_EQ(AvailableHostMemory(root.path()), 60000);
  root.Write("/sys/fs/cgroup/slice/memory.current", "130000\n");
  EXPECT_EQ(AvailableHostMemory(root.path()), 0);
  root.Write("/proc/self/cgroup", "4:cpu,memory:/m\n");
  root.Write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "7000\n");
  root.Write("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "3000\n");
  EXPECT_EQ(AvailableHostMemory(root.path()), 4000);
}

TEST(AvailableHostMemory, RealHost) { EXPECT_GT(AvailableHostMemory(), 1 << 20); }

}  // namespace
}  // namespace somnus
