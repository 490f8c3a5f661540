// The write of tokens' rows into a latent cache: the norm of the latent part, the rotation of the rest, and
// the rotation of the queries' part with a position. A warp takes a head of a token, or the token's row: a
// few hundred elements each, read and written once, so the kernel is bound by memory and, for a decode, by
// its launch.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kLatentThreads = 128;

template <typename T>
struct LatentParams {
  T* row;
  int64_t row_stride;
  const float* norm;
  float eps;
  const T* queries;
  int64_t query_stride;
  T* out;
  int64_t out_stride;
  int num_heads, nope, rope, latent;
  int pair_step, pair_other;  // from a pair to the next, and from a pair's first to its second
  const float* cos;
  const float* sin;
  const int32_t* positions;
  const int32_t* slots;
  T* cache;
  unsigned blocks_per_token;
};

// (a, b) -> (a cos - b sin, b cos + a sin) for all pairs of x; calls put(d, value).
template <typename T, typename Put>
__device__ inline void RotatePairs(const LatentParams<T>& p, const T* x, int64_t token, const Put& put) {
  const int half = p.rope / 2;
  const int64_t at = int64_t{p.positions[token]} * half;
  for (int i = LaneId(); i < half; i += kWarpThreads) {
    const float a = ToFloat(x[i * p.pair_step]), b = ToFloat(x[i * p.pair_step + p.pair_other]);
    const float cos = p.cos[at + i], sin = p.sin[at + i];
    put(i * p.pair_step, FromFloat<T>(fmaf(a, cos, -(b * sin))));
    put(i * p.pair_step + p.pair_other, FromFloat<T>(fmaf(b, cos, a * sin)));
  }
}

template <typename T>
__global__ void __launch_bounds__(kLatentThreads) LatentKernel(LatentParams<T> p) {
  JoinStream();
  const int64_t token = blockIdx.x / p.blocks_per_token;
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads);
  const int head = static_cast<int>(blockIdx.x % p.blocks_per_token) * (kLatentThreads / kWarpThreads) + warp;
  if (head < p.num_heads) {
    const T* const x = p.queries + token * p.query_stride + int64_t{head} * (p.nope + p.rope) + p.nope;
    T* const to = p.out + token * p.out_stride + int64_t{head} * (p.latent + p.rope) + p.latent;
    RotatePairs(p, x, token, [&](int d, T value) { to[d] = value; });
  } else if (head == p.num_heads) {
    T* const row = p.row + token * p.row_stride;
    T* const cached = p.cache + int64_t{p.slots[token]} * (p.latent + p.rope);
    float squares = 0;
    for (int d = LaneId(); d < p.latent; d += kWarpThreads) squares = AddSquare(squares, ToFloat(row[d]));
    const float scale = rsqrtf(GroupSum(squares, kWarpThreads) / p.latent + p.eps);
    for (int d = LaneId(); d < p.latent; d += kWarpThreads)
      row[d] = cached[d] = FromFloat<T>(RmsNormed(ToFloat(row[d]), scale, p.norm[d]));
    RotatePairs(p, row + p.latent, token,
                [&](int d, T value) { row[p.latent + d] = cached[p.latent + d] = value; });
  }
}

}  // namespace

void LatentRopeAndCache(Device& device, const TensorView& row, const float* norm, double eps,
                        const TensorView& queries, int64_t num_heads, const LatentShape& shape,
                        const RopeTable& table, const AttentionBatch& batch, const KvCacheView& cache,
                        const TensorView& out) {
  if (row.rows == 0) return;
  DispatchAct(row.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    LatentParams<T> p{};
    p.row = row.template row<T>(0);
    p.row_stride = row.stride;
    p.norm = norm;
    p.eps = static_cast<float>(eps);
    p.queries = queries.template row<T>(0);
    p.query_stride = queries.stride;
    p.out = out.template row<T>(0);
    p.out_stride = out.stride;
    p.num_heads = static_cast<int>(num_heads);
    p.nope = static_cast<int>(shape.nope);
    p.rope = static_cast<int>(shape.rope);
    p.latent = static_cast<int>(shape.latent);
    p.pair_step = shape.interleaved ? 2 : 1;
    p.pair_other = shape.interleaved ? 1 : p.rope / 2;
    p.cos = table.cos;
    p.sin = table.sin;
    p.positions = batch.positions;
    p.slots = batch.slot_mapping;
    p.cache = static_cast<T*>(cache.data);
    constexpr int64_t kHeads = kLatentThreads / kWarpThreads;
    p.blocks_per_token = static_cast<unsigned>((num_heads + 1 + kHeads - 1) / kHeads);
    Launch(AsCuda(device), RowsConfig(row.rows * p.blocks_per_token, kLatentThreads), LatentKernel<T>, p);
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
