#pragma once
// The places of the source where barriers stand, and what the race detector has learned of each in this
// process: that a barrier there ran, and that it was needed, since two accesses to one byte, of which one
// writes, were ordered by barriers of this place alone. Without a barrier that is needed the kernel has a
// race; one that never is, in all tests of a kernel, is redundant or untested. Thread safe.
//
// With SOMNUS_EMULATOR_BARRIERS=FILE a process appends a line for each place when it exits: "needed
// FILE:LINE" or "ran FILE:LINE" (tests/cuda/barriers_test.py reads them).

#include <cstdint>

#include "kernels/emulator/device.h"

namespace somnus::cuda_emulated::emulator {

// Numbers a place of the source, from 0 on.
int BarrierSite(const Site& site);
void NoteNeeded(int barrier_site);

}  // namespace somnus::cuda_emulated::emulator
