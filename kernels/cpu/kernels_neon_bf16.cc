// Kernels for aarch64 CPUs with BF16 (Neoverse V1, N2 and later): BFMMLA for the products of bf16 weights,
// BFDOT in attention, and 8-bit dot products for quantized weights.

#define SOMNUS_ISA neon_bf16
// clang-format off
#include "kernels/cpu/kernels_impl.h"
#include "kernels/cpu/neon_linear_impl.h"
// clang-format on

namespace somnus::cpu {

constinit const KernelTable kNeonBf16Kernels = [] {
  KernelTable table = neon_bf16::MakeTable();
  table.linear[static_cast<int>(DataType::kBF16)] = neon_bf16::MatrixLinearRange;
  table.max_tile_rows = neon_bf16::kMaxMatrixRows;
  return table;
}();

}  // namespace somnus::cpu
