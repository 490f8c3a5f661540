// Linear, packing and embedding: splits the work over threads; the arithmetic is in linear_impl.h.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantized_layout.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

int64_t NumPanels(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth; }

// Whether products with weights of the type read activations as bf16.
bool ReadsBf16(const KernelTable& kernels, DataType weight) {
  return weight == DataType::kF8E4M3 ? kernels.linear_f8_bf16 != nullptr : kernels.native_bf16;
}

bool TakesActAsIs(const KernelTable& kernels, DataType weight, DataType x) {
  return x == DataType::kF32 || (x == DataType::kBF16 && ReadsBf16(kernels, weight));
}

// Whether activations are rounded to 8 bits for such weights.
bool TakesBytes(DataType weight) { return IsQuantized(weight) && weight != DataType::kF8E4M3; }

auto KernelOf(const KernelTable& kernels, DataType weight, DataType x) {
  const bool f8_bf16 = weight == DataType::kF8E4M3 && x == DataType::kBF16 && ReadsBf16(kernels, weight);
  return f8_bf16 ? kernels.linear_f8_bf16 : kernels.linear[static_cast<int>(weight)];
}

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

// Sets args->x to x in 8 bits, in the workspace.
void QuantizeX(CpuDevice& device, const TensorView& x, DataType weight, LinearArgs* args) {
  const char* const from = static_cast<const char*>(x.data);
  char* const to = device.workspace();
  const int64_t stride = x.stride * ElementBytes(x.dtype);
  args->x = to;
  args->x_stride = x.cols / kQuantBlock * device.kernels().quantized_bytes;
  device.ParallelFor(x.rows, x.rows * x.cols / 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      device.kernels().quantize_row(from + r * stride, x.dtype, x.cols, weight, to + r * args->x_stride);
    }
  });
}

// Sets args->x to x in the form that the kernel takes: x itself, or a copy in the workspace, as f32 or with
// another stride.
void PrepareX(CpuDevice& device, const TensorView& x, DataType weight, LinearArgs* args) {
  const char* const from = static_cast<const char*>(x.data);
  const int64_t stride = x.stride * ElementBytes(x.dtype);
  const bool as_is = TakesActAsIs(device.kernels(), weight, x.dtype);
  if (as_is && !IsWorthCopy(device.kernels(), x, stride, args->n)) {
    args->x = from;
    args->x_stride = stride;
    return;
  }
  char* const to = device.workspace();
  const int64_t bytes = x.cols * ElementBytes(x.dtype);
  args->x = to;
  args->x_stride = as_is ? (RoundUp(bytes, 64) / 64 | 1) * 64 : LinearRowBytes(x.cols);
  device.ParallelFor(x.rows, x.rows * x.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      char* const row = to + r * args->x_stride;
      if (as_is) {
        std::memcpy(row, from + r * stride, static_cast<size_t>(bytes));
      } else {
        device.kernels().to_float(from + r * stride, x.dtype, x.cols, reinterpret_cast<float*>(row));
      }
    }
  });
}

// Into how many pieces a thread's part of a linear is cut, so that other threads can take some over; 1: no
// thread takes over. With many rows a piece takes long, and the cost of taking a piece is negligible. With
// rows that fit one tile the time goes into reading weights, and a piece has enough weights to outweigh its
// cost. With a few tiles of rows the last tile prefetches the thread's next panel, which would be wasted if
// another thread took that panel.
int64_t PiecesOfPart(const KernelTable& kernels, int64_t rows, int64_t part_bytes) {
  constexpr int64_t kManyRows = 64;
  constexpr int64_t kPieceBytes = 32 << 10;
  if (rows >= kManyRows) return 8;
  if (rows > kernels.max_tile_rows || part_bytes < 4 * kPieceBytes) return 1;
  return std::min<int64_t>(16, part_bytes / kPieceBytes);
}

}  // namespace

// Sums stay f32: a CPU's vectors hold them anyway, and tests compare exact tokens.
DataType SumType(const Device& device, DataType act) { return DataType::kF32; }

int64_t PackedWeightBytes(const Device& device, DataType dtype, int64_t n, int64_t k) {
  return NumPanels(n) * PanelBytes(dtype, k);
}

void PackWeightRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                    const float* rows) {
  AsCpu(device).kernels().pack_rows(weight, row_begin, num_rows, rows);
}

void PackVector(const Device& device, float* data, const float* values, int64_t n) {
  std::memcpy(data, values, static_cast<size_t>(n) * sizeof(float));
}

void Linear(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
            const TensorView& y) {
  if (x.rows == 0) return;
  CpuDevice& cpu = AsCpu(device);
  LinearArgs args{.x = nullptr,
                  .x_stride = 0,
                  .w = static_cast<const char*>(w.data),
                  .n = w.n,
                  .k = w.k,
                  .bias = bias,
                  .y = static_cast<float*>(y.data),
                  .y_stride = y.stride,
                  .expands = cpu.kernels().expands};
  if (TakesBytes(w.dtype)) {
    QuantizeX(cpu, x, w.dtype, &args);
  } else {
    PrepareX(cpu, x, w.dtype, &args);
  }
  const auto kernel = KernelOf(cpu.kernels(), w.dtype, x.dtype);
  const int64_t block_rows =
      std::max(cpu.kernels().max_tile_rows, cpu.kernels().row_block_bytes / std::max<int64_t>(1, w.k * 2));
  const int64_t blocks = (x.rows + block_rows - 1) / block_rows;
  const int64_t panels = NumPanels(w.n);
  // Items are ordered by block, then panel; a thread takes a contiguous range, and so reads a single stream
  // of weights per block.
  const auto compute = [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const int64_t block = item / panels;
      const int64_t stop = std::min(end, (block + 1) * panels);
      kernel(args, x.rows * block / blocks, x.rows * (block + 1) / blocks, item - block * panels,
             stop - block * panels);
      item = stop;
    }
  };
  const int64_t pieces =
      PiecesOfPart(cpu.kernels(), x.rows, panels * PanelBytes(w.dtype, w.k) / cpu.num_threads());
  pieces == 1 ? cpu.ParallelFor(blocks * panels, x.rows * w.n * w.k / 32, compute)
              : cpu.BalancedFor(blocks * panels, pieces, compute);
}

// The order of summation is the same for any number of rows: nothing to choose.
bool TuneLinear(Device&, const TensorView&, const LinearWeight*, int64_t, const float*, const TensorView&) {
  return false;
}

void Embedding(Device& device, const int32_t* token_ids, const LinearWeight& table, int64_t vocab_begin,
               int64_t vocab_end, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(out.rows, out.rows * table.k * 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t id = token_ids[t];
      if (id < vocab_begin || id >= vocab_end) {
        std::memset(out.row<float>(t), 0, static_cast<size_t>(table.k) * sizeof(float));
      } else if (IsQuantized(table.dtype)) {
        UnpackQuantizedRow(table, id - vocab_begin, out.row<float>(t));
      } else {
        cpu.kernels().unpack_row(table, id - vocab_begin, out.row<float>(t));
      }
    }
  });
}

}  // namespace somnus::cpu
