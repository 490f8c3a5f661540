// Kernels for any x86-64 CPU (SSE2).

#define SOMNUS_ISA portable
#include "kernels/cpu/kernels_impl.h"

namespace somnus::cpu {

const KernelTable& PortableKernels() {
  static constexpr KernelTable kTable = portable::MakeTable("portable");
  return kTable;
}

}  // namespace somnus::cpu
