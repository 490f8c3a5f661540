// Kernels for aarch64 CPUs with BF16 (Neoverse V1, N2 and later): BFMMLA for the products of bf16 weights,
// BFDOT in attention, and 8-bit dot products for quantized weights.

#include <sys/auxv.h>

#define SOMNUS_ISA neon_bf16
// clang-format off
#include "kernels/cpu/kernels_impl.h"
#include "kernels/cpu/neon_linear_impl.h"
// clang-format on

namespace somnus::cpu {

const KernelTable* NeonBf16Kernels() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  if (NeonDotprodKernels() == nullptr || (getauxval(AT_HWCAP2) & kBf16) == 0) return nullptr;
  static const KernelTable table = [] {
    KernelTable t = neon_bf16::MakeTable("neon_bf16");
    t.linear[static_cast<int>(DataType::kBF16)] = neon_bf16::MatrixLinearRange;
    t.max_tile_rows = neon_bf16::kMaxMatrixRows;
    return t;
  }();
  return &table;
}

}  // namespace somnus::cpu
