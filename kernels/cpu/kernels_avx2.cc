// Kernels for CPUs with AVX2, FMA and F16C.

#define SOMNUS_ISA avx2
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

constinit const KernelTable kAvx2Kernels = avx2::MakeTable();

}  // namespace somnus::cpu
