#pragma once
// The places of the source where barriers stand, with two facts of each place in this process: whether a
// barrier there ran, and whether the barrier was needed. A barrier is needed where two conflicting accesses
// to the same byte were ordered by barriers of this place alone: without the barrier the kernel has a race. A
// barrier that no test of a kernel needs is redundant or untested. Thread safe.
//
// With SOMNUS_EMULATOR_BARRIERS=FILE a process appends a line for each place at its exit: "needed FILE:LINE"
// or "ran FILE:LINE". tests/cuda/barriers_test.py reads the file.

#include <cstdint>

#include "kernels/emulator/device.h"

namespace somnus::cuda_emulated::emulator {

// Numbers a place of the source, from 0 on.
int BarrierSite(const Site& site);
void NoteNeeded(int barrier_site);

}  // namespace somnus::cuda_emulated::emulator
