#pragma once
// fp8 weights into panels (F8NumbersAt of kernel_table.h) and, for Embedding, back. Thread safe for rows of
// different panels.

#include <cstdint>

#include "kernels/ops.h"

namespace somnus::cpu {

// As PackQuantizedRows of ops.h.
void PackF8Rows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const uint8_t* rows);

// out[0, k) = the values of one row.
void UnpackF8Row(const LinearWeight& weight, int64_t row, float* out);

}  // namespace somnus::cpu
