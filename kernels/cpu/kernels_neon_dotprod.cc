// Kernels for aarch64 CPUs with 8-bit dot products (Neoverse N1, Cortex-A76 and later): the kernels of NEON,
// except for quantized weights.

#define SOMNUS_ISA neon_dotprod
// The parts build on each other in this order.
// clang-format off
#include "kernels/cpu/simd.h"
#include "kernels/cpu/float8_simd.h"
#include "kernels/cpu/tile_impl.h"
#include "kernels/cpu/quantized_act_impl.h"
#include "kernels/cpu/quantized_weights_impl.h"
#include "kernels/cpu/quantized_impl.h"
// clang-format on

namespace somnus::cpu {

constinit const KernelTable kNeonDotprodParts = [] {
  KernelTable parts{};
  neon_dotprod::SetQuantized(parts);
  return parts;
}();

}  // namespace somnus::cpu
