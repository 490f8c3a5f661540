// Linear for many rows, with sums that have the same bits as the sums of gemv.cu. Batch invariance needs this
// kernel, because the library's order of addition varies with the number of rows.
//
// A block makes a tile of y, as linear_tiles.h describes.
//
// 128 by 128 tiles make 64 operations a byte from L2; Hopper's mma.sync reaches some 60 % of the tensor
// cores' peak (an estimate), which only wgmma would lift, and wgmma adds in yet another order.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/gemv_plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_tiles.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

// How a launch is cut: tiles along the rows and the columns of y, and stages.
struct TileCounts {
  int32_t rows;
  int32_t columns;
  int32_t stages;
};

// Blocks take tiles down groups of this many rows of tiles, then the next column: blocks that run at the same
// time share rows of w, and rows of x that are few enough to stay in L2.
constexpr int kRasterRows = 16;

// The block's tile, in the order of kRasterRows.
__device__ __forceinline__ void FindTile(const TileCounts& tiles, int& row_tile, int& column_tile) {
  const int per_group = kRasterRows * tiles.columns, block = static_cast<int>(blockIdx.x);
  const int first = block / per_group * kRasterRows, rows = min(kRasterRows, tiles.rows - first);
  row_tile = first + block % per_group % rows;
  column_tile = block % per_group / rows;
}

template <typename T, typename Out, int kRows, int kColumns>
__global__ void __launch_bounds__(TileShape<kRows, kColumns>::kThreads,
                                  TileShape<kRows, kColumns>::kBlocksPerSm)
    LinearTilesKernel(LinearArgs args, TileCounts tiles) {
  GridDependencyLaunch();
  GridDependencyWait();
  int row_tile, column_tile;
  FindTile(tiles, row_tile, column_tile);
  MakeTile<T, Out, kRows, kColumns>(args, tiles.stages, row_tile * kRows, column_tile * kColumns, EveryRow());
}

template <typename T, typename Out, int kRows, int kColumns>
void LaunchTiles(CudaDevice& device, const LinearTilesPlan& plan, const LinearArgs& args) {
  using Shape = TileShape<kRows, kColumns>;
  Launch(
      device,
      {.grid = dim3(static_cast<unsigned>(plan.row_tiles * plan.column_tiles)),
       .block = dim3(Shape::kThreads),
       .shared_bytes = plan.shared_bytes,
       .overlaps_previous = true},
      LinearTilesKernel<T, Out, kRows, kColumns>, args,
      TileCounts{static_cast<int32_t>(plan.row_tiles), static_cast<int32_t>(plan.column_tiles), plan.stages});
}

}  // namespace

void RunLinearTiles(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
                    const TensorView& y) {
  const ChipLimits& chip = device.chip();
  const LinearTilesPlan plan = PlanLinearTiles(chip.num_sms, chip.max_shared_bytes, x.rows, w.n);
  const LinearArgs args = MakeLinearArgs(x, w, bias, y);
  DispatchAct(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, float>) {
      const auto launch = [&](auto out) {
        using Out = typename decltype(out)::type;
        if (plan.tile_rows == 128) return LaunchTiles<T, Out, 128, 128>(device, plan, args);
        if (plan.tile_columns == 64) return LaunchTiles<T, Out, 64, 64>(device, plan, args);
        LaunchTiles<T, Out, 64, 32>(device, plan, args);
      };
      if (y.dtype == DataType::kF32) return launch(TypeTag<float>{});
      launch(TypeTag<T>{});
    }
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
