#pragma once
// The way of a fake NCCL's messages between ranks of this process on a single GPU: copies that are queued on
// the ranks' streams, and read and write memory of the device in the streams' order. The receiver's stream
// waits for the sender's.

#include <memory>
#include <vector>

#include "tests/comm/fake_nccl.h"
#include "tests/cuda/gpu_ranks.h"
#include "worker/comm/device_link.h"

namespace somnus::cuda_test {

namespace on_streams {
#ifdef SOMNUS_CUDA_EMULATOR
using namespace cuda_emulated;
#endif

// The copy of a message on its way.
class PackedMessage {
 public:
  PackedMessage(const void* data, size_t bytes, nccl::Stream of_sender) {
    const auto stream = static_cast<cudaStream_t>(of_sender);
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&packed_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data_, data, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(packed_, stream), cudaSuccess);
  }
  ~PackedMessage() {
    cudaEventDestroy(packed_);
    cudaFree(data_);
  }
  PackedMessage(const PackedMessage&) = delete;

  void Unpack(void* data, size_t bytes, nccl::Stream of_receiver) const {
    const auto stream = static_cast<cudaStream_t>(of_receiver);
    EXPECT_EQ(cudaStreamWaitEvent(stream, packed_, 0), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data, data_, bytes, cudaMemcpyDefault, stream), cudaSuccess);
  }

 private:
  void* data_ = nullptr;
  cudaEvent_t packed_ = nullptr;
};

}  // namespace on_streams
using on_streams::PackedMessage;

// `messages` keeps what the device may yet read; to be freed after the devices.
inline FakeNccl::Carrier StreamCarrier(std::vector<std::shared_ptr<PackedMessage>>* messages) {
  FakeNccl::Carrier carrier;
  carrier.pack = [messages](const void* data, size_t bytes, nccl::Stream stream) {
    messages->push_back(std::make_shared<PackedMessage>(data, bytes, stream));
    return messages->back();
  };
  carrier.unpack = [](void* packed, void* data, size_t bytes, nccl::Stream stream) {
    static_cast<PackedMessage*>(packed)->Unpack(data, bytes, stream);
  };
  return carrier;
}

// GpuRanks whose stages are linked by `nccl`, as if each rank had a GPU of its own.
inline MakeRankDevice LinkedGpuRanks(const FakeNccl& nccl) {
  return [&nccl](int rank) -> absl::StatusOr<RankDevice> {
    ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
    made.join_link = [&nccl, rank](GroupOptions options, Device* device, std::unique_ptr<StageLink> host) {
      options.nccl_unique_id = std::string(128, static_cast<char>('a' + rank - options.rank));
      options.stream = SOMNUS_CUDA_NAMESPACE::AsCuda(*device).stream();
      return JoinDeviceLink(options, absl::StrCat("GPU ", rank), device, std::move(host), &nccl.api());
    };
    return made;
  };
}

}  // namespace somnus::cuda_test
