#pragma once
// The sum of the ranks' arrays, in rank order.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + ... over `num_inputs` arrays of `count` elements: kF32, kBF16
// or kF16, added in f32 and rounded once, to nearest even. `out` may be an input.
void SumInOrder(DataType type, const void* const* in, int num_inputs, int64_t count, void* out);

}  // namespace somnus
