// Shows by data that peers' memory is really mapped: every rank writes words that no other rank would write,
// to its own buffers and to a place of its own in every peer's memory; after a barrier of the hosts every
// rank reads all these words, as collectives will read.

#include "kernels/cuda/peer/peer_memory.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kProbeBlocks = 8;
constexpr int kProbeThreads = 128;

// Word `i` of a rank's pattern (the finalizer of splitmix64): neighbours, ranks and runs all differ.
__device__ inline uint64_t ProbeWord(uint64_t token, int64_t i) {
  uint64_t x = token + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Both buffers of a rank, as words.
__device__ inline uint64_t* ProbeWords(const PeerView& group, int rank) {
  return reinterpret_cast<uint64_t*>(group.memory[rank] + 1);
}
__device__ inline int64_t NumProbeWords(const PeerView& group) {
  return 2 * group.buffer_bytes / static_cast<int64_t>(sizeof(uint64_t));
}

__global__ void __launch_bounds__(kProbeThreads)
    ProbeWriteKernel(const __grid_constant__ PeerView group, const __grid_constant__ PeerTokens tokens) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t token = tokens.of[group.rank];
  uint64_t* const own = ProbeWords(group, group.rank);
  for (int64_t i = first; i < NumProbeWords(group); i += int64_t{gridDim.x} * blockDim.x) {
    own[i] = ProbeWord(token, i);
  }
  if (first >= group.world_size) return;
  const int peer = static_cast<int>(first);
  group.memory[group.rank]->probe_errors[peer] = 0;
  StRelease<Scope::kSys>(&group.memory[peer]->probes[group.rank], ProbeWord(token, -1 - peer));
}

__global__ void __launch_bounds__(kProbeThreads)
    ProbeCheckKernel(const __grid_constant__ PeerView group, const __grid_constant__ PeerTokens tokens) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  PeerMemory* const own = group.memory[group.rank];
  for (int peer = 0; peer < group.world_size; ++peer) {
    const uint64_t* const words = ProbeWords(group, peer);
    uint32_t errors = 0;
    for (int64_t i = first; i < NumProbeWords(group); i += int64_t{gridDim.x} * blockDim.x) {
      errors += words[i] != ProbeWord(tokens.of[peer], i);
    }
    if (first == 0) errors += own->probes[peer] != ProbeWord(tokens.of[peer], -1 - group.rank);
    if (errors > 0) AtomicAdd(&own->probe_errors[peer], errors);
  }
}

const LaunchConfig kProbeConfig{.grid = dim3(kProbeBlocks), .block = dim3(kProbeThreads)};

}  // namespace

void QueueProbeWrite(CudaDevice& device, const PeerView& group, const PeerTokens& tokens) {
  Launch(device, kProbeConfig, ProbeWriteKernel, group, tokens);
}

void QueueProbeCheck(CudaDevice& device, const PeerView& group, const PeerTokens& tokens) {
  Launch(device, kProbeConfig, ProbeCheckKernel, group, tokens);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
