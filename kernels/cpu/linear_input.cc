#include "kernels/cpu/linear_input.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/workspace.h"

namespace somnus::cpu {
namespace {

// Whether products with weights of the type read activations as bf16.
bool ReadsBf16(const KernelTable& kernels, DataType weight) {
  if (weight == DataType::kF8E4M3) return kernels.linear_f8_bf16 != nullptr;
  return weight == DataType::kBF16 && kernels.native_bf16;
}

bool TakesActAsIs(const KernelTable& kernels, DataType weight, DataType x) {
  return x == DataType::kF32 || (x == DataType::kBF16 && ReadsBf16(kernels, weight));
}

// Whether activations are rounded to 8 bits for such weights.
bool TakesBytes(DataType weight) { return IsQuantized(weight) && weight != DataType::kF8E4M3; }

// Rows at a distance that is a multiple of this share a few sets of the L1 cache and evict each other.
constexpr int64_t kBadStride = 2048;
constexpr int64_t kRowsAtBadStride = 8;
// From so many columns of the product on, and values of a row, a copy of x costs less than the bad distance
// of its rows.
constexpr int64_t kColumnsWorthCopy = 1024;
constexpr int64_t kValuesWorthCopy = 256;

// Whether Linear of n columns reads rows so much slower at this distance that a copy is better.
bool IsWorthCopy(const KernelTable& kernels, const TensorView& x, int64_t stride, int64_t n) {
  if (x.rows <= kRowsAtBadStride) return false;
  if (stride % kBadStride == 0) return true;
  const bool odd_lines = stride % 128 == 64;
  return kernels.reads_odd_lines && !odd_lines && x.rows > kernels.max_tile_rows && n >= kColumnsWorthCopy &&
         x.cols >= kValuesWorthCopy;
}

// Copies `count` rows of x, of which row i is row_of(i), into `memory` in the form that the kernel takes.
template <typename RowOf>
void CopyRows(CpuDevice& device, const TensorView& x, int64_t count, const RowOf& row_of, DataType weight,
              char* memory, LinearArgs* args) {
  const KernelTable& kernels = device.kernels();
  const char* const from = static_cast<const char*>(x.data);
  const int64_t stride = x.stride * ElementBytes(x.dtype), bytes = x.cols * ElementBytes(x.dtype);
  const bool rounds = TakesBytes(weight), as_is = TakesActAsIs(kernels, weight, x.dtype);
  args->x = memory;
  args->x_stride = rounds  ? x.cols / kQuantBlock * kernels.quantized_bytes
                   : as_is ? (RoundUp(bytes, 64) / 64 | 1) * 64
                           : LinearRowBytes(x.cols);
  const int64_t row_stride = args->x_stride;
  device.ParallelFor(count, count * x.cols / (rounds ? 2 : 4), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const char* const row = from + row_of(r) * stride;
      char* const to = memory + r * row_stride;
      if (rounds) {
        kernels.quantize_row(row, x.dtype, x.cols, weight, to);
      } else if (as_is) {
        std::memcpy(to, row, static_cast<size_t>(bytes));
      } else {
        kernels.to_float(row, x.dtype, x.cols, reinterpret_cast<float*>(to));
      }
    }
  });
}

}  // namespace

LinearKernel LinearKernelOf(const KernelTable& kernels, DataType weight, DataType x) {
  const bool f8_bf16 = weight == DataType::kF8E4M3 && x == DataType::kBF16 && ReadsBf16(kernels, weight);
  return f8_bf16 ? kernels.linear_f8_bf16 : kernels.linear[static_cast<int>(weight)];
}

int64_t LinearBlockRows(const KernelTable& kernels, int64_t k) {
  return std::max(kernels.max_tile_rows, kernels.row_block_bytes / std::max<int64_t>(1, k * 2));
}

void PrepareLinearInput(CpuDevice& device, const TensorView& x, DataType weight, char* memory,
                        LinearArgs* args) {
  const int64_t stride = x.stride * ElementBytes(x.dtype);
  const bool as_is = !TakesBytes(weight) && TakesActAsIs(device.kernels(), weight, x.dtype);
  if (as_is && !IsWorthCopy(device.kernels(), x, stride, args->n)) {
    args->x = static_cast<const char*>(x.data);
    args->x_stride = stride;
    return;
  }
  CopyRows(
      device, x, x.rows, [](int64_t r) { return r; }, weight, memory, args);
}

void GatherLinearInput(CpuDevice& device, const TensorView& x, const int32_t* rows, int64_t count,
                       DataType weight, char* memory, LinearArgs* args) {
  CopyRows(
      device, x, count, [&](int64_t r) { return rows[r]; }, weight, memory, args);
}

// With many rows a piece takes long, and the cost of taking a piece is negligible. With rows that fit one
// tile the time goes into reading weights, and a piece has enough weights to outweigh its cost. With a few
// tiles of rows the last tile prefetches the thread's next panel, which would be wasted if another thread
// took that panel.
int64_t PiecesOfPart(const KernelTable& kernels, int64_t rows, int64_t part_bytes) {
  constexpr int64_t kManyRows = 64;
  constexpr int64_t kPieceBytes = 32 << 10;
  if (rows >= kManyRows) return 8;
  if (rows > kernels.max_tile_rows || part_bytes < 4 * kPieceBytes) return 1;
  return std::min<int64_t>(16, part_bytes / kPieceBytes);
}

}  // namespace somnus::cpu
