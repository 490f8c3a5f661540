#pragma once
// A block's tile of a product of many rows, with sums that have the same bits as the sums of gemv.cu: the
// device code of linear_tiles.cu, and of experts_linear.cu, where each tile has weights of its own.
//
// The usual tiled product: lines of k (64 elements) of the block's rows of x and w come through cp.async,
// three ahead; a warp makes 32 or 64 rows by 16 or 32 columns of the tile in registers. The order is unusual.
// Operands are read from shared memory by 16 bytes a lane, as gemv.cu reads operands from global memory, so
// that every mma adds the same products; and sums are made section by section, each from zero, and then added
// to the sums of the earlier sections, as gemv.cu adds up its warps: twice the registers for sums.

#include <cstdint>

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/gemv_plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kLineBytes = kGemvLine * 2;
constexpr int kLineChunks = kLineBytes / 16;

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

// The rows of x are those of the tile.
struct EveryRow {
  static constexpr bool kZeroFills = false;
  __device__ __forceinline__ int operator()(int row) const { return row; }
};

// Lines of kCount rows on their way into a stage, of which row r is row_of(r) of the matrix. The
// results of rows beyond the last are stored nowhere: such rows are read as the last row, or, where tiles may
// have few rows, as zeros. k beyond the end is read as zeros.
template <typename T, int kCount, int kThreads, typename RowOf>
__device__ __forceinline__ void LoadRows(const T* from, int64_t stride, int first, int end, int k_begin,
                                         int k_end, const RowOf& row_of, char* to) {
  static_assert(kCount * kLineChunks % kThreads == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kLineChunks;
  const int at = k_begin + chunk * 8;
#pragma unroll
  for (int i = 0; i < kCount * kLineChunks / kThreads; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kLineChunks + i * (kThreads / kLineChunks);
    const bool there = at < k_end && (!RowOf::kZeroFills || first + row < end);
    const T* source = from + row_of(min(first + row, end - 1)) * stride + (there ? at : 0);
    CpAsync16(to + ChunkOffset(row, chunk), source, there);
  }
}

template <typename T, int kRows, int kColumns, typename RowOf>
struct TileLoader {
  using Shape = TileShape<kRows, kColumns>;
  const LinearArgs& args;
  int num_stages;
  int first_row, first_column;
  const RowOf& row_of;
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
                                          k, args.k, row_of, stage);
      LoadRows<T, kColumns, Shape::kThreads>(static_cast<const T*>(args.w), args.k, first_column, args.n, k,
                                             args.k, EveryRow(), stage + kRows * kLineBytes);
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

// The block's tile of y, from row `first_row` and column `first_column` on, in `stages` stages.
template <typename T, typename Out, int kRows, int kColumns, typename RowOf>
__device__ __forceinline__ void MakeTile(const LinearArgs& args, int stages, int first_row, int first_column,
                                         const RowOf& row_of) {
  using Shape = TileShape<kRows, kColumns>;
  const TileLoader<T, kRows, kColumns, RowOf> loader{
      args, stages, first_row, first_column, row_of, SharedStorage<TileStage<Shape>>().bytes};
  const int lines = (args.k + kGemvLine - 1) / kGemvLine;
  const int warp_row = WarpId() / Shape::kColumnWarps * Shape::kWarpRows;
  const int warp_column = WarpId() % Shape::kColumnWarps * Shape::kWarpColumns;
  for (int i = 0; i < stages - 1; ++i) loader.Load(i, lines);
  TileSums<Shape> sums, section;
  sums.Clear();
  section.Clear();
  int section_end = args.section_lines;
  for (int line = 0; line < lines; ++line) {
    WaitForStage(stages);
    // Also: all warps are done with the stage that is loaded next.
    __syncthreads();
    loader.Load(line + stages - 1, lines);
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

}  // namespace
}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
