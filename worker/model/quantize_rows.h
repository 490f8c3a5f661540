#pragma once
// Weights of 16 bits into blocks of 32 values that share a scale, or rows that do, for --quantization. Pure;
// the same numbers give the same bytes on every host.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// The types that it makes: kQ8_0 (int8), kQ4_1 (int4) and kF8E4M3 (fp8).
constexpr bool CanQuantizeTo(DataType type) {
  return type == DataType::kQ8_0 || type == DataType::kQ4_1 || type == DataType::kF8E4M3;
}

// Quantizes values [num_rows, cols], cols a multiple of kQuantBlock, to blocks as PackQuantizedRows (ops.h)
// takes them.
//
// kQ8_0: the scale is the largest magnitude / 127. kQ4_1: the scale and the minimum of the least squared
// error among a few ranges, the block's own and narrower ones, each fitted to the codes that it gives. The
// grid of a Q4_0 block is one of those that a Q4_1 block can have, so the latter's error is not larger.
// kF8E4M3: the scale is the row's largest magnitude / 448, and each value by it is rounded to the nearest
// number, of two the even one.
//
// A value that is NaN or infinite makes its scale NaN.
//
// `out` may be where `values` are: a block takes fewer bytes than its values, and is written after they were
// read.
void QuantizeRows(DataType type, const float* values, int64_t num_rows, int64_t cols, void* out);

// Columns [begin, end), a multiple of kQuantBlock, of one row of `cols` values as kF8E4M3, with the scale of
// the whole row, so that a rank's part has the numbers that it has without other ranks. `out` is not where
// `row` is.
void QuantizeFloat8Part(const float* row, int64_t cols, int64_t begin, int64_t end, void* out);

}  // namespace somnus
