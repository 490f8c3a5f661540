// Kernels for any x86-64 CPU (SSE2).

#define SOMNUS_ISA portable
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

constinit const KernelTable kPortableKernels = portable::MakeTable();

}  // namespace somnus::cpu
