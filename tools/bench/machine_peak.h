#pragma once
// Peak arithmetic of the machine, measured with register operands only.

namespace somnus {

// GFLOP/s of `num_threads` threads at once, each on its own CPU as far as there are enough. A bf16 dot
// product counts as two multiply-adds per 32 bits, BFMMLA as sixteen; without that instruction the f32 figure
// is returned. Each call takes about 30 ms.
double PeakBf16Gflops(int num_threads);
double PeakFmaGflops(int num_threads);
// Of AMX's bf16 products, in a process that may use tiles, as one that has a device with them; 0 on aarch64.
double PeakTileGflops(int num_threads);

}  // namespace somnus
