// Kernels for CPUs with AVX-512 and its 8-bit dot products, without BF16 (Cascade Lake, Ice Lake): the
// kernels of AVX-512, except for quantized weights.

#define SOMNUS_ISA avx512_vnni
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

constinit const KernelTable kAvx512VnniParts = [] {
  KernelTable parts{};
  avx512_vnni::SetQuantized(parts);
  return parts;
}();

}  // namespace somnus::cpu
