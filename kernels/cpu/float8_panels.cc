#include "kernels/cpu/float8_panels.h"

#include <algorithm>
#include <cstring>

#include "base/float8.h"
#include "kernels/cpu/kernel_table.h"

namespace somnus::cpu {
namespace {

constexpr int64_t kBlockBytes = QuantBlockBytes(DataType::kF8E4M3);
constexpr int64_t kScaleBytes = sizeof(float);

// The panel of a row, and the places of the panel's parts.
struct Panel {
  Panel(const LinearWeight& weight, int64_t row)
      : columns(reinterpret_cast<float*>(static_cast<char*>(weight.data) +
                                         row / kPanelWidth * PanelBytes(weight.dtype, weight.k))),
        scales(columns + kPanelWidth),
        numbers(reinterpret_cast<uint8_t*>(columns) + F8NumbersAt(weight.k)) {}

  // The number of one column.
  uint8_t& Number(int64_t k, int64_t column) const {
    return numbers[(k / 2 * kPanelWidth + column) * 2 + k % 2];
  }

  float* columns;
  float* scales;
  uint8_t* numbers;
};

// The scales of a stored row, as the column's scale where all are equal (also where all are NaN), and else as
// the panel's scales, which all rows of the panel share.
void PackScales(const Panel& panel, int64_t column, const uint8_t* row, int64_t blocks) {
  bool one = true;
  for (int64_t b = 1; b < blocks; ++b)
    one = one && std::memcmp(row, row + b * kBlockBytes, static_cast<size_t>(kScaleBytes)) == 0;
  const float unit = 1;
  std::memcpy(panel.columns + column, one ? row : reinterpret_cast<const uint8_t*>(&unit), kScaleBytes);
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* const scale = one ? reinterpret_cast<const uint8_t*>(&unit) : row + b * kBlockBytes;
    std::memcpy(panel.scales + b, scale, kScaleBytes);
  }
}

}  // namespace

void PackF8Rows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const uint8_t* rows) {
  const int64_t blocks = weight.k / kQuantBlock, row_bytes = blocks * kBlockBytes;
  for (int64_t i = 0; i < num_rows;) {
    const int64_t row = row_begin + i, column = row % kPanelWidth;
    const int64_t count = std::min(num_rows - i, kPanelWidth - column);
    const Panel panel(weight, row);
    const uint8_t* const from = rows + i * row_bytes;
    for (int64_t r = 0; r < count; ++r) PackScales(panel, column + r, from + r * row_bytes, blocks);
    // The rows of one panel side by side, so that the panel is written from start to end.
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < count; ++r) {
        const uint8_t* const numbers = from + r * row_bytes + b * kBlockBytes + kScaleBytes;
        for (int64_t j = 0; j < kQuantBlock; ++j) panel.Number(b * kQuantBlock + j, column + r) = numbers[j];
      }
    }
    i += count;
  }
}

void UnpackF8Row(const LinearWeight& weight, int64_t row, float* out) {
  const Panel panel(weight, row);
  const int64_t column = row % kPanelWidth;
  for (int64_t k = 0; k < weight.k; ++k)
    out[k] = Float8ToFloat(panel.Number(k, column)) * panel.scales[k / kQuantBlock] * panel.columns[column];
}

}  // namespace somnus::cpu
