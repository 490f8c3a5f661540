#pragma once
// Which way a Linear goes and how its GEMV is cut into blocks. Plain numbers: no CUDA here.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// kGemv: our kernels for few rows, bound by reading the weights once. kGemm: the library. kPlain: our slow
// kernel for whatever the others cannot do.
enum class LinearRoute { kNothing, kGemv, kGemm, kPlain };

struct LinearShape {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  DataType act = DataType::kBF16;
  // x's and w's rows all start at multiples of 16 bytes and k is whole vectors of them.
  bool vectors = false;
};

// Rows that the GEMV kernels take: two halves of the 16 rows of an mma, and of f32 what registers hold.
inline constexpr int64_t kMaxGemvRows = 16;
inline constexpr int64_t kMaxGemvRowsF32 = 8;

// By the shape alone, so that a captured graph and an eager step go the same way. Not measured yet: up to 16
// rows the weights' bytes are the floor and our kernel reads them once, at any n.
LinearRoute RouteLinear(const LinearShape& shape);

// A block of kGemvWarps warps makes 8 * tiles columns of y, for all rows: the warps share out k, and add
// their sums up in the order of the warps at the end. Nothing is split over blocks: with n of 576 there are
// 72 blocks that keep 32 KiB in flight each, which is what the memory needs to run at full speed.
inline constexpr int kGemvWarps = 8;
// Columns of y that one mma makes.
inline constexpr int kGemvTile = 8;
// Elements of k that a warp takes at a time: 128 bytes of a weight's row, one line of the cache.
inline constexpr int kGemvLine = 64;

struct GemvPlan {
  int tiles = 1;   // 1, 2 or 4: of kGemvTile columns
  int halves = 1;  // 1: up to 8 rows, 2: up to 16
  int64_t blocks = 0;
  int threads = 0;
  int64_t shared_bytes = 0;
};

// For bf16 and f16. More tiles read x less often, fewer fill more multiprocessors.
GemvPlan PlanGemv(int num_sms, int64_t rows, int64_t n, int64_t k);

// For f32: a warp makes one column of y; rows are rounded up to 1, 2, 4 or 8.
struct GemvF32Plan {
  int rows = 1;
  int64_t blocks = 0;
  int threads = 0;
};
GemvF32Plan PlanGemvF32(int64_t rows, int64_t n);

}  // namespace somnus
