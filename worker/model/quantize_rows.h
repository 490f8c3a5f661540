#pragma once
// Weights of 16 bits into blocks of 32 values that share a scale, or rows that do, for --quantization. Pure;
// the same numbers give the same bytes on every host.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// The types that QuantizeRows makes: kQ8_0 (int8), kQ4_1 (int4) and kF8E4M3 (fp8).
constexpr bool CanQuantizeTo(DataType type) {
  return type == DataType::kQ8_0 || type == DataType::kQ4_1 || type == DataType::kF8E4M3;
}

// Quantizes values [num_rows, cols], cols a multiple of kQuantBlock, to blocks for PackQuantizedRows (ops.h).
//
// kQ8_0: the scale is the largest magnitude / 127. kQ4_1: the scale and the minimum of the least squared
// error among a few ranges, the block's own range and narrower ranges, each fitted to the codes that the
// range gives. A Q4_1 block can have the grid of any Q4_0 block, so the error of Q4_1 is not larger. kF8E4M3:
// the scale is the row's largest magnitude / 448, and each value / scale is rounded to the nearest number,
// ties to even.
//
// A value that is NaN or infinite makes the scale of its block or row NaN.
//
// `out` may be where `values` are: a block takes fewer bytes than its values, and is written after its values
// were read.
void QuantizeRows(DataType type, const float* values, int64_t num_rows, int64_t cols, void* out);

// Columns [begin, end), a multiple of kQuantBlock, of one row of `cols` values as kF8E4M3, with the scale of
// the whole row, so that a rank's part has the same numbers as with a single rank. `out` is not where `row`
// is.
void QuantizeFloat8Part(const float* row, int64_t cols, int64_t begin, int64_t end, void* out);

}  // namespace somnus
