// Kernels for CPUs with AVX-512 F, BW, DQ and VL, of which Skylake's servers were the first.

#define SOMNUS_ISA avx512
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

const KernelTable* Avx512Kernels() {
  static constexpr KernelTable kTable = avx512::MakeTable("avx512");
  static const bool runs = Avx2Kernels() != nullptr && __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq");
  return runs ? &kTable : nullptr;
}

}  // namespace somnus::cpu
