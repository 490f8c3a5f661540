#pragma once
// Ranks of a model, all on the single GPU of the emulator or the machine. The ranks meet in peer memory,
// since NCCL refuses ranks that share a GPU.

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/runner/rank_group.h"
#include "worker/comm/device_group.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "tests/cuda/emulated_vmm_driver.h"
#else
#include "allocator/cuda_vmm_driver.h"
#endif

namespace somnus::cuda_test {

inline absl::StatusOr<std::unique_ptr<VmmDriver>> MakeGpuMemory(int64_t chunk_bytes = int64_t{1} << 30) {
#ifdef SOMNUS_CUDA_EMULATOR
  return std::make_unique<EmulatedVmmDriver>(chunk_bytes);
#else
  return MakeCudaVmmDriver(0, {.chunk_bytes = chunk_bytes});
#endif
}

inline absl::StatusOr<std::unique_ptr<Communicator>> JoinOnOneGpu(const std::string& group, int rank,
                                                                  int world_size, Device* device) {
  GroupOptions options{.group_name = group, .rank = rank, .world_size = world_size};
  const MakePeers make_peers = [device](const PeerOptions& peers) {
    return SOMNUS_CUDA_NAMESPACE::MakePeerCollectives(SOMNUS_CUDA_NAMESPACE::AsCuda(*device), peers);
  };
  return JoinDeviceGroup(options, device, make_peers, absl::UnavailableError("the ranks share a GPU"));
}

inline MakeRankDevice GpuRanks(uint64_t seed = 1) {
  return [seed](int) -> absl::StatusOr<RankDevice> {
    RankDevice rank;
    ASSIGN_OR_RETURN(rank.driver, MakeGpuMemory());
    rank.device = MakeCudaDevice(seed);
    if (rank.device == nullptr) return absl::UnavailableError("no GPU");
    rank.join = JoinOnOneGpu;
    return rank;
  };
}

}  // namespace somnus::cuda_test
