// Whole communicators of ranks that share one GPU: the ranks meet on the host and map each other's memory,
// and the sums equal the shared-memory communicator's bit by bit. Ranks are threads here.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "tests/comm/rank_processes.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/device_group.h"

namespace somnus::cuda_test {
namespace {

namespace cuda = ::somnus::SOMNUS_CUDA_NAMESPACE;

constexpr int kWorldSize = 3;
constexpr int64_t kCount = 1500;
constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};

// Any bits are numbers of the 16-bit types, except bits with an exponent of all ones.
std::vector<unsigned char> Input(DataType type, int rank) {
  std::mt19937 random(rank + 10 * static_cast<int>(type));
  std::vector<unsigned char> bytes(kCount * SizeOf(type));
  if (type == DataType::kF32) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kCount; ++i) {
      const float x = normal(random);
      std::memcpy(&bytes[4 * i], &x, 4);
    }
    return bytes;
  }
  for (int64_t i = 0; i < kCount; ++i) {
    const uint16_t exponent = type == DataType::kBF16 ? 0x3f80 : 0x3c00;  // 1 <= |x| < 2
    const uint16_t mantissa = type == DataType::kBF16 ? 0x7f : 0x3ff;
    const uint16_t x = static_cast<uint16_t>((random() & 0x8000) | exponent | (random() & mantissa));
    std::memcpy(&bytes[2 * i], &x, 2);
  }
  return bytes;
}

// One rank's part of a test; the members were made before any rank began.
struct Rank {
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::unique_ptr<Communicator> comm, host;
};

class DeviceCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    group_ = UniqueName();
    for (int r = 0; r < kWorldSize; ++r) {
      Rank rank;
      rank.device = MakeCudaDevice(5);
      SOMNUS_SKIP_WITHOUT_GPU(rank.device);
      for (int i = 0; i < 6; ++i)
        rank.buffers.push_back(std::make_unique<DeviceBuffer>(kWorldSize * kCount * 4));
      ranks_.push_back(std::move(rank));
    }
    EveryRank([this](int r, Rank& rank) {
      GroupOptions options{.group_name = group_, .rank = r, .world_size = kWorldSize};
      options.buffer_bytes = 4096;  // several pieces
      const MakePeers make = [&rank](const PeerOptions& peers) {
        return cuda::MakePeerCollectives(cuda::AsCuda(*rank.device), peers);
      };
      auto comm = JoinDeviceGroup(options, rank.device.get(), make, absl::UnavailableError("none here"));
      ASSERT_TRUE(comm.ok()) << comm.status();
      rank.comm = *std::move(comm);
      GroupOptions shm{.group_name = group_ + "-host", .rank = r, .world_size = kWorldSize, .spin = false};
      auto host = MakeShmCommunicator(shm);
      ASSERT_TRUE(host.ok()) << host.status();
      rank.host = *std::move(host);
    });
  }
  void TearDown() override {
    EveryRank([](int, Rank& rank) { rank.comm.reset(), rank.host.reset(); });
  }

  void EveryRank(const std::function<void(int, Rank&)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      threads.emplace_back([this, r, &body] { body(r, ranks_[r]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::string group_;
  std::vector<Rank> ranks_;
};

TEST_F(DeviceCommunicatorTest, EqualsTheSharedMemoryCommunicatorBitByBit) {
  EveryRank([](int r, Rank& rank) {
    EXPECT_TRUE(rank.comm->stream_ordered());
    for (int i = 0; i < 3; ++i) {
      const std::vector<unsigned char> in = Input(kTypes[i], r);
      rank.buffers[i]->Write(0, in.data(), static_cast<int64_t>(in.size()));
      EXPECT_TRUE(rank.comm->AllReduceSum(rank.buffers[i]->device<void>(), kCount, kTypes[i]).ok());
      EXPECT_TRUE(rank.comm
                      ->AllGather(rank.buffers[i]->device<void>(), static_cast<int64_t>(in.size()),
                                  rank.buffers[3 + i]->device<void>())
                      .ok());
    }
    EXPECT_TRUE(rank.device->Synchronize().ok());
    EXPECT_TRUE(rank.comm->status().ok()) << rank.comm->status();
    for (int i = 0; i < 3; ++i) {
      std::vector<unsigned char> want = Input(kTypes[i], r);
      EXPECT_TRUE(rank.host->AllReduceSum(want.data(), kCount, kTypes[i]).ok());
      const std::string bytes(want.begin(), want.end());
      const int64_t size = static_cast<int64_t>(bytes.size());
      EXPECT_TRUE(rank.buffers[i]->Bytes(0, size) == bytes) << "type " << i;
      for (int from = 0; from < kWorldSize; ++from) {
        EXPECT_TRUE(rank.buffers[3 + i]->Bytes(from * size, size) == bytes) << "type " << i;
      }
    }
    EXPECT_TRUE(rank.comm->Barrier().ok());
  });
}

TEST_F(DeviceCommunicatorTest, AbortLetsTheDeviceGo) {
  EveryRank([](int r, Rank& rank) {
    if (r == 2) {  // never comes
      absl::SleepFor(absl::Milliseconds(200));
      rank.comm->Abort("rank 2 gives up");
      return;
    }
    EXPECT_TRUE(rank.comm->AllReduceSum(rank.buffers[0]->device<void>(), kCount, DataType::kF32).ok());
    EXPECT_TRUE(rank.device->Synchronize().ok());
    const absl::Status status = rank.comm->status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_FALSE(rank.comm->AllReduceSum(rank.buffers[0]->device<void>(), kCount, DataType::kF32).ok());
  });
}

}  // namespace
}  // namespace somnus::cuda_test
