#pragma once
// A matrix that lies within a larger stored tensor: the rows of one expert out of all experts' tensor, every
// second row of interleaved matrices, the transpose of an input-first matrix, or a few rows of each head.
// Plain data over the maps of the checkpoint; thread safe.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/storage_type.h"

namespace somnus {

// Row r of the part lies in group g = r / group_rows, at i = r % group_rows of the group; element (r, c) is
//   whole(first_row + g * group_step + i * row_step, first_col + c), or
//   whole(first_row + g * group_step + c, first_col + i * row_step) where `transposed`.
// The maker has checked that every element is inside of the whole.
struct TensorPart {
  TensorInfo whole;  // of two dimensions: the stored tensor, with its first dimensions taken together
  bool transposed = false;
  int64_t first_row = 0, first_col = 0;
  int64_t row_step = 1;
  int64_t group_rows = INT64_MAX;
  int64_t group_step = 0;
};

// A tensor `name` of `shape` (of one dimension: a column) that is `part`. The type is the whole's, but F32
// for the transpose of a type of blocks, and for fp8 with scales of blocks of rows.
TensorInfo MakePartTensor(std::string name, std::vector<int64_t> shape, TensorPart part);

// Reads a rectangle of a tensor with `part`, which is inside of the tensor, into `out`: dense rows of units,
// whose elements are in one row; a transposed part has units of one element. `read` writes a rectangle of the
// whole in the same form.
absl::Status ReadPart(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                      int64_t col_end, BlockSize unit,
                      absl::FunctionRef<absl::Status(int64_t row_begin, int64_t row_end, int64_t col_begin,
                                                     int64_t col_end, void* out)>
                          read,
                      void* out);

}  // namespace somnus
