#pragma once
// Which instruction sets this CPU has, and the kernels of each. This unit is compiled for the baseline, and
// is the only unit that asks the CPU: code that was compiled for a newer set must not run before, and cannot
// ask.

#include "kernels/cpu/kernel_table.h"
#include "kernels/device.h"

namespace somnus::cpu {

// Null for an instruction set that this CPU lacks. Thread safe; the table lives as long as the process.
const KernelTable* KernelsOf(CpuIsa isa);
// Whether KernelsOf(CpuIsa::kAmx) is null because the operating system refuses tiles that the CPU has.
bool AmxIsRefused();

}  // namespace somnus::cpu
