// QK-norm, rotary embedding and the write into the paged cache, in place on qkv. Bound by memory: q and k are
// read and written, v read (sizeof(T) each), k and v written to the cache; cosines and sines (4 * head_dim
// bytes a token) are read once a token from memory and then from L1. cache_layout.h describes the cache's
// layout.
//
// A few neighbouring lanes take a head of a token: each lane takes 16 bytes of the head's first half and the
// 16 bytes that these rotate with, so that a rotation needs no exchange, and a norm only a few shuffles
// within the group. Blocks of 128 threads: a decode of one token spreads over several multiprocessors, and a
// block's heads share their token's table rows.

#include "kernels/cuda/cache_layout.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

template <typename T, typename C>
struct QkParams {
  T* qkv;
  int64_t stride;
  C* cache;
  const float* q_norm;
  const float* k_norm;
  const float* cos;
  const float* sin;
  const float* q_scale;
  const int32_t* positions;
  const int32_t* slots;
  int num_heads, num_kv_heads, head_dim, block_size;
  int64_t run_size, run_header;  // of the cache, in elements
  float eps;
  float k_scale, v_scale;  // the factors of values before the cache
  int lanes;
  unsigned blocks_per_token;
};

// A thread's head: q heads first, then k, then v.
template <typename T, typename C>
struct Head {
  int64_t token;
  int index;
  int lane;
  bool in_range, is_q, is_v;

  __device__ explicit Head(const QkParams<T, C>& p)
      : token(blockIdx.x / p.blocks_per_token),
        index(static_cast<int>((blockIdx.x % p.blocks_per_token * blockDim.x + threadIdx.x) / p.lanes)),
        lane(static_cast<int>(threadIdx.x % p.lanes)),
        in_range(index < p.num_heads + 2 * p.num_kv_heads),
        is_q(index < p.num_heads),
        is_v(index >= p.num_heads + p.num_kv_heads) {}

  __device__ T* Row(const QkParams<T, C>& p) const {
    return p.qkv + token * p.stride + int64_t{index} * p.head_dim;
  }
  __device__ const float* Norm(const QkParams<T, C>& p) const {
    return is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
  }
  __device__ C* CacheRun(const QkParams<T, C>& p) const {
    const int kv = index - p.num_heads - (is_v ? p.num_kv_heads : 0);
    const int block = p.slots[token] / p.block_size;
    return p.cache + ((int64_t{block} * p.num_kv_heads + kv) * 2 + (is_v ? 1 : 0)) * p.run_size;
  }
  __device__ C* CacheRow(const QkParams<T, C>& p) const {
    return CacheRun(p) + p.run_header + int64_t{p.slots[token] % p.block_size} * p.head_dim;
  }
  // The token's scale in an int8 cache.
  __device__ float& TokenScale(const QkParams<T, C>& p) const {
    return reinterpret_cast<float*>(CacheRun(p))[p.slots[token] % p.block_size];
  }
  // The factor of the head's values after the rotation.
  __device__ float QueryScale(const QkParams<T, C>& p) const {
    return is_q && p.q_scale != nullptr ? p.q_scale[p.positions[token]] : 1.0f;
  }
  __device__ float CacheScale(const QkParams<T, C>& p) const { return is_v ? p.v_scale : p.k_scale; }
};

// (a, b) -> (a cos - b sin, b cos + a sin).
__device__ inline void Rotate(float cos, float sin, float* a, float* b) {
  const float first = fmaf(*a, cos, -(*b * sin));
  *b = fmaf(*b, cos, *a * sin);
  *a = first;
}

// The magnitude of x, ordered as numbers are, with NaN above all.
__device__ inline uint32_t MagnitudeBits(float x) { return FloatBits(x) & 0x7fffffffu; }

// The factor of a head's values before an int8 cache, from the largest magnitude. *scale: the factor of the
// cached values.
__device__ inline float I8Inverse(uint32_t largest_bits, float* scale) {
  const float largest = FloatOfBits(largest_bits);
  if (largest_bits >= 0x7f800000u) {
    *scale = NAN;
    return 0;
  }
  *scale = largest < kLeastI8Magnitude ? 0 : largest / 127;
  return largest < kLeastI8Magnitude ? 0 : 127 / largest;
}

template <typename C, int kWidth>
__device__ inline void StoreScaled(C* to, const float (&x)[kWidth], float scale) {
  float scaled[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) scaled[j] = sizeof(C) == 1 ? x[j] * scale : x[j];
  StoreFloats(to, scaled);
}

template <int kWidth, typename T>
__device__ inline void LoadFloats(const T* from, float (&x)[kWidth]) {
  constexpr int kPart = kWidth * sizeof(T) > 16 ? kVecSize<T> : kWidth;
#pragma unroll
  for (int i = 0; i < kWidth; i += kPart) {
    const Vec<T, kPart> part = LoadWide<kPart>(from + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) x[i + j] = ToFloat(part[j]);
  }
}

template <int kWidth, typename T, typename C>
__global__ void __launch_bounds__(128) QkVectorKernel(QkParams<T, C> p) {
  const Head<T, C> head(p);
  const int half = p.head_dim / 2, col = head.lane * kWidth;
  const bool active = head.in_range && col < half;
  const float* const norm = head.Norm(p);
  // No kernel writes norms, so norms may be on their way before the previous kernel has finished.
  float norm_a[kWidth] = {}, norm_b[kWidth] = {};
  if (active && norm != nullptr) {
    LoadFloats(norm + col, norm_a);
    LoadFloats(norm + half + col, norm_b);
  }
  JoinStream();
  T* const row = head.Row(p) + col;
  float a[kWidth] = {}, b[kWidth] = {};
  if (active) {
    LoadFloats(row, a);
    LoadFloats(row + half, b);
  }
  if (p.q_norm != nullptr || p.k_norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares = fmaf(a[j], a[j], fmaf(b[j], b[j], squares));
    const float scale = rsqrtf(GroupSum(squares, p.lanes) / p.head_dim + p.eps);
#pragma unroll
    for (int j = 0; j < kWidth && norm != nullptr; ++j) {
      a[j] = a[j] * scale * norm_a[j];
      b[j] = b[j] * scale * norm_b[j];
    }
  }
  if (active && p.cos != nullptr && !head.is_v) {
    const int64_t at = int64_t{p.positions[head.token]} * half + col;
    float cos[kWidth], sin[kWidth];
    LoadFloats(p.cos + at, cos);
    LoadFloats(p.sin + at, sin);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) Rotate(cos[j], sin[j], &a[j], &b[j]);
  }
  if (active && p.q_scale != nullptr && head.is_q) {
    const float q_scale = head.QueryScale(p);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      a[j] *= q_scale;
      b[j] *= q_scale;
    }
  }
  float scale = head.CacheScale(p);
  if constexpr (std::is_same_v<C, i8>) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) largest = max(largest, max(MagnitudeBits(a[j]), MagnitudeBits(b[j])));
    float token_scale;
    scale = I8Inverse(GroupMax(largest, p.lanes), &token_scale);
    if (active && !head.is_q && head.lane == 0) head.TokenScale(p) = token_scale;
  }
  if (!active) return;
  if (!head.is_v && (norm != nullptr || p.cos != nullptr || p.q_scale != nullptr)) {
    StoreFloats(row, a);
    StoreFloats(row + half, b);
  }
  if (head.is_q) return;
  C* const cached = head.CacheRow(p) + col;
  StoreScaled(cached, a, scale);
  StoreScaled(cached + half, b, scale);
}

// Any head_dim and alignment: a warp takes a head, element by element.
template <typename T, typename C>
__global__ void __launch_bounds__(128) QkElementKernel(QkParams<T, C> p) {
  JoinStream();
  const Head<T, C> head(p);
  if (!head.in_range) return;
  T* const row = head.Row(p);
  C* const cached = head.is_q ? nullptr : head.CacheRow(p);
  const float* const norm = head.Norm(p);
  float scale = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int d = head.lane; d < p.head_dim; d += kWarpThreads) {
      squares = fmaf(ToFloat(row[d]), ToFloat(row[d]), squares);
    }
    scale = rsqrtf(GroupSum(squares, kWarpThreads) / p.head_dim + p.eps);
    SyncWarp();  // Every lane's reads above come before any lane's writes below; shuffles order no memory.
  }
  const auto get = [&](int d) {
    return norm == nullptr ? ToFloat(row[d]) : ToFloat(row[d]) * scale * norm[d];
  };
  // Calls fn(d, x) with this lane's dims, once or more often: a lane reads only values that the lane itself
  // writes.
  const auto each = [&](const auto& fn) {
    if (p.cos == nullptr || head.is_v) {
      for (int d = head.lane; d < p.head_dim; d += kWarpThreads) fn(d, get(d));
      return;
    }
    const int half = p.head_dim / 2;
    const int64_t at = int64_t{p.positions[head.token]} * half;
    for (int d = head.lane; d < half; d += kWarpThreads) {
      float a = get(d), b = get(d + half);
      Rotate(p.cos[at + d], p.sin[at + d], &a, &b);
      fn(d, a);
      fn(d + half, b);
    }
  };
  float cache_scale = head.CacheScale(p);
  if constexpr (std::is_same_v<C, i8>) {
    uint32_t largest = 0;
    each([&](int, float x) { largest = max(largest, MagnitudeBits(x)); });
    float token_scale;
    cache_scale = I8Inverse(GroupMax(largest, kWarpThreads), &token_scale);
    if (!head.is_q && head.lane == 0) head.TokenScale(p) = token_scale;
  }
  const float q_scale = head.QueryScale(p);
  each([&](int d, float x) {
    x *= q_scale;
    if (!head.is_v) row[d] = FromFloat<T>(x);
    const float out[1] = {x};
    if (!head.is_q) StoreScaled(cached + d, out, cache_scale);
  });
}

template <typename T, typename C>
void LaunchQk(CudaDevice& device, const TensorView& qkv, int64_t num_heads, const HeadPlan& plan,
              QkParams<T, C> p, const KvCacheView& cache) {
  p.qkv = qkv.row<T>(0);
  p.stride = qkv.stride;
  p.cache = static_cast<C*>(cache.data);
  p.num_heads = static_cast<int>(num_heads);
  p.num_kv_heads = static_cast<int>(cache.num_kv_heads);
  p.head_dim = static_cast<int>(cache.head_dim);
  p.block_size = static_cast<int>(cache.block_size);
  p.run_size = CacheRunBytes(cache.dtype, cache.block_size, cache.head_dim) / SizeOf(cache.dtype);
  p.run_header = CacheRunHeader(cache.dtype, cache.block_size) / SizeOf(cache.dtype);
  p.k_scale = 1.0f / cache.k_scale;
  p.v_scale = 1.0f / cache.v_scale;
  p.lanes = plan.lanes;
  p.blocks_per_token = static_cast<unsigned>(plan.blocks_per_token);
  const LaunchConfig config = RowsConfig(qkv.rows * plan.blocks_per_token, plan.threads);
  if (plan.width > 0) {
    Launch(device, config, QkVectorKernel<kVecSize<T>, T, C>, p);
  } else {
    Launch(device, config, QkElementKernel<T, C>, p);
  }
}

}  // namespace

void QkNormRopeAndCache(Device& device, const TensorView& qkv, int64_t num_heads, const float* q_norm,
                        const float* k_norm, double eps, const RopeTable& rope, const AttentionBatch& batch,
                        const KvCacheView& cache) {
  if (qkv.rows == 0) return;
  const int64_t heads = num_heads + 2 * cache.num_kv_heads, element = SizeOf(qkv.dtype);
  const bool aligned = IsAlignedTo(qkv.data, 16) && qkv.stride * element % 16 == 0 &&
                       IsAlignedTo(cache.data, 16) && IsAlignedTo(q_norm, 16) && IsAlignedTo(k_norm, 16) &&
                       IsAlignedTo(rope.cos, 16) && IsAlignedTo(rope.sin, 16);
  const HeadPlan plan = PlanHeads(heads, cache.head_dim, element, aligned);
  DispatchAct(qkv.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto launch = [&](auto cache_tag) {
      using C = typename decltype(cache_tag)::type;
      QkParams<T, C> p{};
      p.q_norm = q_norm;
      p.k_norm = k_norm;
      p.cos = rope.cos;
      p.sin = rope.sin;
      p.q_scale = rope.q_scale;
      p.positions = batch.positions;
      p.slots = batch.slot_mapping;
      p.eps = static_cast<float>(eps);
      LaunchQk(AsCuda(device), qkv, num_heads, plan, p, cache);
    };
    if (cache.dtype == DataType::kF8E4M3) {
      launch(TypeTag<f8e4m3>{});
    } else if (cache.dtype == DataType::kI8) {
      launch(TypeTag<i8>{});
    } else {
      launch(tag);
    }
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
