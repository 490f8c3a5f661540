#include "checkpoint/mapped_checkpoint.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/packed_weight.h"
#include "checkpoint/tensor_part.h"

namespace somnus {
namespace {

absl::Status CheckRectangle(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                            int64_t col_end) {
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
  return absl::OkStatus();
}

// Calls run(begin, end) for the stored elements of the rectangle, in order, in runs as long as possible.
template <typename F>
void ForEachRun(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                int64_t col_end, const F& run) {
  const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1, width = col_end - col_begin;
  if (width == cols && tensor.heads.head_dim == 0) return run(row_begin * cols, row_end * cols);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = StoredRow(tensor.heads, row) * cols + col_begin;
    run(begin, begin + width);
  }
}

// To be called after reading: an error when the file no longer had the bytes that were read.
absl::Status CheckWhole(const TensorInfo& tensor) {
  const absl::Status whole = tensor.source == nullptr ? absl::OkStatus() : tensor.source->CheckWhole();
  if (whole.ok()) return whole;
  return absl::Status(whole.code(), absl::StrCat(whole.message(), ", and tensor ", tensor.name, " with it"));
}

}  // namespace

MappedCheckpoint::MappedCheckpoint(ModelConfig config, TensorTable tensors)
    : config_(std::move(config)), tensors_(std::move(tensors)) {}

absl::Status MappedCheckpoint::ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                        int64_t col_begin, int64_t col_end, float* out) const {
  RETURN_IF_ERROR(CheckRectangle(tensor, row_begin, row_end, col_begin, col_end));
  if (tensor.part != nullptr) {
    const auto read = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1, void* to) {
      return ReadRows(tensor.part->whole, r0, r1, c0, c1, static_cast<float*>(to));
    };
    return ReadPart(tensor, row_begin, row_end, col_begin, col_end, {1, sizeof(float)}, read, out);
  }
  if (tensor.packed != nullptr) return ReadPackedRows(tensor, row_begin, row_end, col_begin, col_end, out);
  float* const first = out;
  ForEachRun(tensor, row_begin, row_end, col_begin, col_end, [&](int64_t begin, int64_t end) {
    DequantizeRange(tensor.type, tensor.data, begin, end, out);
    out += end - begin;
  });
  if (tensor.offset != 0) {
    for (float* value = first; value < out; ++value) *value += tensor.offset;
  }
  return CheckWhole(tensor);
}

absl::Status MappedCheckpoint::ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                              int64_t col_begin, int64_t col_end, void* out) const {
  RETURN_IF_ERROR(CheckRectangle(tensor, row_begin, row_end, col_begin, col_end));
  const BlockSize block = BlockSizeOf(tensor.type);
  if (col_begin % block.elements != 0 || col_end % block.elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.file, ": tensor ", tensor.name, ": columns [", col_begin, ", ", col_end, ") cut blocks of ",
        StorageTypeName(tensor.type), ", which have ", block.elements, " elements"));
  }
  if (tensor.part != nullptr) {
    const TensorInfo& whole = tensor.part->whole;
    if (tensor.type != whole.type)
      return ReadRows(tensor, row_begin, row_end, col_begin, col_end, static_cast<float*>(out));
    const auto read = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1, void* to) {
      return ReadStoredRows(whole, r0, r1, c0, c1, to);
    };
    return ReadPart(tensor, row_begin, row_end, col_begin, col_end, block, read, out);
  }
  if (tensor.packed != nullptr) return ReadPackedBlocks(tensor, row_begin, row_end, col_begin, col_end, out);
  auto* to = static_cast<uint8_t*>(out);
  ForEachRun(tensor, row_begin, row_end, col_begin, col_end, [&](int64_t begin, int64_t end) {
    const size_t bytes = static_cast<size_t>((end - begin) / block.elements * block.bytes);
    if (bytes > 0) std::memcpy(to, tensor.data + begin / block.elements * block.bytes, bytes);
    to += bytes;
  });
  return CheckWhole(tensor);
}

}  // namespace somnus
