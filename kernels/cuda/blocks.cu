// Copies of whole cache blocks, for copy on write. Bound by memory: each byte is read once and written once.
// One launch takes all layers (256 at most: their pointers travel in the kernel's arguments, since the
// pointers are the host's). A block of 256 threads moves 16 KB, each thread four independent vectors.

#include <algorithm>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int64_t kLayersPerLaunch = 256;

struct LayerPointers {
  void* data[kLayersPerLaunch];
};

using Word16 = Vec<uint32_t, 4>;

template <typename Word>
__global__ void __launch_bounds__(256) CopyKernel(const LayerPointers layers, const int32_t* src,
                                                  const int32_t* dst, int64_t words, unsigned pieces) {
  JoinStream();
  const unsigned copy = blockIdx.x / pieces;
  Word* const data = static_cast<Word*>(layers.data[blockIdx.y]);
  const Word* const from = data + src[copy] * words;
  Word* const to = data + dst[copy] * words;
  const int64_t first = int64_t{blockIdx.x % pieces} * blockDim.x * kCopyUnroll + threadIdx.x;
  Word held[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const int64_t word = first + i * int64_t{blockDim.x};
    if (word < words) held[i] = from[word];
  }
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const int64_t word = first + i * int64_t{blockDim.x};
    if (word < words) to[word] = held[i];
  }
}

}  // namespace

// No copy of a call may touch a block that a second copy writes: copies run at the same time.
void CopyBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const int32_t* src,
                const int32_t* dst, int64_t count) {
  if (num_layers == 0 || count == 0) return;
  const KvCacheView& view = layers[0];
  const int64_t bytes = SOMNUS_CUDA_NAMESPACE::KvBlockBytes(device, view.dtype, view.block_size,
                                                            view.num_kv_heads, view.head_dim, view.latent);
  const bool aligned = std::all_of(layers, layers + num_layers,
                                   [](const KvCacheView& layer) { return IsAlignedTo(layer.data, 16); });
  const CopyPlan plan = PlanCopy(bytes, aligned);
  if (plan.words == 0) return;
  for (int64_t begin = 0; begin < num_layers; begin += kLayersPerLaunch) {
    const int64_t n = std::min(kLayersPerLaunch, num_layers - begin);
    LayerPointers pointers{};
    for (int64_t i = 0; i < n; ++i) pointers.data[i] = layers[begin + i].data;
    LaunchConfig config = RowsConfig(count * plan.pieces, plan.threads);
    config.grid.y = static_cast<unsigned>(n);
    const auto pieces = static_cast<unsigned>(plan.pieces);
    if (plan.word == 16) {
      Launch(AsCuda(device), config, CopyKernel<Word16>, pointers, src, dst, plan.words, pieces);
    } else {
      Launch(AsCuda(device), config, CopyKernel<uint8_t>, pointers, src, dst, plan.words, pieces);
    }
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
