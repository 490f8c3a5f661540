#pragma once
// The device functions that the attention kernels share: sums of a warp and of a row's weights; which heads
// share a KV head, and which sequence a tile belongs to.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/ptx.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

SOMNUS_HD uint32_t LanesBelow(int lane) { return (1u << lane) - 1; }

__device__ inline float WarpMax(float x) {
  return Butterfly(x, 16, [](float a, float b) { return fmaxf(a, b); });
}
__device__ inline float WarpSum(float x) {
  return Butterfly(x, 16, [](float a, float b) { return a + b; });
}

// A row's sum of weights with the weight of the head's sink, which enters last: where a context was cut does
// not show. max: the base of the weights. Far above all scores a sink makes the sum infinite, the output 0.
__device__ inline float SumWithSink(const AttentionParams& p, int head, float max, float sum) {
  return p.sinks == nullptr ? sum : sum + Exp2Approx(fmaf(p.sinks[head], 1.44269504f, -max));
}

// ---- Heads

// Heads sorted by KV head, cut into tiles of at most kDecodeRows heads of one KV head. In shared memory.
struct HeadTiles {
  int32_t* heads;     // [num_heads]
  int32_t* kv_heads;  // [num_heads]: of heads[i]
  int32_t* begins;    // [num_heads]: where each tile begins
  int num_heads;

  SOMNUS_HD static int64_t Bytes(int64_t num_heads) { return (num_heads * 12 + 15) / 16 * 16; }
  __device__ HeadTiles(void* memory, int num_heads)
      : heads(static_cast<int32_t*>(memory)),
        kv_heads(heads + num_heads),
        begins(kv_heads + num_heads),
        num_heads(num_heads) {}
};

// All threads of the block fill `tiles` and the number of tiles, `num_tiles` (shared). Both may be read
// behind the caller's next barrier.
template <int kThreads>
__device__ inline void SortHeads(const int32_t* kv_head_of_head, const HeadTiles& tiles, int& num_tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  int32_t* const unsorted = tiles.begins;
  for (int h = thread; h < tiles.num_heads; h += kThreads) unsorted[h] = kv_head_of_head[h];
  __syncthreads();
  for (int h = thread; h < tiles.num_heads; h += kThreads) {
    const int own = unsorted[h];
    int rank = 0;
    for (int i = 0; i < tiles.num_heads; ++i) rank += unsorted[i] < own || (unsorted[i] == own && i < h);
    tiles.heads[rank] = h;
    tiles.kv_heads[rank] = own;
  }
  __syncthreads();
  if (thread < 32) {
    int count = 0, group_begin = 0;
    for (int base = 0; base < tiles.num_heads; base += 32) {
      const int i = base + thread;
      const bool there = i < tiles.num_heads;
      const bool first = there && (i == 0 || tiles.kv_heads[i] != tiles.kv_heads[i - 1]);
      const uint32_t up_to_here = Ballot(first) & (LanesBelow(thread) << 1 | 1);
      const int begin = up_to_here == 0 ? group_begin : base + 31 - CountLeadingZeros(up_to_here);
      const bool starts = there && (i - begin) % kDecodeRows == 0;
      const uint32_t all = Ballot(starts);
      if (starts) tiles.begins[count + PopCount(all & LanesBelow(thread))] = i;
      count += PopCount(all);
      group_begin = ShflIdx(begin, 31);
    }
    if (thread == 0) num_tiles = count;
  }
}

// The heads of one KV head into `heads` (shared, [num_heads]), in ascending order; their number into `count`.
// Ends in a barrier.
__device__ inline void FindHeads(const AttentionParams& p, int kv_head, int32_t* heads, int& count) {
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int found = 0;
    for (int base = 0; base < p.num_heads; base += 32) {
      const int h = base + lane;
      const bool ours = h < p.num_heads && p.kv_head_of_head[h] == kv_head;
      const uint32_t all = Ballot(ours);
      if (ours) heads[found + PopCount(all & LanesBelow(lane))] = h;
      found += PopCount(all);
    }
    if (lane == 0) count = found;
  }
  __syncthreads();
}

// ---- Sequences

template <int kThreads>
struct ScanShared {
  int warp_sums[kThreads / 32];
  int ends[kThreads];  // tiles up to the last of a thread's sequences
  int seq;
  int before;
};

// The tiles of all sequences, laid end to end: their number, and the sequence of a given tile. Each thread
// counts a run of sequences. All threads of the block construct and call the scan together. The state is in
// shared memory: in registers it would be carried through the loops of attention.
template <int kThreads, typename Count>
class TileScan {
 public:
  // count(i): tiles of sequence i.
  __device__ TileScan(ScanShared<kThreads>& shared, int num_seqs, const Count& count)
      : shared_(shared), num_seqs_(num_seqs), count_(count) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    int up_to_here = 0;
    for (int i = First(thread); i < First(thread + 1); ++i) up_to_here += count(i);
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int other = ShflUp(up_to_here, delta);
      if (lane >= delta) up_to_here += other;
    }
    if (lane == 31) shared.warp_sums[warp] = up_to_here;
    __syncthreads();
    for (int w = 0; w < warp; ++w) up_to_here += shared.warp_sums[w];
    shared.ends[thread] = up_to_here;
    __syncthreads();
  }

  __device__ int total() const { return shared_.ends[kThreads - 1]; }

  // The sequence of `tile`, and how many tiles all earlier sequences have. tile < total(). Has a barrier. The
  // caller needs a barrier between two calls.
  __device__ void Find(int tile, int& seq, int& before) {
    const int thread = static_cast<int>(threadIdx.x);
    int sum = thread == 0 ? 0 : shared_.ends[thread - 1];
    if (tile >= sum && tile < shared_.ends[thread]) {
      int i = First(thread), tiles = count_(i);
      while (sum + tiles <= tile) {
        sum += tiles;
        tiles = count_(++i);
      }
      shared_.seq = i;
      shared_.before = sum;
    }
    __syncthreads();
    seq = shared_.seq;
    before = shared_.before;
  }

 private:
  __device__ int First(int thread) const {
    return min(thread * ((num_seqs_ + kThreads - 1) / kThreads), num_seqs_);
  }

  ScanShared<kThreads>& shared_;
  const int num_seqs_;
  const Count& count_;
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
