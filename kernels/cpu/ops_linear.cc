// Linear, packing and embedding: splits the work over threads; the arithmetic is in linear_impl.h.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/linear_input.h"
#include "kernels/cpu/quantized_layout.h"
#include "kernels/ops.h"

namespace somnus::cpu {
// Sums stay f32: a CPU's vectors hold them anyway, and tests compare exact tokens.
DataType SumType(const Device& device, DataType act) { return DataType::kF32; }

DataType RouterWeightType(const Device& device, DataType act) { return DataType::kF32; }

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
                  .expands = cpu.kernels().expands,
                  .reads_ahead = cpu.kernels().reads_ahead};
  PrepareLinearInput(cpu, x, w.dtype, cpu.workspace(), &args);
  const LinearKernel kernel = LinearKernelOf(cpu.kernels(), w.dtype, x.dtype);
  const int64_t block_rows = LinearBlockRows(cpu.kernels(), w.k);
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
