// Kernels for CPUs with AVX2, FMA and F16C.

#define SOMNUS_ISA avx2
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

const KernelTable* Avx2Kernels() {
  static constexpr KernelTable kTable = avx2::MakeTable("avx2");
  static const bool runs =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return runs ? &kTable : nullptr;
}

}  // namespace somnus::cpu
