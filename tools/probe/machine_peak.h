#pragma once
// Peak arithmetic of the machine, measured with register operands only.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/probe/probe_thread.h"

namespace somnus {

// In 1e9 operations a second; a multiply-add is two.
struct MachinePeaks {
  double f32_gflops = 0;   // multiply-adds
  double bf16_gflops = 0;  // products of bf16 with sums in f32; f32's where a set has no such products or
                           // slower products
  double int8_gops = 0;    // products of bytes with sums in 16 or 32 bits, of 16-bit words where a set has no
                           // products of bytes
};

// The rates of the best instructions that the kernels of `isa` may use, on `threads` at once, where each
// thread has a share of the work in proportion to its speed. `isa`: a name of SOMNUS_CPU_ISA, which this CPU
// must have; "amx" in a process that may use tiles, such as a process that has a device with tiles. All 0 for
// another name, and without threads. Takes about 0.1 s. Starts and joins its own threads; call it while
// nothing else is measured.
MachinePeaks MeasurePeaks(absl::string_view isa, const std::vector<ProbeThread>& threads);

// "f32 477 GFLOP/s, bf16 951 GFLOP/s, int8 1902 GOP/s".
std::string ToString(const MachinePeaks& peaks);

}  // namespace somnus
