// Paged attention for shapes that tensor cores do not take: f32, cache blocks of any size, any head_dim and
// alignment. Plain f32 arithmetic, a block for each query and head, K and V read by each block: correct
// first.
//
// The four warps of a block take every fourth run of 32 tokens. A lane scores one token, then the warp adds
// the weighted values dim by dim; the warps' sums are added at the end.

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kPlainWarps = 4;

struct alignas(16) PlainShared {
  float weights[kPlainWarps][32];
  int64_t tokens[kPlainWarps][32];  // elements at which V of each token begins
  float max[kPlainWarps];
  float sum[kPlainWarps];
  // Then the query [head_dim], then sums [kPlainWarps][head_dim].
};

// The sequence whose rows contain `row`.
__device__ inline int SequenceOf(const AttentionParams& p, int row) {
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.query_start[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Folds the tokens of [begin, begin + 32) that lie in [first, limit) into a warp's sums: at least one.
template <typename E>
__device__ void FoldRun(const AttentionParams& p, const int32_t* table, int kv_head, int begin, int first,
                        int limit, const float* query, PlainShared& shared, float* sums) {
  const int warp = WarpId(), lane = LaneId(), token = begin + lane;
  const E* const cache = static_cast<const E*>(p.cache);
  const bool seen = token >= first && token < limit;
  float score = -INFINITY, v_scale = 1;  // V's scale: of an int8 cache alone
  if (seen) {
    const int index = token / p.block_size;
    const int in_block = token % p.block_size;
    const int64_t at = KeyOffset(p, table[index], kv_head, in_block);
    shared.tokens[warp][lane] = at + p.run_size;
    score = 0;
    for (int d = 0; d < p.head_dim; ++d) score = fmaf(query[d], ToFloat(cache[at + d]), score);
    if constexpr (std::is_same_v<E, i8>) {
      const char* const k_scale =
          static_cast<const char*>(p.cache) + KeyScaleOffset(p, table[index], kv_head, in_block);
      score *= *reinterpret_cast<const float*>(k_scale);
      v_scale = *reinterpret_cast<const float*>(k_scale + p.run_size);
    }
    score *= p.scale_log2;
    if (p.softcap_log2 != 0) score = p.softcap_log2 * tanhf(score / p.softcap_log2);
  }
  const float old = shared.max[warp], top = fmaxf(old, WarpMax(score));
  const float base = top == -INFINITY ? 0.0f : top;
  const float weight = seen ? exp2f(score - base) : 0.0f;
  const float decay = exp2f(old - base), sum = WarpSum(weight);
  shared.weights[warp][lane] = weight * v_scale;
  SyncWarp();
  const int from = max(0, first - begin), tokens = min(32, limit - begin);
  for (int d = lane; d < p.head_dim; d += 32) {
    float total = sums[d] * decay;
    for (int i = from; i < tokens; ++i) {
      total = fmaf(shared.weights[warp][i], ToFloat(cache[shared.tokens[warp][i] + d]), total);
    }
    sums[d] = total;
  }
  if (lane == 0) {
    shared.max[warp] = top;
    shared.sum[warp] = shared.sum[warp] * decay + sum;
  }
  SyncWarp();
}

template <typename T, typename E>
__global__ void __launch_bounds__(kPlainWarps * 32) PlainKernel(AttentionParams p) {
  GridDependencyLaunch();
  GridDependencyWait();
  PlainShared& shared = SharedStorage<PlainShared>();
  float* const query = reinterpret_cast<float*>(&shared + 1);
  const int row = static_cast<int>(blockIdx.x) / p.num_heads,
            head = static_cast<int>(blockIdx.x) % p.num_heads;
  const int warp = WarpId(), lane = LaneId(), thread = static_cast<int>(threadIdx.x);
  const int seq = SequenceOf(p, row);
  const int limit = p.context_len[seq] > 0 ? p.positions[row] + 1 : 0;
  const T* const q = static_cast<const T*>(p.q) + row * p.q_stride + int64_t{head} * p.head_dim;
  for (int d = thread; d < p.head_dim; d += kPlainWarps * 32) query[d] = ToFloat(q[d]);
  float* const sums = query + (1 + warp) * p.head_dim;
  for (int d = lane; d < p.head_dim; d += 32) sums[d] = 0;
  if (lane == 0) {
    shared.max[warp] = -INFINITY;
    shared.sum[warp] = 0;
  }
  __syncthreads();
  const int32_t* const table = p.block_tables + seq * p.max_blocks_per_seq;
  const int first = FirstToken(p, limit), first_run = first / (kPlainWarps * 32) * (kPlainWarps * 32);
  for (int begin = first_run + warp * 32; begin < limit; begin += kPlainWarps * 32) {
    if (begin + 32 <= first) continue;
    FoldRun<E>(p, table, p.kv_head_of_head[head], begin, first, limit, query, shared, sums);
  }
  __syncthreads();
  float top = -INFINITY, sum = 0, weight[kPlainWarps];
#pragma unroll
  for (int w = 0; w < kPlainWarps; ++w) top = fmaxf(top, shared.max[w]);
#pragma unroll
  for (int w = 0; w < kPlainWarps; ++w) {
    weight[w] = shared.max[w] == -INFINITY ? 0.0f : exp2f(shared.max[w] - top);
    sum = fmaf(weight[w], shared.sum[w], sum);
  }
  T* const out = static_cast<T*>(p.out) + row * p.out_stride + int64_t{head} * p.head_dim;
  const float scale = limit == 0 ? 0.0f : p.v_scale / SumWithSink(p, head, top, sum);
  for (int d = thread; d < p.head_dim; d += kPlainWarps * 32) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kPlainWarps; ++w) total = fmaf(weight[w], query[(1 + w) * p.head_dim + d], total);
    out[d] = FromFloat<T>(total * scale);
  }
}

}  // namespace

bool PlainAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                    int64_t num_tokens) {
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(PlainShared)) +
                               (1 + kPlainWarps) * shape.head_dim * static_cast<int64_t>(sizeof(float));
  if (shared_bytes > device.chip().max_shared_bytes) return false;
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(num_tokens * shape.num_heads)),
                            .block = dim3(kPlainWarps * 32),
                            .shared_bytes = shared_bytes,
                            .overlaps_previous = true};
  return DispatchAct(shape.act, [&](auto act) {
    using T = typename decltype(act)::type;
    if (shape.cache == DataType::kF8E4M3) {
      Launch(device, config, PlainKernel<T, f8e4m3>, params);
    } else if (shape.cache == DataType::kI8) {
      Launch(device, config, PlainKernel<T, i8>, params);
    } else {
      Launch(device, config, PlainKernel<T, T>, params);
    }
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
