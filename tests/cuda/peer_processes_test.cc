// Ranks as they are served: processes that reach each other's memory by CUDA IPC. On a machine with a GPU
// they share it. Every CUDA call is made in a child, since a fork does not survive CUDA.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "tests/comm/rank_processes.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/device_group.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/emulator/options.h"
#endif

namespace somnus::cuda_test {
namespace {

namespace cuda = ::somnus::SOMNUS_CUDA_NAMESPACE;
using namespace cuda;  // the emulator's runtime, where it is not the toolkit's, which is global

constexpr int kNoGpu = 77;
constexpr absl::Duration kSoon = absl::Seconds(5);
#ifdef SOMNUS_CUDA_EMULATOR
constexpr absl::Duration kStart = absl::Seconds(2);
constexpr int64_t kCounts[] = {1, 4096, 20'003};
constexpr int64_t kPeerBuffer = 16 << 10;  // the last in several pieces
#else
constexpr absl::Duration kStart = absl::Seconds(10);
constexpr int64_t kCounts[] = {1, 4096, 100'003, 3'000'001};
constexpr int64_t kPeerBuffer = 2 << 20;
#endif

bool HasGpu() {
  RankProcesses probe(1, [](int) { return MakeCudaDevice() != nullptr ? 0 : kNoGpu; });
  return probe.Wait(0) == 0;
}

GroupOptions OptionsOf(const std::string& group, int rank, int world_size) {
  GroupOptions options;
  options.group_name = group;
  options.rank = rank;
  options.world_size = world_size;
  options.buffer_bytes = kPeerBuffer;
  return options;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinOn(Device* device, const GroupOptions& options) {
  const MakePeers make_peers = [device](const PeerOptions& peers) {
    return cuda::MakePeerCollectives(cuda::AsCuda(*device), peers);
  };
  return JoinDeviceGroup(options, device, make_peers, absl::UnavailableError("the ranks share a GPU"));
}
#define SKIP_WITHOUT_GPU() \
  if (!HasGpu()) GTEST_SKIP() << "there is no GPU"

// One rank's process: its device, its communicator, and the host's to compare with.
struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm, host;

  // Returns false when something is missing.
  bool Join(const std::string& group, int rank, int world_size) {
    device = MakeCudaDevice(1 + static_cast<uint64_t>(rank));
    if (device == nullptr) return false;
    auto joined = JoinOn(device.get(), OptionsOf(group, rank, world_size));
    if (!joined.ok()) return false;
    comm = *std::move(joined);
    GroupOptions shm{.group_name = group + "-host", .rank = rank, .world_size = world_size, .spin = false};
    auto made = MakeShmCommunicator(shm);
    if (!made.ok()) return false;
    host = *std::move(made);
    return true;
  }
};

std::vector<float> Input(int call, int rank, int64_t count) {
  std::mt19937 random(call * 64 + rank);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// 0: all sums equal the host's bit by bit, eager and from a graph.
int RunSums(Rank& rank) {
  int call = 0;
  for (const int64_t count : kCounts) {
    void* data = nullptr;
    if (cudaMalloc(&data, static_cast<size_t>(count) * 4) != cudaSuccess) return 10;
    std::unique_ptr<DeviceGraph> graph;
    for (int round = 0; round < 4; ++round) {
      ++call;
      std::vector<float> values = Input(call, rank.comm->rank(), count), want = values;
      rank.device->CopyToDevice(data, values.data(), count * 4);
      if (round == 1) {  // recorded here, launched now and in the next rounds
        if (!rank.device->Synchronize().ok() || !rank.device->BeginCapture().ok()) return 11;
        if (!rank.comm->AllReduceSum(data, count, DataType::kF32).ok()) return 12;
        auto captured = rank.device->EndCapture();
        if (!captured.ok()) return 13;
        graph = *std::move(captured);
      }
      if (graph != nullptr) {
        graph->Launch();
      } else if (!rank.comm->AllReduceSum(data, count, DataType::kF32).ok()) {
        return 14;
      }
      rank.device->CopyToHost(values.data(), data, count * 4);
      if (!rank.device->Synchronize().ok() || !rank.comm->status().ok()) return 15;
      if (!rank.host->AllReduceSum(want.data(), count, DataType::kF32).ok()) return 16;
      if (std::memcmp(values.data(), want.data(), count * 4) != 0) return 17;
    }
    graph.reset();
    cudaFree(data);
  }
  return rank.comm->Barrier().ok() ? 0 : 18;
}

TEST(PeerProcessesTest, SumsEqualTheHosts) {
  SKIP_WITHOUT_GPU();
  for (const int world_size : {2, 3}) {
    const std::string group = UniqueName();
    RankProcesses ranks(world_size, [&](int r) {
      Rank rank;
      return rank.Join(group, r, world_size) ? RunSums(rank) : 1;
    });
    for (int r = 0; r < world_size; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r << " of " << world_size;
  }
}

// Rank 0's kernel waits for a rank whose process has ended: the kernel ends within a second, and the error
// names the reason.
TEST(PeerProcessesTest, KilledPeerLetsTheDeviceGo) {
  SKIP_WITHOUT_GPU();
  const std::string group = UniqueName();
  RankProcesses ranks(2, [&](int r) {
    Rank rank;
    if (!rank.Join(group, r, 2)) return 1;
    void* data = nullptr;
    if (cudaMalloc(&data, 4096) != cudaSuccess || !rank.host->Barrier().ok()) return 2;
    if (r == 1) {
      absl::SleepFor(absl::Seconds(60));
      return 0;
    }
    if (!rank.comm->AllReduceSum(data, 1024, DataType::kF32).ok()) return 3;
    if (!rank.device->Synchronize().ok()) return 4;
    return absl::IsUnavailable(rank.comm->status()) ? 0 : 5;
  });
  absl::SleepFor(kStart);  // CUDA starts slowly
  const absl::Time killed = absl::Now();
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_LT(absl::Now() - killed, kSoon);
}

#ifdef SOMNUS_CUDA_EMULATOR
void SetEmulator(const std::function<void(cuda::emulator::Options*)>& change) {
  cuda::emulator::Options options = cuda::emulator::GetOptions();
  change(&options);
  cuda::emulator::SetOptions(options);
}

// Where mapped memory is not the peer's, sums would be wrong without an error: the data check finds it, and
// names the rank, before the first of them.
TEST(PeerProcessesTest, MemoryThatIsNotThePeersIsNotTrusted) {
  const std::string group = UniqueName();
  RankProcesses ranks(2, [&](int r) {
    if (r == 1) SetEmulator([](auto* options) { options->broken_peer_memory = true; });
    const std::unique_ptr<Device> device = MakeCudaDevice();
    const absl::Status status = JoinOn(device.get(), OptionsOf(group, r, 2)).status();
    if (!absl::IsFailedPrecondition(status)) return 1;
    const auto says = [&](const char* text) { return status.message().find(text) != std::string::npos; };
    // A write of rank 1 does not reach rank 0 either.
    return says("memory of rank ") && says("differ from what it wrote") ? 0 : 2;
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}

// Each rank has a device of its own: how far apart they are decides thresholds.
TEST(PeerProcessesTest, LinkBetweenDevicesIsFound) {
  for (const bool nvlink : {true, false}) {
    const std::string group = UniqueName();
    RankProcesses ranks(2, [&](int r) {
      SetEmulator([&](auto* options) { options->has_nvlink = nvlink; });
      auto device = CreateEmulatedCudaDevice({.index = r});
      if (!device.ok()) return 1;
      GroupOptions shm{.group_name = group, .rank = r, .world_size = 2, .spin = false};
      auto host = MakeShmCommunicator(shm);
      auto made = cuda::MakePeerCollectives(cuda::AsCuda(**device), {.rank = r, .world_size = 2});
      if (!host.ok() || !made.ok()) return 2;
      const PeerHandle mine = (*made)->handle();
      PeerHandle handles[2];
      if (!(*host)->AllGather(&mine, sizeof(mine), handles).ok()) return 3;
      if (!(*made)->Connect(handles).ok()) return 4;
      const PeerLink found = (*made)->link();
      (*made)->Disconnect();
      if (!(*host)->Barrier().ok()) return 5;
      return found == (nvlink ? PeerLink::kNvLink : PeerLink::kPcie) ? 0 : 6;
    });
    for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r << ", NVLink " << nvlink;
  }
}
#endif

}  // namespace
}  // namespace somnus::cuda_test
