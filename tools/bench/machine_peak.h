#pragma once
// Peak arithmetic of the machine, measured with register operands only.

namespace somnus {

// GFLOP/s of `num_threads` threads at once, each on its own CPU as far as there are enough. bf16 dot products
// count two multiply-adds per 32 bits; without the instruction the f32 figure. Each takes about 30 ms.
double PeakBf16Gflops(int num_threads);
double PeakFmaGflops(int num_threads);

}  // namespace somnus
