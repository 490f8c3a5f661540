// Kernels for any aarch64 CPU: all have NEON, and multiply-adds of f32 without an intermediate rounding.

#define SOMNUS_ISA neon
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

constinit const KernelTable kNeonKernels = neon::MakeTable();

}  // namespace somnus::cpu
