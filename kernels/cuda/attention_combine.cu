// The second kernel of decode: adds up contexts that several blocks had parts of.

#include "kernels/cuda/attention_scratch.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kCombineWarps = 4;

// Adds up a context's parts in order: a warp a row. Reads a record a block, and parts * (dims + 2) * 4 bytes
// a row from L2: bound by latency, so eight loads go out at once. Many small blocks, since most have nothing
// to do.
template <typename T>
__global__ void __launch_bounds__(kCombineWarps * 32) CombineKernel(AttentionParams p, PartsScratch scratch) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t block = blockIdx.x;
  const DecodeRecord& record = scratch.Record(block);
  const int row = static_cast<int>(blockIdx.y) * kCombineWarps + WarpId(), lane = LaneId();
  const int parts = record.parts, dims = scratch.dims;
  if (parts == 0) return;
  const int head = record.heads[row];
  if (head < 0) return;
  const auto part = [&](int i) {
    return i == 0 ? scratch.Slot(block - 1, 1) : scratch.Slot(block - 1 + i, 0);
  };
  float top = -INFINITY;
  for (int i = lane; i < parts; i += 32) top = fmaxf(top, part(i)[kDecodeRows * dims + row]);
  top = WarpMax(top);
  T* const out = static_cast<T*>(p.out) + record.row * p.out_stride + int64_t{head} * p.head_dim;
  for (int first_dim = 0; first_dim < p.head_dim; first_dim += 128) {
    const int d = first_dim + 4 * lane;
    const bool there = d < p.head_dim;
    Vec<float, 4> total{};
    float sum = 0;
    for (int base = 0; base < parts; base += 32) {
      const int own = base + lane;
      const float own_weight = own < parts ? Exp2Approx(part(own)[kDecodeRows * dims + row] - top) : 0.0f;
      sum += WarpSum(own < parts ? own_weight * part(own)[kDecodeRows * dims + kDecodeRows + row] : 0.0f);
#pragma unroll 8
      for (int i = base; i < min(base + 32, parts); ++i) {
        const float weight = ShflIdx(own_weight, i - base);
        const Vec<float, 4> x = there ? LoadVec<float, 4>(part(i) + row * dims + d) : Vec<float, 4>{};
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] = fmaf(weight, x[j], total[j]);
      }
    }
    sum = SumWithSink(p, head, top, sum);
    if (there) {
      StoreVec(reinterpret_cast<uint32_t*>(out + d),
               Vec<uint32_t, 2>{Pack2<T>(total[0] / sum, total[1] / sum),
                                Pack2<T>(total[2] / sum, total[3] / sum)});
    }
  }
}

}  // namespace

void CombineParts(CudaDevice& device, DataType act, const AttentionParams& params,
                  const PartsScratch& scratch, unsigned blocks) {
  const LaunchConfig config{.grid = dim3(blocks, kDecodeRows / kCombineWarps),
                            .block = dim3(kCombineWarps * 32),
                            .overlaps_previous = true};
  if (act == DataType::kBF16) {
    Launch(device, config, CombineKernel<bf16>, params, scratch);
  } else {
    Launch(device, config, CombineKernel<f16>, params, scratch);
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
