// Kernels for CPUs with AVX-512 F, BW, DQ and VL, of which Skylake's servers were the first.

#define SOMNUS_ISA avx512
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

constinit const KernelTable kAvx512Kernels = avx512::MakeTable();

}  // namespace somnus::cpu
