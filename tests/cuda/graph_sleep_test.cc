// Decode graphs outlive sleeps: their memory is the device's own, and what they name comes back at its
// address. So no graph is captured again at a wake-up, whatever the level, and only the graphs' memory stays
// on the device meanwhile.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <utility>

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

#ifdef SOMNUS_CUDA_EMULATOR
constexpr int64_t kGraphBytes = 1 << 20;

using Ranges = std::set<std::pair<void*, int64_t>>;

// What the ranks have mapped.
class Mapped {
 public:
  void Add(void* address, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.insert({address, bytes});
  }
  void Remove(void* address, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase({address, bytes});
  }
  Ranges Get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ranges_;
  }

 private:
  std::mutex mutex_;
  Ranges ranges_;
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

int64_t Bytes(const Ranges& ranges) {
  int64_t sum = 0;
  for (const auto& [address, bytes] : ranges) sum += bytes;
  return sum;
}

int64_t Captures() { return cuda_emulated::emulator::CallsForGraphs().instantiations; }
int64_t Launches() { return cuda_emulated::emulator::CallsForGraphs().launches; }
int64_t Available() { return GetEmulatedDeviceMemory().available; }
#endif

class GraphSleep : public testing::Test {
 protected:
  GraphSleep()
      : group_({.world_size = kRanks, .batch_invariant = true, .graph_sizes = {1, 2}, .new_worker = [this] {
                  return NewWorker();
                }}) {}

  void SetUp() override {
    SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
    ASSERT_EQ(group_.Form(), absl::OkStatus());
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    undisturbed_ = *tokens;
  }

  std::unique_ptr<Worker> NewWorker() {
    WorkerParts parts = GpuParts();
    parts.join_devices = [](const DeviceGroupOptions& options, Device* device) {
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

  // The tokens of before, each but the first one by a graph.
  void ExpectSameTokens() {
#ifdef SOMNUS_CUDA_EMULATOR
    const int64_t launches = Launches();
#endif
    const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, undisturbed_);
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(Launches(), launches + (kTokens - 1) * kRanks);
#endif
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
  const Ranges mapped = mapped_.Get();
  EXPECT_GT(Bytes(mapped), 0);
#endif
  for (const int level : {1, 2, 1, 2}) {
    ASSERT_EQ(group_.Sleep(level), absl::OkStatus());
    ExpectNothingResident();
#ifdef SOMNUS_CUDA_EMULATOR
    EXPECT_EQ(mapped_.Get(), Ranges()) << "the workspace is released, too";
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

// The graphs of an epoch name its group's buffers: they end with it, and their memory is released, also while
// the ranks sleep.
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
  const absl::StatusOr<std::vector<int32_t>> tokens = group_.Generate(kTokens);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, undisturbed_);
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(Captures(), captures + kGraphs) << "by the first step";
#endif
  ExpectSameTokens();
}

}  // namespace
}  // namespace somnus::cuda_test
