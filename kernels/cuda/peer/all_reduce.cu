// All-reduce, all-gather, and all-reduce + add + RMSNorm over peer memory. Below some 256 KiB the collectives
// are bound by latency: a stamp and a poll over NVLink, about 2 us a meeting (both numbers are estimates);
// above by the links, which carry (n - 1) messages one-shot and 2 (n - 1) / n two-shot. Each input is first
// copied into the rank's exported buffer (read and written once more, from L2): inputs lie in memory that
// sleeps, which no peer can map. Threads move 16 bytes, and have all ranks' loads in flight at once.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/peer/peer_memory.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

// This thread's vectors: first, first + step, ... The vectors are the same on every rank, so that a block
// only reads data that blocks of the same number have written.
struct Stride {
  int64_t first;
  int64_t step;
};
__device__ inline Stride ThreadStride() {
  return {int64_t{blockIdx.x} * blockDim.x + threadIdx.x, int64_t{gridDim.x} * blockDim.x};
}

// Vectors of this rank's own arrays, which need not be aligned; buffers are. The cut into vectors must not
// depend on that: block b of every rank has to take the same vectors.
template <bool kAligned, typename T>
__device__ inline Vec16<T> LoadOwn(const T* from) {
  if constexpr (kAligned) {
    return LoadVec<T, kVecSize<T>>(from);
  } else {
    Vec16<T> v;
#pragma unroll
    for (int j = 0; j < kVecSize<T>; ++j) v[j] = from[j];
    return v;
  }
}
template <bool kAligned, typename T>
__device__ inline void StoreOwn(T* to, const Vec16<T>& v) {
  if constexpr (kAligned) {
    StoreVec(to, v);
  } else {
#pragma unroll
    for (int j = 0; j < kVecSize<T>; ++j) to[j] = v[j];
  }
}

// One-shot: every rank reads the whole buffer of every rank. Block 0 does the tail, which is less than a
// vector.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxPeerThreads, kPeerBlocksPerSm)
    OneShotKernel(const __grid_constant__ PeerView group, T* data, int64_t count) {
  constexpr int kWidth = kVecSize<T>;
  PeerShared& shared = SharedStorage<PeerShared>();
  const uint64_t call = ThisCall(group);
  const Stride mine = ThreadStride();
  const int64_t vectors = count / kWidth, tail = vectors * kWidth + mine.first;
  T* const own = PeerBuffer<T>(group, group.rank, call);
  for (int64_t i = mine.first; i < vectors; i += mine.step) {
    StoreVec(own + i * kWidth, LoadOwn<kAligned>(data + i * kWidth));
  }
  if (tail < count) own[tail] = data[tail];
  if (Meet(group, 0, call, shared)) {
    for (int64_t i = mine.first; i < vectors; i += mine.step) {
      StoreOwn<kAligned>(data + i * kWidth, SumOfPeers<T, kWidth>(group, call, i * kWidth));
    }
    if (tail < count) data[tail] = SumOfPeers<T, 1>(group, call, tail)[0];
  }
  Leave(group, call);
}

// Two-shot: rank r sums part r, in place in its own buffer (no other rank reads that part of the buffer
// before the second meeting), then all ranks gather the parts. Every rank sums the tail.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxPeerThreads, kPeerBlocksPerSm)
    TwoShotKernel(const __grid_constant__ PeerView group, T* data, int64_t count) {
  constexpr int kWidth = kVecSize<T>;
  PeerShared& shared = SharedStorage<PeerShared>();
  const uint64_t call = ThisCall(group);
  const Stride mine = ThreadStride();
  const int64_t vectors = count / kWidth, tail = vectors * kWidth + mine.first;
  const auto part = [&](int rank) { return vectors * rank / group.world_size; };
  T* const own = PeerBuffer<T>(group, group.rank, call);
  for (int r = 0; r < group.world_size; ++r) {
    for (int64_t i = part(r) + mine.first; i < part(r + 1); i += mine.step) {
      StoreVec(own + i * kWidth, LoadOwn<kAligned>(data + i * kWidth));
    }
  }
  if (tail < count) own[tail] = data[tail];
  bool together = Meet(group, 0, call, shared);
  if (together) {
    for (int64_t i = part(group.rank) + mine.first; i < part(group.rank + 1); i += mine.step) {
      const Vec<T, kWidth> sum = SumOfPeers<T, kWidth>(group, call, i * kWidth);
      StoreVec(own + i * kWidth, sum);
      StoreOwn<kAligned>(data + i * kWidth, sum);
    }
    if (tail < count) data[tail] = SumOfPeers<T, 1>(group, call, tail)[0];
    together = Meet(group, 1, call, shared);
  }
  for (int r = 0; together && r < group.world_size; ++r) {
    if (r == group.rank) continue;
    const T* const sums = PeerBuffer<T>(group, r, call);
    for (int64_t i = part(r) + mine.first; i < part(r + 1); i += mine.step) {
      StoreOwn<kAligned>(data + i * kWidth, LoadVec<T, kWidth>(sums + i * kWidth));
    }
  }
  Leave(group, call);
}

// Unit: the widest type of 1, 4 or 16 bytes to which this rank's addresses are aligned; 16, 4 or 1 units are
// a vector. stride: bytes between ranks in `out`.
template <typename Unit>
__global__ void __launch_bounds__(kMaxPeerThreads, kPeerBlocksPerSm)
    GatherKernel(const __grid_constant__ PeerView group, const char* in, int64_t bytes, char* out,
                 int64_t stride) {
  constexpr int kBytes = 16, kUnits = kBytes / sizeof(Unit);
  PeerShared& shared = SharedStorage<PeerShared>();
  const uint64_t call = ThisCall(group);
  const Stride mine = ThreadStride();
  const int64_t vectors = bytes / kBytes, tail = vectors * kBytes + mine.first;
  char* const own = PeerBuffer<char>(group, group.rank, call);
  for (int64_t i = mine.first; i < vectors; i += mine.step) {
    const Unit* const from = reinterpret_cast<const Unit*>(in + i * kBytes);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) reinterpret_cast<Unit*>(own + i * kBytes)[j] = from[j];
  }
  if (tail < bytes) own[tail] = in[tail];
  if (Meet(group, 0, call, shared)) {
    for (int r = 0; r < group.world_size; ++r) {
      const char* const theirs = PeerBuffer<char>(group, r, call);
      char* const to = out + r * stride;
      for (int64_t i = mine.first; i < vectors; i += mine.step) {
        const Unit* const from = reinterpret_cast<const Unit*>(theirs + i * kBytes);
#pragma unroll
        for (int j = 0; j < kUnits; ++j) reinterpret_cast<Unit*>(to + i * kBytes)[j] = from[j];
      }
      if (tail < bytes) to[tail] = theirs[tail];
    }
  }
  Leave(group, call);
}

template <typename D, typename T>
struct PeerNormParams {
  const D* delta;  // contiguous
  float* residual;
  int64_t residual_stride;
  const float* weight;
  T* out;
  int64_t out_stride;
  int rows;
  int cols;
  float eps;
};

// Norms one row, once every rank's row is in its buffer. A thread reads its part of the residual again, from
// L1 or L2.
template <int kWidth, typename D, typename T>
__device__ inline void NormRow(const PeerView& group, const PeerNormParams<D, T>& p, uint64_t call, int row,
                               PeerShared& shared) {
  float* const residual = p.residual + row * p.residual_stride;
  T* const out = p.out + row * p.out_stride;
  const int first = static_cast<int>(threadIdx.x) * kWidth, step = static_cast<int>(blockDim.x) * kWidth;
  float squares = 0;
  for (int col = first; col < p.cols; col += step) {
    Vec<float, kWidth> x = LoadWide<kWidth>(residual + col);
    const Vec<D, kWidth> sum = SumOfPeers<D, kWidth>(group, call, int64_t{row} * p.cols + col);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[j] += ToFloat(sum[j]);
      squares = AddSquare(squares, x[j]);
    }
    StoreVec(residual + col, x);
  }
  const float scale = NormScale(squares, p.cols, p.eps, shared.sums);
  for (int col = first; col < p.cols; col += step) {
    const Vec<float, kWidth> x = LoadWide<kWidth>(residual + col);
    const Vec<float, kWidth> weight = LoadWide<kWidth>(p.weight + col);
    float y[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = RmsNormed(x[j], scale, weight[j]);
    StoreFloats(out + col, y);
  }
}

// One-shot by rows: a block takes row b, b + blocks, ...
template <int kWidth, typename D, typename T>
__global__ void __launch_bounds__(kMaxPeerThreads, kPeerBlocksPerSm)
    NormKernel(const __grid_constant__ PeerView group, const __grid_constant__ PeerNormParams<D, T> p) {
  PeerShared& shared = SharedStorage<PeerShared>();
  const uint64_t call = ThisCall(group);
  D* const own = PeerBuffer<D>(group, group.rank, call);
  const int first = static_cast<int>(threadIdx.x) * kWidth, step = static_cast<int>(blockDim.x) * kWidth;
  for (int row = static_cast<int>(blockIdx.x); row < p.rows; row += static_cast<int>(gridDim.x)) {
    const int64_t begin = int64_t{row} * p.cols;
    for (int col = first; col < p.cols; col += step) {
      StoreVec(own + begin + col, LoadWide<kWidth>(p.delta + begin + col));
    }
  }
  if (Meet(group, 0, call, shared)) {
    for (int row = static_cast<int>(blockIdx.x); row < p.rows; row += static_cast<int>(gridDim.x)) {
      NormRow<kWidth>(group, p, call, row, shared);
      __syncthreads();  // before the next row's sums
    }
  }
  Leave(group, call);
}

LaunchConfig Config(const PeerPlan& plan) {
  return {dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
          static_cast<int64_t>(sizeof(PeerShared))};
}

template <bool kAligned, typename T>
void LaunchReduce(CudaDevice& device, const PeerView& group, const PeerPlan& plan, T* data, int64_t count) {
  Launch(device, Config(plan), plan.two_shot ? TwoShotKernel<T, kAligned> : OneShotKernel<T, kAligned>, group,
         data, count);
}

template <typename D, typename T>
void LaunchNorm(CudaDevice& device, const PeerView& group, const PeerPlan& plan, const TensorView& residual,
                const TensorView& delta, const float* weight, float eps, const TensorView& out) {
  const PeerNormParams<D, T> p = {.delta = static_cast<const D*>(delta.data),
                                  .residual = static_cast<float*>(residual.data),
                                  .residual_stride = residual.stride,
                                  .weight = weight,
                                  .out = static_cast<T*>(out.data),
                                  .out_stride = out.stride,
                                  .rows = static_cast<int>(out.rows),
                                  .cols = static_cast<int>(out.cols),
                                  .eps = eps};
  // The op's threads and vectors, so that squares are added in the op's order: the same bits, fused or not. A
  // rank with differently aligned arrays may use other threads and vectors: ranks meet by blocks, and a
  // block's rows are the same on all ranks.
  const bool vectors = TakesVectors(4, out.cols, {residual, delta, out}) && IsAlignedTo(weight, 16);
  const NormPlan norm = PlanNorm(out.cols, vectors);
  static_assert(kNormThreads <= kMaxPeerThreads && kWarpThreads >= kMaxPeers);
  LaunchConfig config = Config(plan);
  config.block = dim3(static_cast<unsigned>(norm.threads));
  Launch(device, config, norm.per_thread > 0 ? NormKernel<4, D, T> : NormKernel<1, D, T>, group, p);
}

}  // namespace

void QueuePeerReduce(CudaDevice& device, const PeerView& group, int64_t one_shot_bytes, void* data,
                     int64_t count, DataType type) {
  const PeerPlan plan = PlanPeerReduce(count * SizeOf(type), group.world_size, one_shot_bytes);
  DispatchAct(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const values = static_cast<T*>(data);
    if (IsAlignedTo(data, 16)) {
      LaunchReduce<true>(device, group, plan, values, count);
    } else {
      LaunchReduce<false>(device, group, plan, values, count);
    }
  });
}

void QueuePeerGather(CudaDevice& device, const PeerView& group, const void* in, int64_t bytes, void* out,
                     int64_t stride) {
  const auto divides = [&](int64_t unit) {
    return IsAlignedTo(in, unit) && IsAlignedTo(out, unit) && stride % unit == 0;
  };
  auto* const kernel = divides(16)  ? GatherKernel<uint4>
                       : divides(4) ? GatherKernel<uint32_t>
                                    : GatherKernel<uint8_t>;
  Launch(device, Config(PlanPeerGather(bytes)), kernel, group, static_cast<const char*>(in), bytes,
         static_cast<char*>(out), stride);
}

bool QueuePeerNorm(CudaDevice& device, const PeerView& group, int64_t one_shot_bytes,
                   const TensorView& residual, const TensorView& delta, const float* weight, double eps,
                   const TensorView& out) {
  const int64_t row_bytes = delta.cols * SizeOf(delta.dtype);
  const PeerPlan plan = PlanPeerNorm(delta.rows, row_bytes, one_shot_bytes);
  if (plan.blocks == 0 || delta.rows * row_bytes > group.buffer_bytes) return false;
  bool queued = false;
  DispatchAct(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto launch = [&](auto sum) {
      using D = typename decltype(sum)::type;
      LaunchNorm<D, T>(device, group, plan, residual, delta, weight, static_cast<float>(eps), out);
      queued = true;
    };
    if (delta.dtype == out.dtype) {
      launch(TypeTag<T>{});
    } else if (delta.dtype == DataType::kF32) {
      launch(TypeTag<float>{});
    }
  });
  return queued;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
