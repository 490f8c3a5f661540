#pragma once
// Which way a Linear goes and how our kernels for it are cut into blocks. Plain numbers: no CUDA here.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// kGemv: our kernels for few rows, bound by reading the weights once. kGemm: the library. kTiles: our kernel
// for many rows with the same sums as the GEMV. kPlain: our slow kernel for everything else.
enum class LinearRoute { kNothing, kGemv, kGemm, kTiles, kPlain };

struct LinearShape {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  DataType act = DataType::kBF16;
  // x's and w's rows all start at multiples of 16 bytes and k is whole vectors of 16 bytes.
  bool vectors = false;
};

// Rows that the GEMV kernels take: two halves of the 16 rows of an mma, and for f32 as many as registers
// hold.
inline constexpr int64_t kMaxGemvRows = 16;
inline constexpr int64_t kMaxGemvRowsF32 = 8;

// Chosen by the shape alone, so that a captured graph and an eager step go the same way. Up to 16 rows the
// weights' bytes are the floor, and our kernel reads the weights once, at any n: on an H100 at 0.80 to 1.00
// of the bandwidth of copies for 1 and 8 rows of an 8B model (docs/gpu_verification.md). `own_kernels`: only
// our kernels, which make the same bits of a row for any number of rows.
LinearRoute RouteLinear(const LinearShape& shape, bool own_kernels);

// Elements of k that are taken at a time: 128 bytes of a weight's row, one line of the cache.
inline constexpr int kGemvLine = 64;
// A sum over k is the sum of kGemvWarps sections, in order, and a section's sum is the sum of its lines, in
// order: each warp of a GEMV makes a section, and a thread of linear_tiles.cu makes all sections in turn. The
// last sections may be shorter, or empty.
inline constexpr int kGemvWarps = 8;
constexpr int64_t LinearLines(int64_t k) { return (k + kGemvLine - 1) / kGemvLine; }
constexpr int64_t LinearSectionLines(int64_t k) { return (LinearLines(k) + kGemvWarps - 1) / kGemvWarps; }

// A block of kGemvWarps warps makes 8 * tiles columns of y, for all rows. Nothing is split over blocks: with
// n of 576 there are 72 blocks that keep 32 KiB in flight each, which the memory needs to run at full speed
// (an estimate; n of 1024 and k of 3072, 128 blocks, got half of full speed on an H100).

// Columns of y that one mma makes.
inline constexpr int kGemvTile = 8;

struct GemvPlan {
  int tiles = 1;   // 1, 2 or 4: of kGemvTile columns
  int halves = 1;  // 1: up to 8 rows, 2: up to 16
  int64_t blocks = 0;
  int threads = 0;
  int64_t shared_bytes = 0;
};

// For bf16 and f16. More tiles read x less often, fewer fill more multiprocessors.
GemvPlan PlanGemv(int num_sms, int64_t rows, int64_t n, int64_t k);

// For f32: a warp makes one column of y, for groups of rows, of 1, 2, 4 or 8, each of which reads the
// weights.
struct GemvF32Plan {
  int rows = 1;  // of a group
  int64_t groups = 1;
  int64_t blocks = 0;  // for each group
  int threads = 0;
};
GemvF32Plan PlanGemvF32(int64_t rows, int64_t n);

// linear_tiles.cu: a block makes tile_rows by tile_columns of y, from stages of a line of k in shared memory.
struct LinearTilesPlan {
  int tile_rows = 0;
  int tile_columns = 0;
  int stages = 0;
  int64_t row_tiles = 0;
  int64_t column_tiles = 0;
  int64_t shared_bytes = 0;
};
inline constexpr int kMaxLinearStages = 4;
// Takes the largest tiles of which there are enough for all multiprocessors, or else the smallest.
LinearTilesPlan PlanLinearTiles(int num_sms, int64_t max_shared_bytes, int64_t rows, int64_t n);

}  // namespace somnus
