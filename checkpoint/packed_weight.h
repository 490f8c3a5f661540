#pragma once
// Matrices as GPTQ, AWQ, compressed-tensors, fp8 and MXFP4 checkpoints store them: small numbers packed into
// one tensor, scales and zero points in others. An element is scale * (number - zero point).
//
// The layouts are the writers' layouts: AutoGPTQ's and GPTQModel's QuantLinear, AutoAWQ's WQLinear_GEMM,
// compressed-tensors' pack_to_int32. Pure functions over mapped files; thread safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"

namespace somnus {

// A matrix of unsigned numbers of 4 or 8 bits, as stored.
struct PackedInts {
  // Which numbers share a 32-bit word, the first number in the lowest bits.
  enum class Order {
    kAlongRow,     // neighbors of a row; of 8 bits: plain bytes
    kAlongColumn,  // neighbors of a column
    kAwq,          // eight neighbors of a row, in the order 0, 2, 4, 6, 1, 3, 5, 7
  };
  const uint8_t* data = nullptr;
  Order order = Order::kAlongRow;
  int bits = 4;
  int64_t stride = 0;  // bytes from a stored row of words to the next
};

// Plain data over the maps of the checkpoint. The maker has checked that every element is inside the maps.
struct PackedWeight {
  PackedInts numbers;       // [rows, cols], or, transposed, [cols, rows]
  bool transposed = false;  // GPTQ and AWQ: inputs first
  uint8_t flip = 0;         // to be combined with the numbers by XOR: 0x80 for signed bytes
  bool float8 = false;      // the numbers are bits of floats (e4m3), without zero points
  // The numbers of 4 bits are bits of floats (e2m1), and each scale is a byte, the exponent of a power of two
  // plus 127 (OCP Microscaling Formats 1.0, section 5.4). scale_type is not used.
  bool mxfp4 = false;

  const uint8_t* scales = nullptr;
  StorageType scale_type = StorageType::kF16;  // F32, F16 or BF16
  // The scale of row r and group g is element r / block_rows * row_stride + g * group_stride.
  int64_t block_rows = 1, row_stride = 0, group_stride = 0;

  // Zero points: of [rows, groups], or, transposed, [groups, rows]; none: `zero` is that of all.
  std::optional<PackedInts> zeros;
  uint8_t zero_flip = 0;
  int32_t zero = 0;  // is added to the zero points in `zeros`

  // The group of column c is c / group_size, or group_of_col[c] where that is not empty.
  int64_t group_size = 1;
  std::vector<int32_t> group_of_col;

  std::vector<const MappedFile*> sources;  // the maps of all parts
};

// As Checkpoint::ReadRows and ReadStoredRows, for a tensor with `packed`, for a rectangle that is inside the
// tensor (and, for ReadPackedBlocks, whole blocks). ReadPackedBlocks fails where a scale or a zero point has
// no place in a block of tensor.type: InvalidArgument names the tensor.
absl::Status ReadPackedRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                            int64_t col_end, float* out);
absl::Status ReadPackedBlocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out);

}  // namespace somnus
