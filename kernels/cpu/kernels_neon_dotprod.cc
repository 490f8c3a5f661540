// Kernels for aarch64 CPUs with 8-bit dot products (Neoverse N1, Cortex-A76 and later): those of NEON, but
// for quantized weights.

#include <sys/auxv.h>

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

const KernelTable* NeonDotprodKernels() {
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  if ((getauxval(AT_HWCAP) & kDotProducts) == 0) return nullptr;
  static const KernelTable table = [] {
    KernelTable t = *NeonKernels();
    t.name = "neon_dotprod";
    neon_dotprod::SetQuantized(t);
    return t;
  }();
  return &table;
}

}  // namespace somnus::cpu
