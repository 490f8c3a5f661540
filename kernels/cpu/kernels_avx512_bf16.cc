// Kernels for CPUs with AVX-512, its BF16 and its 8-bit dot products (Zen 4, Cooper Lake, Sapphire Rapids and
// later).

#define SOMNUS_ISA avx512_bf16
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

const KernelTable* Avx512Bf16Kernels() {
  static constexpr KernelTable kTable = avx512_bf16::MakeTable("avx512_bf16");
  static const bool runs = Avx512VnniKernels() != nullptr && __builtin_cpu_supports("avx512bf16");
  return runs ? &kTable : nullptr;
}

}  // namespace somnus::cpu
