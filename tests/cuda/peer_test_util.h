#pragma once
// Ranks as threads of this process, with collectives over peer memory between them, and arrays that every
// rank has.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/peer/all_reduce.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace somnus::cuda_test {

namespace cuda = ::somnus::SOMNUS_CUDA_NAMESPACE;

inline constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};

// The objects of one rank.
struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<PeerCollectives> peers;
};

// Connected ranks. Memory is made before anything is queued: allocation may wait for the device, which may
// wait for a rank that has yet to queue its part.
class Group {
 public:
  Group(int world_size, uint64_t seed, PeerOptions options = {}) {
    options.world_size = world_size;
    std::vector<PeerHandle> handles;
    for (int r = 0; r < world_size; ++r) {
      Rank rank;
      rank.device = MakeCudaDevice(seed);
      if (rank.device == nullptr) return;
      options.rank = r;
      auto made = cuda::MakePeerCollectives(cuda::AsCuda(*rank.device), options);
      EXPECT_TRUE(made.ok()) << made.status();
      rank.peers = *std::move(made);
      handles.push_back(rank.peers->handle());
      ranks_.push_back(std::move(rank));
    }
    for (int r = 0; r < world_size; ++r) {
      const absl::Status status = ranks_[r].peers->Connect(handles);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  ~Group() {
    for (Rank& rank : ranks_) EXPECT_TRUE(rank.device->Synchronize().ok());
    for (Rank& rank : ranks_) rank.peers->Disconnect();
  }

  bool there() const { return !ranks_.empty(); }
  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& rank(int r) { return ranks_[r]; }

  // Every rank queues, then waits, in a thread of its own.
  void Run(const std::function<void(int, Rank&)>& queue) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size(); ++r) {
      threads.emplace_back([this, r, &queue] {
        queue(r, ranks_[r]);
        const absl::Status status = ranks_[r].device->Synchronize();
        EXPECT_TRUE(status.ok()) << status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Rank& rank : ranks_) EXPECT_TRUE(rank.peers->status().ok()) << rank.peers->status();
  }

 private:
  std::vector<Rank> ranks_;
};

#define SKIP_WITHOUT_GPU(group) \
  if (!(group).there()) GTEST_SKIP() << "no GPU"

// ---- Elements of any type as bits

inline uint32_t BitsOf(DataType type, float x) {
  if (type == DataType::kF32) return std::bit_cast<uint32_t>(x);
  return type == DataType::kBF16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(x);
}
inline float ValueOf(DataType type, uint32_t bits) {
  if (type == DataType::kF32) return std::bit_cast<float>(bits);
  return type == DataType::kBF16 ? std::bit_cast<float>(bits << 16)
                                 : kernel_test::F16ToFloat(static_cast<uint16_t>(bits));
}
inline void Put(DataType type, void* data, int64_t i, uint32_t bits) {
  if (type == DataType::kF32) {
    static_cast<uint32_t*>(data)[i] = bits;
  } else {
    static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits);
  }
}
inline uint32_t Get(DataType type, const void* data, int64_t i) {
  return type == DataType::kF32 ? static_cast<const uint32_t*>(data)[i]
                                : static_cast<const uint16_t*>(data)[i];
}

// Rank r's input: wide in magnitude, so that the bits depend on the order of summation.
inline std::vector<uint32_t> Input(DataType type, int call, int rank, int64_t count) {
  std::mt19937 random(call * 64 + rank);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<uint32_t> bits(count);
  for (uint32_t& x : bits)
    x = BitsOf(type, std::ldexp(mantissa(random), static_cast<int>(random() % 16) - 6));
  return bits;
}

inline std::vector<uint32_t> RankOrderSum(DataType type, int call, int world_size, int64_t count) {
  std::vector<float> sum(count);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<uint32_t> in = Input(type, call, r, count);
    for (int64_t i = 0; i < count; ++i)
      sum[i] = r == 0 ? ValueOf(type, in[i]) : sum[i] + ValueOf(type, in[i]);
  }
  std::vector<uint32_t> bits(count);
  for (int64_t i = 0; i < count; ++i) bits[i] = BitsOf(type, sum[i]);
  return bits;
}

// An array of every rank, `offset` elements from 256-byte alignment.
class RankArrays {
 public:
  RankArrays(DataType type, int world_size, int64_t count, int64_t offset = 0)
      : type_(type), count_(count), offset_(offset) {
    for (int r = 0; r < world_size; ++r) {
      buffers_.push_back(std::make_unique<DeviceBuffer>((count + offset) * SizeOf(type)));
    }
  }
  // For collectives.
  void* data(int r) { return buffers_[r]->device<char>() + offset_ * SizeOf(type_); }
  void Fill(int r, const std::vector<uint32_t>& bits) {
    std::string bytes(static_cast<size_t>(count_ * SizeOf(type_)), '\0');
    for (int64_t i = 0; i < count_; ++i) Put(type_, bytes.data(), i, bits[i]);
    buffers_[r]->Write(offset_ * SizeOf(type_), bytes.data(), count_ * SizeOf(type_));
  }
  void FillInputs(int call) {
    for (int r = 0; r < static_cast<int>(buffers_.size()); ++r) Fill(r, Input(type_, call, r, count_));
  }
  std::string Bytes(int r) const {
    return buffers_[r]->Bytes(offset_ * SizeOf(type_), count_ * SizeOf(type_));
  }
  std::vector<uint32_t> Bits(int r) const {
    const std::string bytes = Bytes(r);
    std::vector<uint32_t> bits(count_);
    for (int64_t i = 0; i < count_; ++i) bits[i] = Get(type_, bytes.data(), i);
    return bits;
  }
  // Every rank holds the sum of the inputs of FillInputs(call).
  void ExpectSums(int call, const std::string& what) {
    const int world_size = static_cast<int>(buffers_.size());
    const std::vector<uint32_t> sum = RankOrderSum(type_, call, world_size, count_);
    for (int r = 0; r < world_size; ++r) EXPECT_TRUE(Bits(r) == sum) << what << ", rank " << r;
  }

 private:
  DataType type_;
  int64_t count_, offset_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

}  // namespace somnus::cuda_test
