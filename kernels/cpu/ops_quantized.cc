// Quantized weights into panels and, for Embedding, back.

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/float8_panels.h"
#include "kernels/cpu/quantized_blocks.h"
#include "kernels/cpu/quantized_layout.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

// The block of a panel that holds block `block` of row `row`.
uint8_t* BlockOf(const LinearWeight& weight, int64_t row, int64_t block) {
  return static_cast<uint8_t*>(weight.data) + row / kPanelWidth * PanelBytes(weight.dtype, weight.k) +
         block * PanelBlockBytes(weight.dtype);
}

}  // namespace

bool ComputesQuantized(const Device& device, DataType type) {
  return AsCpu(device).kernels().linear[static_cast<int>(type)] != nullptr;
}

void PackQuantizedRows(const Device&, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                       const uint8_t* rows) {
  if (weight.dtype == DataType::kF8E4M3) return PackF8Rows(weight, row_begin, num_rows, rows);
  const int64_t blocks = weight.k / QuantBlockValues(weight.dtype);
  const int64_t block_bytes = QuantBlockBytes(weight.dtype);
  QuantBlockNumbers numbers;
  for (int64_t i = 0; i < num_rows;) {
    // The rows of one panel side by side, so that the panel's blocks are written in order.
    const int64_t row = row_begin + i;
    const int64_t count = std::min(num_rows - i, kPanelWidth - row % kPanelWidth);
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t* const block = BlockOf(weight, row, b);
      for (int64_t r = 0; r < count; ++r) {
        ReadStoredBlock(weight.dtype, rows + ((i + r) * blocks + b) * block_bytes, &numbers);
        WriteColumn(weight.dtype, numbers, row % kPanelWidth + r, block);
      }
    }
    i += count;
  }
}

void UnpackQuantizedRow(const LinearWeight& weight, int64_t row, float* out) {
  if (weight.dtype == DataType::kF8E4M3) return UnpackF8Row(weight, row, out);
  const int64_t values = QuantBlockValues(weight.dtype);
  QuantBlockNumbers numbers;
  for (int64_t b = 0; b < weight.k / values; ++b) {
    ReadColumn(weight.dtype, BlockOf(weight, row, b), row % kPanelWidth, &numbers);
    BlockToFloats(weight.dtype, numbers, out + b * values);
  }
}

}  // namespace somnus::cpu
