// Kernels for CPUs with AVX2 and its 8-bit dot products but without AVX-512 (Intel's desktops from Alder Lake
// on): the kernels of AVX2, except for quantized weights.

#define SOMNUS_ISA avx_vnni
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

constinit const KernelTable kAvxVnniParts = [] {
  KernelTable parts{};
  avx_vnni::SetQuantized(parts);
  return parts;
}();

}  // namespace somnus::cpu
