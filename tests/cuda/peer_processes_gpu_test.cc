// Ranks as they are served: processes that share one GPU and reach each other's memory by CUDA IPC, which no
// emulator shows. Needs a GPU; every CUDA call is made in a child, since a fork does not survive CUDA.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/device.h"
#include "tests/comm/rank_processes.h"
#include "worker/comm/cuda_communicator.h"

namespace somnus {
namespace {

constexpr int kNoGpu = 77;
constexpr absl::Duration kSoon = absl::Seconds(5);

bool HasGpu() {
  RankProcesses probe(1, [](int) { return Device::CreateCuda(0).ok() ? 0 : kNoGpu; });
  return probe.Wait(0) == 0;
}
#define SKIP_WITHOUT_GPU() \
  if (!HasGpu()) GTEST_SKIP() << "there is no GPU"

// One rank's process: its device, its communicator, and the host's to compare with.
struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm, host;

  // False: something is missing.
  bool Join(const std::string& group, int rank, int world_size) {
    auto created = Device::CreateCuda(0);
    if (!created.ok()) return false;
    device = *std::move(created);
    DeviceGroupOptions options;
    options.group_name = group;
    options.rank = rank;
    options.world_size = world_size;
    auto joined = MakeCudaCommunicator(options, device.get());
    if (!joined.ok()) return false;
    comm = *std::move(joined);
    ShmCommunicatorOptions shm;
    shm.group_name = group + "-host";
    shm.rank = rank;
    shm.world_size = world_size;
    shm.spin = false;
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
  for (const int64_t count : {1, 4096, 100'003, 3'000'001}) {  // the last in several pieces
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

TEST(PeerProcessesGpuTest, SumsEqualTheHosts) {
  SKIP_WITHOUT_GPU();
  for (const int world_size : {2, 3}) {
    const std::string group = UniqueGroupName();
    RankProcesses ranks(world_size, [&](int r) {
      Rank rank;
      return rank.Join(group, r, world_size) ? RunSums(rank) : 1;
    });
    for (int r = 0; r < world_size; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r << " of " << world_size;
  }
}

// Rank 0's kernel waits for a rank that is no more: its device comes back within a second, and the reason is
// named.
TEST(PeerProcessesGpuTest, KilledPeerLetsTheDeviceGo) {
  SKIP_WITHOUT_GPU();
  const std::string group = UniqueGroupName();
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
  absl::SleepFor(absl::Seconds(10));  // CUDA starts slowly
  const absl::Time killed = absl::Now();
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_LT(absl::Now() - killed, kSoon);
}

}  // namespace
}  // namespace somnus
