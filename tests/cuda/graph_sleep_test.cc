// Decode graphs outlive sleeps: the graphs' memory is the device's own, and the memory that graphs name comes
// back at the same address. So no graph is captured again at a wake-up of any level, and only the graphs'
// memory stays on the device meanwhile. A KV cache that shrinks and grows keeps its addresses, too. In a new
// epoch graphs hold the buffers of the old group: the Fence drops the graphs, and the first step captures new
// graphs, on survivors and newcomers together.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "base/memory_tags.h"
#include "tests/cuda/gpu_worker_parts.h"
#include "tests/worker/rejoin_group.h"
#include "worker/worker.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/emulator/host_calls.h"
#include "tests/cuda/emulator_util.h"
#endif

namespace somnus::cuda_test {
namespace {

constexpr int kTokens = 6;
constexpr int kRanks = 2;
constexpr int kGraphs = 2 * kRanks;  // of 1 and 2 sequences
// Caches of a few MiB in each layer, and of as few blocks as the sequence needs.
constexpr int kBlocks = 4096, kFewBlocks = 8;

#ifdef SOMNUS_CUDA_EMULATOR
constexpr int64_t kGraphBytes = 1 << 20;
constexpr int64_t kPage = 2 << 20;  // the driver's granularity

using Pages = std::set<char*>;

// The memory that the ranks have mapped.
class Mapped {
 public:
  void Add(void* address, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < bytes; i += kPage) pages_.insert(static_cast<char*>(address) + i);
  }
  void Remove(void* address, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < bytes; i += kPage) pages_.erase(static_cast<char*>(address) + i);
  }
  Pages Get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pages_;
  }

 private:
  std::mutex mutex_;
  Pages pages_;
};

class NotedMemory : public EmulatedVmmDriver {
 public:
  NotedMemory(int64_t chunk_bytes, Mapped* mapped) : EmulatedVmmDriver(chunk_bytes), mapped_(*mapped) {}
  absl::Status SetAccess(void* address, int64_t bytes) override {
    mapped_.Add(address, bytes);
    return EmulatedVmmDriver::SetAccess(address, bytes);
  }
  absl::Status Unmap(void* address, int64_t bytes) override {
    mapped_.Remove(address, bytes);
    return EmulatedVmmDriver::Unmap(address, bytes);
  }

 private:
  Mapped& mapped_;
};

int64_t Bytes(const Pages& pages) { return static_cast<int64_t>(pages.size()) * kPage; }

int64_t Captures() { return cuda_emulated::emulator::CallsForGraphs().instantiations; }
int64_t Launches() { return cuda_emulated::emulator::CallsForGraphs().launches; }
int64_t Available() { return GetEmulatedDeviceMemory().available; }
#endif

// The memory that the ranks hold, and how often the ranks captured.
struct Footprint {
  int64_t kv_bytes = 0;
#ifdef SOMNUS_CUDA_EMULATOR
  Pages mapped;
  int64_t captures = 0;
#endif
  bool operator==(const Footprint&) const = default;
};

class GraphSleep : public testing::Test {
 protected:
  GraphSleep()
      : group_({.world_size = kRanks,
                .batch_invariant = true,
                .graph_sizes = {1, 2},
                .num_blocks = kBlocks,
                .new_worker = [this] { return NewWorker(); }}) {}

  void SetUp() override {
    SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
    ASSERT_EQ(group_.Form(), absl::OkStatus());
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    undisturbed_ = *tokens;
  }

  std::unique_ptr<Worker> NewWorker() {
    WorkerParts parts = GpuParts();
    parts.join_devices = [](const GroupOptions& options, Device* device) {
      const MakePeers make_peers = [device](const PeerOptions& peers) {
        return SOMNUS_CUDA_NAMESPACE::MakePeerCollectives(SOMNUS_CUDA_NAMESPACE::AsCuda(*device), peers);
      };
      return JoinDeviceGroup(options, device, make_peers, absl::UnavailableError("the ranks share a GPU"));
    };
#ifdef SOMNUS_CUDA_EMULATOR
    parts.open_memory = [this](const WorkerOptions& options,
                               int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
      return std::make_unique<NotedMemory>(options.device_chunk_bytes, &mapped_);
    };
#endif
    return std::make_unique<Worker>(WorkerOptions{.device = DeviceKind::kCuda, .num_threads = 1}, parts);
  }

  // The tokens of before, by graphs that may be captured meanwhile.
  void ExpectTokens() {
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, undisturbed_);
  }
  // The tokens of before, each but the first token by a graph.
  void ExpectSameTokens() {
#ifdef SOMNUS_CUDA_EMULATOR
    const int64_t launches = Launches();
#endif
    ExpectTokens();
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(Launches(), launches + (kTokens - 1) * kRanks);
#endif
  }
  Footprint Now() {
    Footprint now;
    for (int rank = 0; rank < kRanks; ++rank)
      now.kv_bytes += group_.worker(rank).GetStatus().bytes_by_tag().at(kKvCacheTag);
#ifdef SOMNUS_CUDA_EMULATOR
    now.mapped = mapped_.Get();
    now.captures = Captures();
#endif
    return now;
  }
  void ExpectNothingResident() {
    for (int rank = 0; rank < kRanks; ++rank) {
      const v1::WorkerStatusResponse status = group_.worker(rank).GetStatus();
      for (const auto& [tag, bytes] : status.bytes_by_tag()) EXPECT_EQ(bytes, 0) << tag;
    }
  }

#ifdef SOMNUS_CUDA_EMULATOR
  Mapped mapped_;
  cuda_emulated::WithOptions graphs_cost_{
      [](cuda_emulated::emulator::Options& options) { options.graph_bytes = kGraphBytes; }};
#endif
  RejoinGroup group_;
  std::vector<int32_t> undisturbed_;
};

TEST_F(GraphSleep, NothingIsCapturedAgainAndAddressesStay) {
#ifdef SOMNUS_CUDA_EMULATOR
  const int64_t captures = Captures(), available = Available();
  const Pages mapped = mapped_.Get();
  EXPECT_GT(Bytes(mapped), 0);
#endif
  for (const int level : {1, 2, 1, 2}) {
    ASSERT_EQ(group_.Sleep(level), absl::OkStatus());
    ExpectNothingResident();
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(mapped_.Get(), Pages()) << "the workspace is released, too";
    EXPECT_EQ(Available(), available + Bytes(mapped)) << "what stays is the graphs'";
#endif
    ASSERT_EQ(group_.WakeUp(), absl::OkStatus());
    ExpectSameTokens();
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(Captures(), captures) << "level " << level;
    EXPECT_EQ(mapped_.Get(), mapped) << "level " << level;
    EXPECT_EQ(Available(), available);
#endif
  }
}

// Between sleeps, and while the ranks sleep.
TEST_F(GraphSleep, AnotherSizeOfTheKvCacheCapturesNothing) {
  const Footprint full = Now();
  for (const int level : {1, 2}) {
    SCOPED_TRACE(level);
    ASSERT_EQ(group_.ResizeKvCache(kFewBlocks), absl::OkStatus());
    const Footprint few = Now();
    EXPECT_LT(few.kv_bytes, full.kv_bytes);
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(Bytes(few.mapped), Bytes(full.mapped) - (full.kv_bytes - few.kv_bytes));
#endif
    ExpectSameTokens();
    ASSERT_EQ(group_.Sleep(level), absl::OkStatus());
    ASSERT_EQ(group_.WakeUp(), absl::OkStatus());
    EXPECT_TRUE(Now() == few);
    ExpectSameTokens();
    ASSERT_EQ(group_.ResizeKvCache(kBlocks), absl::OkStatus());
    EXPECT_TRUE(Now() == full);
    ExpectSameTokens();
    for (const int blocks : {kFewBlocks, kBlocks}) {
      ASSERT_EQ(group_.Sleep(level), absl::OkStatus());
      ASSERT_EQ(group_.ResizeKvCache(blocks), absl::OkStatus());
      ExpectNothingResident();
      ASSERT_EQ(group_.WakeUp(), absl::OkStatus());
      EXPECT_TRUE(Now() == (blocks == kBlocks ? full : few)) << blocks;
      ExpectSameTokens();
    }
  }
}

// The graphs of an epoch name the group's buffers: graphs and their memory end with the group, also while the
// ranks sleep.
TEST_F(GraphSleep, AnotherEpochReleasesGraphsAndCapturesThemAgain) {
  ASSERT_EQ(group_.Sleep(1), absl::OkStatus());
#ifdef SOMNUS_CUDA_EMULATOR
  const int64_t captures = Captures(), asleep = Available();
#endif
  ASSERT_EQ(group_.Recover(1), absl::OkStatus());
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(Available(), asleep + kGraphs * kGraphBytes);
  EXPECT_EQ(Captures(), captures);
#endif
  ASSERT_EQ(group_.WakeUp(), absl::OkStatus());
  ExpectTokens();
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(Captures(), captures + kGraphs) << "by the first step";
#endif
  ExpectSameTokens();
}

// In pinned memory.
TEST_F(GraphSleep, ASequenceWhoseBlocksAreKeptGoesOnAfterEverySleep) {
  const absl::StatusOr<std::vector<int32_t>> tokens = group_.GenerateOverSleeps(kTokens);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, undisturbed_);
  ExpectSameTokens();
}

TEST_F(GraphSleep, SurvivorsOfAFailedStepCaptureAgain) {
#ifdef SOMNUS_CUDA_EMULATOR
  const int64_t available = Available();
#endif
  // Rank 1 does not come to a step.
  std::thread abort([&] {
    while (!group_.worker(0).step_in_progress()) absl::SleepFor(absl::Milliseconds(1));
    group_.worker(0).Abort("rank 1 is lost");
  });
  EXPECT_FALSE(group_.Generate(kTokens, /*absent=*/1).ok());
  abort.join();
  ASSERT_EQ(group_.Recover(0), absl::OkStatus());
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(Available(), available + kGraphs * kGraphBytes) << "they are dropped";
#endif
  ExpectTokens();
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(Available(), available) << "they are there again";
#endif
}

TEST_F(GraphSleep, ANewcomerCapturesWithTheSurvivor) {
  for (const int sleep_level : {0, 1}) {
    if (sleep_level > 0) {
      ASSERT_EQ(group_.Sleep(sleep_level), absl::OkStatus());
    }
    group_.Lose(1);
    ASSERT_EQ(group_.Recover(sleep_level), absl::OkStatus());
    if (sleep_level > 0) {
      ASSERT_EQ(group_.WakeUp(), absl::OkStatus());
    }
    ExpectTokens();
  }
}

}  // namespace
}  // namespace somnus::cuda_test
