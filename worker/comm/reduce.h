#pragma once
// Sums in rank order.

#include <cstdint>

namespace somnus {

// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + ... over `num_inputs` arrays of `count` floats. `out` may be
// one of the inputs.
void SumInOrder(const float* const* in, int num_inputs, int64_t count, float* out);

}  // namespace somnus
