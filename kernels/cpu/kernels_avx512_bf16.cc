// Kernels for CPUs with AVX-512, its BF16 and its 8-bit dot products (Zen 4, Cooper Lake, Sapphire Rapids and
// later).

#define SOMNUS_ISA avx512_bf16
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

constinit const KernelTable kAvx512Bf16Kernels = avx512_bf16::MakeTable();

}  // namespace somnus::cpu
