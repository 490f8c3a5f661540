// Linear for many rows, with sums that have the same bits as the sums of gemv.cu. Batch invariance needs this
// kernel, because the library's order of addition varies with the number of rows.
//
// The usual tiled product: a block makes a tile of y; lines of k (64 elements) of its rows of x and w come
// through cp.async, three ahead; a warp makes 32 or 64 rows by 16 or 32 columns of the tile in registers. The
// order is unusual. Operands are read from shared memory by 16 bytes a lane, as gemv.cu reads operands from
// global memory, so that every mma adds the same products; and sums are made section by section, each from
// zero, and then added to the sums of the earlier sections, as gemv.cu adds up its warps: twice the registers
// for sums.
//
// 128 by 128 tiles make 64 operations a byte from L2; Hopper's mma.sync reaches some 60 % of the tensor
// cores' peak (an estimate), which only wgmma would lift, and wgmma adds in yet another order.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/gemv_plan.h"
#include "kernels/cuda/launch.h"
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

constexpr int kLineBytes = kGemvLine * 2;
constexpr int kLineChunks = kLineBytes / 16;
// Blocks take tiles down groups of this many rows of tiles, then the next column: blocks that run at the same
// time share rows of w, and rows of x that are few enough to stay in L2.
constexpr int kRasterRows = 16;

// How a block's warps share the block's tile.
template <int kRows, int kColumns>
struct TileShape {
  static constexpr int kWarpRows = kRows == 128 ? 64 : 32;
  static constexpr int kWarpColumns = kColumns == 32 ? 16 : 32;
  static constexpr int kColumnWarps = kColumns / kWarpColumns;
  static constexpr int kThreads = kRows / kWarpRows * kColumnWarps * 32;
  static constexpr int kBlocksPerSm = kRows == 128 ? 1 : 3;
  static constexpr int kGroups = kWarpRows / 16;   // of 16 rows: an mma's
  static constexpr int kTiles = kWarpColumns / 8;  // of 8 columns: an mma's
  static constexpr int kStageBytes = (kRows + kColumns) * kLineBytes;
};

// The first of the stages, which the launch gives room for.
template <typename Shape>
struct alignas(128) TileStage {
  char bytes[Shape::kStageBytes];
};

// Returns the place of 16 bytes of a row's line in a stage. Rows lie one behind the other, odd rows with
// their halves exchanged: a quarter of a warp reads a half of each of two rows, and so reads from different
// banks.
__device__ __forceinline__ int ChunkOffset(int row, int chunk) {
  return row * kLineBytes + (chunk ^ (row & 1) << 2) * 16;
}

// Lines of kCount rows on their way into a stage; rows beyond the last are read as the last row, and nobody
// stores their results; k beyond the end is read as zeros.
template <typename T, int kCount, int kThreads>
__device__ __forceinline__ void LoadRows(const T* from, int64_t stride, int first, int end, int k_begin,
                                         int k_end, char* to) {
  static_assert(kCount * kLineChunks % kThreads == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kLineChunks;
  const int at = k_begin + chunk * 8;
#pragma unroll
  for (int i = 0; i < kCount * kLineChunks / kThreads; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kLineChunks + i * (kThreads / kLineChunks);
    const bool there = at < k_end;
    const T* source = from + min(first + row, end - 1) * stride + (there ? at : 0);
    CpAsync16(to + ChunkOffset(row, chunk), source, there);
  }
}

template <typename T, int kRows, int kColumns>
struct TileLoader {
  using Shape = TileShape<kRows, kColumns>;
  const LinearArgs& args;
  int num_stages;
  int first_row, first_column;
  char* stages;

  __device__ __forceinline__ char* Stage(int line) const {
    return stages + line % num_stages * Shape::kStageBytes;
  }
  // Queues line `line`, if it exists, as one group.
  __device__ __forceinline__ void Load(int line, int lines) const {
    if (line < lines) {
      char* const stage = Stage(line);
      const int k = line * kGemvLine;
      LoadRows<T, kRows, Shape::kThreads>(static_cast<const T*>(args.x), args.x_stride, first_row, args.rows,
                                          k, args.k, stage);
      LoadRows<T, kColumns, Shape::kThreads>(static_cast<const T*>(args.w), args.k, first_column, args.n, k,
                                             args.k, stage + kRows * kLineBytes);
    }
    CpAsyncCommit();
  }
};

// A warp's sums, in the layout of mma's fragments.
template <typename Shape>
struct TileSums {
  float at[Shape::kGroups][Shape::kTiles][4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& group : at) {
#pragma unroll
      for (auto& tile : group) {
#pragma unroll
        for (float& sum : tile) sum = 0;
      }
    }
  }
  __device__ __forceinline__ void Add(const TileSums& other) {
#pragma unroll
    for (int m = 0; m < Shape::kGroups; ++m) {
#pragma unroll
      for (int t = 0; t < Shape::kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[m][t][i] += other.at[m][t][i];
      }
    }
  }
};

// A line of a warp's rows of x and columns of w: the operands and the order of gemv.cu's MultiplyAdd.
template <typename T, typename Shape>
__device__ __forceinline__ void MultiplyLine(const char* x, const char* w, TileSums<Shape>& sums) {
  const int group = LaneId() / 4, lane = LaneId() % 4;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int chunk = part * 4 + lane;
    uint4 b[Shape::kTiles];
#pragma unroll
    for (int t = 0; t < Shape::kTiles; ++t)
      b[t] = *reinterpret_cast<const uint4*>(w + ChunkOffset(t * 8 + group, chunk));
#pragma unroll
    for (int m = 0; m < Shape::kGroups; ++m) {
      const uint4 a0 = *reinterpret_cast<const uint4*>(x + ChunkOffset(m * 16 + group, chunk));
      const uint4 a1 = *reinterpret_cast<const uint4*>(x + ChunkOffset(m * 16 + 8 + group, chunk));
      const uint32_t low[4] = {a0.x, a1.x, a0.y, a1.y}, high[4] = {a0.z, a1.z, a0.w, a1.w};
#pragma unroll
      for (int t = 0; t < Shape::kTiles; ++t) {
        const uint32_t b_low[2] = {b[t].x, b[t].y}, b_high[2] = {b[t].z, b[t].w};
        Mma16816<T>(sums.at[m][t], low, b_low);
        Mma16816<T>(sums.at[m][t], high, b_high);
      }
    }
  }
}

// The warp's part of y: its first row and column, and the tile's shape.
template <typename Out, typename Shape>
__device__ __forceinline__ void StoreTile(const LinearArgs& args, int first_row, int first_column,
                                          const TileSums<Shape>& sums) {
#pragma unroll
  for (int t = 0; t < Shape::kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = first_column + t * 8 + LaneId() % 4 * 2 + i;
      if (column >= args.n) continue;
      const float bias = args.bias == nullptr ? 0.0f : args.bias[column];
#pragma unroll
      for (int m = 0; m < Shape::kGroups; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first_row + m * 16 + half * 8 + LaneId() / 4;
          if (row >= args.rows) continue;
          float sum = sums.at[m][t][half * 2 + i];
          if (args.bias != nullptr) sum += bias;
          static_cast<Out*>(args.y)[row * args.y_stride + column] = FromFloat<Out>(sum);
        }
      }
    }
  }
}

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
  using Shape = TileShape<kRows, kColumns>;
  GridDependencyLaunch();
  GridDependencyWait();
  int row_tile, column_tile;
  FindTile(tiles, row_tile, column_tile);
  const TileLoader<T, kRows, kColumns> loader{args, tiles.stages, row_tile * kRows, column_tile * kColumns,
                                              SharedStorage<TileStage<Shape>>().bytes};
  const int lines = (args.k + kGemvLine - 1) / kGemvLine;
  const int warp_row = WarpId() / Shape::kColumnWarps * Shape::kWarpRows;
  const int warp_column = WarpId() % Shape::kColumnWarps * Shape::kWarpColumns;
  for (int i = 0; i < tiles.stages - 1; ++i) loader.Load(i, lines);
  TileSums<Shape> sums, section;
  sums.Clear();
  section.Clear();
  int section_end = args.section_lines;
  for (int line = 0; line < lines; ++line) {
    WaitForStage(tiles.stages);
    // Also: all warps are done with the stage that is loaded next.
    __syncthreads();
    loader.Load(line + tiles.stages - 1, lines);
    const char* const stage = loader.Stage(line);
    MultiplyLine<T, Shape>(stage + warp_row * kLineBytes, stage + (kRows + warp_column) * kLineBytes,
                           section);
    if (line + 1 != section_end && line + 1 != lines) continue;
    sums.Add(section);
    section.Clear();
    section_end += args.section_lines;
  }
  CpAsyncWait<0>();
  StoreTile<Out, Shape>(args, loader.first_row + warp_row, loader.first_column + warp_column, sums);
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
