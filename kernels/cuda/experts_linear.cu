// Products with the rows of each expert: one launch over all experts. A block makes a tile of kExpertTileRows
// rows of one expert, which the routing lists; there are as many blocks as the most tiles need, and those
// without a tile end at once, so that the host need not know how many rows an expert has.
//
// bf16 and f16: the tiles of linear_tiles.h, so a row has the bits that Linear gives it with batch
// invariance. With a row or two for each expert the weights' bytes are the floor: 32 columns of 128 bytes,
// three lines ahead, of three blocks on each multiprocessor, keep 36 KiB in flight; rows that a tile lacks
// are not read. f32 and odd shapes: element by element.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows_plan.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kTileRows = static_cast<int>(kExpertTileRows), kTileColumns = 32;
constexpr int kTileStages = 4;

struct ExpertArgs {
  LinearArgs linear;        // of expert 0, without the rows
  const int32_t* begin;     // ExpertRouting's
  const int32_t* tiles;     // ExpertRouting's
  const int32_t* token_of;  // ExpertRouting's, or nullptr: x has a row for each row
  int64_t weight_stride;    // bytes
  int64_t bias_stride;
};

// The row of x.
struct ExpertRow {
  static constexpr bool kZeroFills = true;
  const int32_t* token_of;
  __device__ __forceinline__ int operator()(int row) const {
    return token_of == nullptr ? row : token_of[row];
  }
};

// Sets `linear` to the product of the block's expert, whose rows end at linear.rows, and returns the tile's
// first row; -1: the block has no tile.
__device__ __forceinline__ int FindExpertTile(const ExpertArgs& args, int tile, LinearArgs& linear) {
  const int expert = args.tiles[2 * tile];
  if (expert < 0) return -1;
  linear = args.linear;
  linear.w = static_cast<const char*>(linear.w) + expert * args.weight_stride;
  if (linear.bias != nullptr) linear.bias += expert * args.bias_stride;
  linear.rows = args.begin[expert + 1];
  return args.tiles[2 * tile + 1];
}

template <typename T, typename Out>
__global__ void __launch_bounds__(TileShape<kTileRows, kTileColumns>::kThreads, 3)
    ExpertTilesKernel(ExpertArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  LinearArgs linear;
  const int row = FindExpertTile(args, static_cast<int>(blockIdx.y), linear);
  if (row < 0) return;
  MakeTile<T, Out, kTileRows, kTileColumns>(
      linear, kTileStages, row, static_cast<int>(blockIdx.x) * kTileColumns, ExpertRow{args.token_of});
}

constexpr int kExpertThreads = 128;

// A thread makes a column of some rows of a tile. Reads the weights once for each row.
template <typename T, typename Out>
__global__ void __launch_bounds__(kExpertThreads) ExpertPlainKernel(ExpertArgs args) {
  GridDependencyWait();
  LinearArgs linear;
  const int first = FindExpertTile(args, static_cast<int>(blockIdx.y), linear);
  const int column = static_cast<int>(blockIdx.x) * kExpertThreads + static_cast<int>(threadIdx.x);
  if (first < 0 || column >= linear.n) return;
  const T* const w = static_cast<const T*>(linear.w) + static_cast<int64_t>(column) * linear.k;
  const float bias = linear.bias == nullptr ? 0.0f : linear.bias[column];
  for (int row = first; row < min(first + kTileRows, linear.rows); ++row) {
    const T* const x = static_cast<const T*>(linear.x) + ExpertRow{args.token_of}(row)*linear.x_stride;
    float sum = 0;
    for (int k = 0; k < linear.k; ++k) sum = fmaf(ToFloat(x[k]), ToFloat(w[k]), sum);
    static_cast<Out*>(linear.y)[row * linear.y_stride + column] = FromFloat<Out>(sum + bias);
  }
}

template <typename T, typename Out>
void LaunchExperts(CudaDevice& device, const ExpertArgs& args, int64_t tiles, bool vectors) {
  const auto grid = [&](int columns) {
    return dim3(static_cast<unsigned>(CeilDiv(args.linear.n, columns)), static_cast<unsigned>(tiles));
  };
  if constexpr (!std::is_same_v<T, float>) {
    using Shape = TileShape<kTileRows, kTileColumns>;
    if (vectors) {
      return Launch(device,
                    {.grid = grid(kTileColumns),
                     .block = dim3(Shape::kThreads),
                     .shared_bytes = kTileStages * static_cast<int64_t>(sizeof(TileStage<Shape>)),
                     .overlaps_previous = true},
                    ExpertTilesKernel<T, Out>, args);
    }
  }
  Launch(device, {.grid = grid(kExpertThreads), .block = dim3(kExpertThreads)}, ExpertPlainKernel<T, Out>,
         args);
}

}  // namespace

void ExpertsLinear(Device& device, const TensorView& x, ExpertInput input, const ExpertRouting& routing,
                   const ExpertWeight& w, const ExpertBias& bias, const TensorView& y) {
  CudaDevice& cuda = AsCuda(device);
  const ExpertArgs args{.linear = MakeLinearArgs(x, w.first, bias.data, y),
                        .begin = routing.begin,
                        .tiles = routing.tiles,
                        .token_of = input == ExpertInput::kTokens ? routing.token_of : nullptr,
                        .weight_stride = w.stride,
                        .bias_stride = bias.stride};
  const int64_t tiles = ExpertTiles(routing.NumPairs(), routing.num_experts);
  const int64_t width = 16 / SizeOf(w.first.dtype);
  const bool vectors = IsAlignedTo(x.data, 16) && IsAlignedTo(w.first.data, 16) && w.stride % 16 == 0 &&
                       w.first.k % width == 0 && x.stride % width == 0;
  DispatchAct(w.first.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (y.dtype == DataType::kF32) return LaunchExperts<T, float>(cuda, args, tiles, vectors);
    LaunchExperts<T, T>(cuda, args, tiles, vectors);
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
