#pragma once
// The memory that peers have in common: the layout, and how the blocks of a collective meet there. For
// all_reduce.cu, and for peer_group.cu, which makes the memory.
//
// Each rank has one allocation (cudaMalloc: memory that sleeps cannot be exported by IPC, and would lose the
// peers' mappings): PeerMemory, then two buffers. Collectives are numbered 1, 2, 3, ... by every rank alike;
// the number lives on the device, so that a graph's replay goes on counting. In collective k a rank fills its
// buffer k % 2, then each of its blocks stamps k into every peer's memory, waits until that block of every
// peer has stamped k into this rank's memory, and reads the peers' buffers. Two buffers are enough: a rank
// that fills for k + 2 has seen some stamp k + 1 of every peer, so every peer's kernel k was done by then; no
// meeting is needed at the end. A block meets only the blocks of the same number on the other ranks: block b
// reads data that block b of the peer has written.

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/peer/all_reduce_plan.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"
#include "kernels/peer_collectives.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Written by the peers, each in its own word, and polled by the owner: the words have a cache line of their
// own.
struct alignas(128) PeerStamps {
  uint64_t from[kMaxPeers];  // wide enough never to wrap: a word may go unused for days
};

struct PeerMemory {
  PeerStamps stamps[2][kMaxPeerBlocks];  // by meeting of a collective, and block
  // The owner's alone: collectives done, and blocks of the running one that are done.
  alignas(128) uint64_t calls;
  uint32_t blocks_done;
  // Used by probes (peer_probe.cu): the word that each peer wrote here, and how many words of each peer were
  // wrong.
  uint64_t probes[kMaxPeers];
  uint32_t probe_errors[kMaxPeers];
};
static_assert(sizeof(PeerMemory) % 128 == 0);

// Values of PeerView::stop; anything else is kTimedOut + the rank that did not come.
constexpr uint32_t kRunning = 0;
constexpr uint32_t kStopped = 1;
constexpr uint32_t kTimedOut = 2;

// The group, for kernels; never changes, as a graph's arguments must not.
struct PeerView {
  int rank;
  int world_size;
  int64_t buffer_bytes;
  int64_t timeout_ns;
  uint32_t* stop;  // host memory, mapped: the host ends waits here, and kernels tell why they gave up
  PeerMemory* memory[kMaxPeers];
};

struct PeerShared {
  int stopped;
  float sums[32];
};

template <typename T>
__device__ inline T* PeerBuffer(const PeerView& group, int rank, uint64_t call) {
  char* const buffers = reinterpret_cast<char*>(group.memory[rank] + 1);
  return reinterpret_cast<T*>(buffers + (call & 1) * group.buffer_bytes);
}

// The number of the collective that this kernel is.
__device__ inline uint64_t ThisCall(const PeerView& group) { return group.memory[group.rank]->calls + 1; }

// Waits until a peer has stamped `call`, or the call after: a peer may be one call ahead. Returns false after
// giving up.
__device__ inline bool AwaitStamp(const PeerView& group, const uint64_t* stamp, uint64_t call, int peer) {
  // Reading the host's memory costs a trip over the bus, and reading the clock takes time, too.
  constexpr uint32_t kPollsPerLook = 256;
  uint64_t start = 0;
  for (uint32_t polls = 1;; ++polls) {
    if (LdAcquire<Scope::kSys>(stamp) >= call) return true;
    if (polls % kPollsPerLook != 0) continue;
    if (LdAcquire<Scope::kSys>(group.stop) != kRunning) return false;
    const uint64_t now = GlobalTimer();
    if (start == 0) start = now;
    // Signed: the clock may step back.
    if (static_cast<int64_t>(now - start) > group.timeout_ns) {
      StRelease<Scope::kSys>(group.stop, kTimedOut + static_cast<uint32_t>(peer));
      return false;
    }
  }
}

// Waits for the blocks of the same number on all ranks; each block may read afterwards what any such block
// wrote to buffers before. All threads of the block call Meet and get the same result, which is false after
// giving up.
__device__ inline bool Meet(const PeerView& group, int meeting, uint64_t call, PeerShared& shared) {
  // A slow thread may still be reading the result of the meeting before: only the first one of a kernel
  // resets it.
  if (meeting == 0 && threadIdx.x == 0) shared.stopped = 0;
  // The whole block's writes come before the stamps: a release covers what happened before it, and after the
  // barrier that includes what the other threads wrote.
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < group.world_size) {
    StRelease<Scope::kSys>(&group.memory[peer]->stamps[meeting][blockIdx.x].from[group.rank], call);
    const uint64_t* stamp = &group.memory[group.rank]->stamps[meeting][blockIdx.x].from[peer];
    if (!AwaitStamp(group, stamp, call, peer)) AtomicExch(&shared.stopped, 1);
  }
  __syncthreads();
  return shared.stopped == 0;
}

// The last block to be done counts the collective. By then every block has read the count.
__device__ inline void Leave(const PeerView& group, uint64_t call) {
  if (threadIdx.x != 0) return;
  PeerMemory* own = group.memory[group.rank];
  if (AtomicAddAcqRel(&own->blocks_done, 1u) + 1 != gridDim.x) return;
  own->blocks_done = 0;
  own->calls = call;
}

// kWidth elements from `at` on of all ranks' buffers, added in rank order, rounded once.
template <typename T, int kWidth>
__device__ inline Vec<T, kWidth> SumOfPeers(const PeerView& group, uint64_t call, int64_t at) {
  Vec<T, kWidth> in[kMaxPeers];  // all loads under way before the first is used: links have a latency
#pragma unroll
  for (int r = 0; r < kMaxPeers; ++r) {
    in[r] = {};
    if (r < group.world_size) in[r] = LoadWide<kWidth>(PeerBuffer<T>(group, r, call) + at);
  }
  Vec<T, kWidth> out;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    float sum = ToFloat(in[0][j]);
#pragma unroll
    for (int r = 1; r < kMaxPeers; ++r) {
      if (r < group.world_size) sum += ToFloat(in[r][j]);
    }
    out[j] = FromFloat<T>(sum);
  }
  return out;
}

// The tokens of all ranks, from which the probes' patterns are made.
struct PeerTokens {
  uint64_t of[kMaxPeers];
};

// ---- Host: the kernels of peer_probe.cu. Write fills this rank's buffers, and `probes` of every peer; Check
// counts in this rank's probe_errors.

void QueueProbeWrite(CudaDevice& device, const PeerView& group, const PeerTokens& tokens);
void QueueProbeCheck(CudaDevice& device, const PeerView& group, const PeerTokens& tokens);

// ---- Host: the kernels of all_reduce.cu, on the device's stream. Sizes are more than 0 and fit the buffer.

void QueuePeerReduce(CudaDevice& device, const PeerView& group, int64_t one_shot_bytes, void* data,
                     int64_t count, DataType type);
// out[r * stride], of `bytes` bytes each, from all ranks' in.
void QueuePeerGather(CudaDevice& device, const PeerView& group, const void* in, int64_t bytes, void* out,
                     int64_t stride);
// Returns false where PlanPeerNorm has no plan, or the types are none of the op's.
bool QueuePeerNorm(CudaDevice& device, const PeerView& group, int64_t one_shot_bytes,
                   const TensorView& residual, const TensorView& delta, const float* weight, double eps,
                   const TensorView& out);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
