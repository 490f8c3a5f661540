// Kernels for CPUs with AVX-512, its BF16 and its 8-bit dot products (Zen 4, Cooper Lake, Sapphire Rapids and
// later).

#define SOMNUS_ISA avx512
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

const KernelTable* Avx512Kernels() {
  static constexpr KernelTable kTable = avx512::MakeTable("avx512_bf16");
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return runs ? &kTable : nullptr;
}

}  // namespace somnus::cpu
