#include "checkpoint/mapped_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/dequantize.h"

namespace somnus {
namespace {

// The stored row that holds row `row` of the canonical tensor.
int64_t StoredRow(const TensorInfo& tensor, int64_t row) {
  const int64_t head = tensor.permuted_head_dim;
  if (head == 0) return row;
  const int64_t in_head = row % head, half = head / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

}  // namespace

MappedCheckpoint::MappedCheckpoint(ModelConfig config, TensorTable tensors)
    : config_(std::move(config)), tensors_(std::move(tensors)) {}

absl::Status MappedCheckpoint::ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                        int64_t col_begin, int64_t col_end, float* out) const {
  if (tensor.shape.empty() || tensor.shape.size() > 2) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name, " has shape ",
                                                   ShapeString(tensor.shape), ", not 1-D or 2-D"));
  }
  const int64_t rows = tensor.shape[0], cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  if (row_begin < 0 || row_end < row_begin || row_end > rows || col_begin < 0 || col_end < col_begin ||
      col_end > cols) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name, ": rows [",
                                                   row_begin, ", ", row_end, "), columns [", col_begin, ", ",
                                                   col_end, ") are not inside ", ShapeString(tensor.shape)));
  }
  const int64_t width = col_end - col_begin;
  if (width == cols && tensor.permuted_head_dim == 0) {
    DequantizeRange(tensor.type, tensor.data, row_begin * cols, row_end * cols, out);
  } else {
    for (int64_t row = row_begin; row < row_end; ++row, out += width) {
      const int64_t begin = StoredRow(tensor, row) * cols + col_begin;
      DequantizeRange(tensor.type, tensor.data, begin, begin + width, out);
    }
  }
  const absl::Status whole = tensor.source == nullptr ? absl::OkStatus() : tensor.source->CheckWhole();
  if (whole.ok()) return whole;
  return absl::Status(whole.code(), absl::StrCat(whole.message(), ", and tensor ", tensor.name, " with it"));
}

}  // namespace somnus
