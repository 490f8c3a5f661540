#pragma once
// f32 to the types that weights have on a device, on the host. Pure; thread safe.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// dst[i] = src[i] rounded to `type` (bf16, f16 or f32), to nearest even; NaN stays NaN, too large becomes
// infinite.
void ConvertFromFloat(const float* src, int64_t n, DataType type, void* dst);

}  // namespace somnus
