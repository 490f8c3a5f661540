// Kernels for CPUs with AMX (Sapphire Rapids and later): the kernels of AVX-512 with BF16, except that tiles
// compute attention, the products of bf16 weights, and of fp8 weights with bf16.

#define SOMNUS_ISA amx
// The parts build on each other in this order.
// clang-format off
#include "kernels/cpu/simd.h"
#include "kernels/cpu/float8_simd.h"
#include "kernels/cpu/tile_impl.h"
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/expanded_attention_impl.h"
#include "kernels/cpu/attention_sections_impl.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/amx_linear_impl.h"
#include "kernels/cpu/float8_weights_impl.h"
#include "kernels/cpu/amx_float8_impl.h"
#include "kernels/cpu/amx_stored_pairs_impl.h"
#include "kernels/cpu/amx_attention_impl.h"
// clang-format on

namespace somnus::cpu {

constinit const KernelTable kAmxParts = [] {
  KernelTable parts{};
  parts.linear[static_cast<int>(DataType::kBF16)] = amx::TileLinearRange;
  parts.linear_f8_bf16 = amx::TileF8Range;
  parts.special_attention = amx::TileAttentionFor;
  parts.max_tile_rows = 2 * amx::kTileRows;
  parts.row_block_bytes = 768 << 10;
  parts.reads_odd_lines = true;
  return parts;
}();

}  // namespace somnus::cpu
