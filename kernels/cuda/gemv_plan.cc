#include "kernels/cuda/gemv_plan.h"

#include <algorithm>
#include <utility>

namespace somnus {
namespace {

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The bytes of x that stay in the first-level cache beside the weights that stream past: an estimate
// (Hopper's cache has 256 KiB by its documentation, shared memory included). Below, blocks of one
// multiprocessor read x from there; above, from the second level, whose bandwidth the weights need: then each
// read of x should serve more columns.
constexpr int64_t kCachedXBytes = 128 << 10;

}  // namespace

LinearRoute RouteLinear(const LinearShape& shape, bool own_kernels) {
  if (shape.rows == 0 || shape.n == 0) return LinearRoute::kNothing;
  if (shape.k == 0) return LinearRoute::kPlain;
  const bool f32 = shape.act == DataType::kF32;
  const int64_t gemv_rows = f32 ? kMaxGemvRowsF32 : kMaxGemvRows;
  if (shape.rows <= gemv_rows && shape.vectors) return LinearRoute::kGemv;
  if (!own_kernels) return LinearRoute::kGemm;
  if (!shape.vectors) return LinearRoute::kPlain;
  return f32 ? LinearRoute::kGemv : LinearRoute::kTiles;
}

GemvPlan PlanGemv(int num_sms, int64_t rows, int64_t n, int64_t k) {
  GemvPlan plan;
  plan.halves = rows <= 8 ? 1 : 2;
  // Blocks for one and a half multiprocessors each: most multiprocessors have two, which hides the ends of
  // blocks.
  const auto fills = [&](int tiles) { return Ceil(n, kGemvTile * tiles) * 2 >= int64_t{num_sms} * 3; };
  if (fills(2)) plan.tiles = 2;
  if (rows * k * 2 > kCachedXBytes && Ceil(n, kGemvTile * 4) * 10 >= int64_t{num_sms} * 9) plan.tiles = 4;
  plan.blocks = Ceil(n, int64_t{kGemvTile} * plan.tiles);
  plan.threads = kGemvWarps * 32;
  plan.shared_bytes = int64_t{kGemvWarps} * plan.tiles * plan.halves * kGemvTile * 8 * int64_t{sizeof(float)};
  return plan;
}

GemvF32Plan PlanGemvF32(int64_t rows, int64_t n) {
  GemvF32Plan plan;
  while (plan.rows < std::min(rows, kMaxGemvRowsF32)) plan.rows *= 2;
  plan.groups = Ceil(rows, plan.rows);
  plan.blocks = Ceil(n, kGemvWarps);
  plan.threads = kGemvWarps * 32;
  return plan;
}

LinearTilesPlan PlanLinearTiles(int num_sms, int64_t max_shared_bytes, int64_t rows, int64_t n) {
  LinearTilesPlan plan;
  for (const auto& [tile_rows, tile_columns] : {std::pair{128, 128}, {64, 64}, {64, 32}}) {
    plan.tile_rows = tile_rows;
    plan.tile_columns = tile_columns;
    plan.row_tiles = Ceil(rows, tile_rows);
    plan.column_tiles = Ceil(n, tile_columns);
    if (plan.row_tiles * plan.column_tiles >= num_sms) break;
  }
  const int64_t stage = int64_t{plan.tile_rows + plan.tile_columns} * kGemvLine * 2;
  plan.stages = static_cast<int>(std::clamp<int64_t>(max_shared_bytes / stage, 2, kMaxLinearStages));
  plan.shared_bytes = plan.stages * stage;
  return plan;
}

}  // namespace somnus
