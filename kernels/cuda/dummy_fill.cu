// FillRandom: weights from the counter-based generator, the same as on the CPU.
#include "kernels/counter_random.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kFillThreads = 256;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

__device__ inline float RandomWeight(uint64_t i, uint64_t seed, float scale) {
  const uint32_t word = CounterBits(static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), seed,
                                    [](uint32_t a, uint32_t b) { return MulHi(a, b); });
  return static_cast<float>(static_cast<int32_t>(word)) * kSignedWordUnit * scale;
}

// Writes each element once, 16 bytes a store. Bound by the generator (by estimate some 60 instructions an
// element, about four times the time of bf16's stores).
template <typename T>
__global__ void __launch_bounds__(kFillThreads)
    FillRandomKernel(T* data, int64_t count, uint64_t seed, float scale) {
  constexpr int kWidth = kVecSize<T>;
  const int64_t step = int64_t{gridDim.x} * kFillThreads * kWidth;
  for (int64_t i = (int64_t{blockIdx.x} * kFillThreads + threadIdx.x) * kWidth; i < count; i += step) {
    Vec16<T> v;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      v[j] = FromFloat<T>(RandomWeight(static_cast<uint64_t>(i + j), seed, scale));
    if (i + kWidth <= count) {
      StoreVec(data + i, v);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (i + j < count) data[i + j] = v[j];
      }
    }
  }
}

}  // namespace

void FillRandom(Device& device, void* data, DataType dtype, int64_t count, uint64_t seed, float scale) {
  CudaDevice& cuda = AsCuda(device);
  const bool known = DispatchAct(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t per_block = kFillThreads * kVecSize<T>;
    const int64_t blocks = std::min(kMaxBlocks, (count + per_block - 1) / per_block);
    Launch(cuda, {dim3(static_cast<unsigned>(blocks)), dim3(kFillThreads), 0}, FillRandomKernel<T>,
           static_cast<T*>(data), count, seed, scale);
  });
  if (!known) cuda.Record(absl::InvalidArgumentError("random weights are f32, bf16 or f16"));
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
