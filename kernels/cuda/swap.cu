// Copies of whole cache blocks between the cache and a pool in pinned host memory. Bound by the bus: each
// byte crosses the bus once. By a kernel over the pool's mapped addresses and not by copies of the runtime: a
// block of one layer is 4 to 64 KB (8 KV heads of 128 dims in bf16: 64 KB; a rank of eight in f8: 4 KB),
// which a bus of 55 GB/s carries in 0.1 to 1.2 us, while every cudaMemcpyAsync costs the host and the copy
// engine two or more (estimates, all three); a swap of a sequence would be hundreds to thousands of such
// copies, and is one launch here.
//
// On the stream of swaps, beside the ops: the bus is idle while a step computes. What can overlap follows
// from the order of steps. A swap to the host reads after the steps before it, which may have written its
// blocks, and overlaps with its own step as far as that does not write them; the worker knows which of them
// it gives out again (BeginStep in worker/worker_kv_cache.cc). A swap to the device overlaps with
// nothing: it writes blocks that the step before may still use, and its own step reads them.
//
// A few blocks of threads are enough: 32 of 256 threads with four 16-byte vectors each keep 512 KB in flight,
// several times the bytes that the bus carries in its latency of 1 to 2 us. The other multiprocessors stay
// free.

#include <algorithm>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

// The most layers and swaps of a launch: both travel in the kernel's arguments, 3 KB of at most 4.
constexpr int64_t kSwapLayers = 256;
constexpr int64_t kSwapsPerLaunch = 128;
constexpr int64_t kMaxGrid = 32;

struct SwapArgs {
  void* layers[kSwapLayers];
  BlockSwap swaps[kSwapsPerLaunch];
  void* pool;          // of the first layer
  int64_t pool_words;  // from one block of the pool to the next
  int64_t words;       // of a block of one layer
  unsigned num_layers, pieces, items;
};

using Word16 = Vec<uint32_t, 4>;

template <typename Word, bool kToHost>
__global__ void __launch_bounds__(256) SwapKernel(const SwapArgs args) {
  JoinStream();
  for (unsigned item = blockIdx.x; item < args.items; item += gridDim.x) {
    const unsigned layer = item / args.pieces % args.num_layers;
    const BlockSwap swap = args.swaps[item / args.pieces / args.num_layers];
    Word* const cached = static_cast<Word*>(args.layers[layer]) + swap.device_block * args.words;
    Word* const pooled =
        static_cast<Word*>(args.pool) + swap.host_block * args.pool_words + layer * args.words;
    const Word* const from = kToHost ? cached : pooled;
    Word* const to = kToHost ? pooled : cached;
    const int64_t first = int64_t{item % args.pieces} * blockDim.x * kCopyUnroll + threadIdx.x;
    Word held[kCopyUnroll];
#pragma unroll
    for (int i = 0; i < kCopyUnroll; ++i) {
      const int64_t word = first + i * int64_t{blockDim.x};
      if (word < args.words) held[i] = from[word];
    }
#pragma unroll
    for (int i = 0; i < kCopyUnroll; ++i) {
      const int64_t word = first + i * int64_t{blockDim.x};
      if (word < args.words) to[word] = held[i];
    }
  }
}

template <typename Word>
void LaunchSwap(CudaDevice& device, cudaStream_t stream, const LaunchConfig& config, SwapDirection direction,
                const SwapArgs& args) {
  if (direction == SwapDirection::kToHost) {
    Launch(device, stream, config, SwapKernel<Word, true>, args);
  } else {
    Launch(device, stream, config, SwapKernel<Word, false>, args);
  }
}

}  // namespace

void SwapBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const KvHostPool& pool,
                SwapDirection direction, const BlockSwap* swaps, int64_t count) {
  if (num_layers == 0 || count == 0) return;
  CudaDevice& cuda = AsCuda(device);
  void* mapped = nullptr;
  const cudaError_t error = cudaHostGetDevicePointer(&mapped, pool.data, 0);
  if (error != cudaSuccess) return cuda.Record(error, "SwapBlocks: the pool is no pinned memory");
  const KvCacheView& view = layers[0];
  const int64_t bytes = SOMNUS_CUDA_NAMESPACE::KvBlockBytes(device, view.dtype, view.block_size,
                                                            view.num_kv_heads, view.head_dim, view.latent);
  const bool aligned = IsAlignedTo(mapped, 16) &&
                       std::all_of(layers, layers + num_layers,
                                   [](const KvCacheView& layer) { return IsAlignedTo(layer.data, 16); });
  const CopyPlan plan = PlanCopy(bytes, aligned);
  if (plan.words == 0) return;
  const cudaStream_t stream = cuda.swaps().Begin();
  if (stream == nullptr) return;
  SwapArgs args{};
  args.words = plan.words;
  args.pool_words = plan.words * num_layers;
  args.pieces = static_cast<unsigned>(plan.pieces);
  for (int64_t layer = 0; layer < num_layers; layer += kSwapLayers) {
    args.num_layers = static_cast<unsigned>(std::min(kSwapLayers, num_layers - layer));
    for (unsigned i = 0; i < args.num_layers; ++i) args.layers[i] = layers[layer + i].data;
    args.pool = static_cast<char*>(mapped) + layer * bytes;
    for (int64_t first = 0; first < count; first += kSwapsPerLaunch) {
      const int64_t n = std::min(kSwapsPerLaunch, count - first);
      std::copy_n(swaps + first, n, args.swaps);
      args.items = static_cast<unsigned>(n) * args.num_layers * args.pieces;
      LaunchConfig config = RowsConfig(std::min<int64_t>(kMaxGrid, args.items), plan.threads);
      config.overlaps_previous = false;  // the previous entry of this stream is an event, or waits for the
                                         // bus
      plan.word == 16 ? LaunchSwap<Word16>(cuda, stream, config, direction, args)
                      : LaunchSwap<uint8_t>(cuda, stream, config, direction, args);
    }
  }
  cuda.swaps().End();
  if (direction == SwapDirection::kToDevice) cuda.AwaitSwaps();
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
