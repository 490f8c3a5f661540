#pragma once
// How weights lie in memory whose type stores blocks of 32 values, GGUF's Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1:
// the bytes of the file in another order, for all instruction sets the same. As in kernel_table.h every
// inline function has internal linkage.
//
// A panel is [k / 32] blocks of 32 columns each. A block is:
//   f16 d[32]                    each column's scale
//   f16 m[32]                    each column's minimum (Q4_1, Q5_1)
//   uint8 high[8][16]            the fifth bits (Q5_0, Q5_1): bit 4 * column + i of group g belongs to value
//                                4 * g + i of the column
//   uint8 q[8 or 4][32][4]       group g holds values 4 * g to 4 * g + 3 of each column. Where there are 4
//                                groups, group g holds those in the low nibbles, those of group g + 4 in the
//                                high ones.
// Values are unsigned: what is stored in a file as a signed number has QuantOffset added.

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/tensor.h"

namespace somnus::cpu {

inline constexpr int64_t kQuantGroups = 8;  // of four values each
inline constexpr int64_t kGroupBytes = kPanelWidth * 4;

static constexpr bool HasMinimum(DataType type) { return type == DataType::kQ4_1 || type == DataType::kQ5_1; }
static constexpr bool HasFifthBit(DataType type) {
  return type == DataType::kQ5_0 || type == DataType::kQ5_1;
}
// A value is d * (stored - offset), or d * stored + m.
static constexpr int32_t QuantOffset(DataType type) {
  return type == DataType::kQ8_0 ? 128 : type == DataType::kQ4_0 ? 8 : type == DataType::kQ5_0 ? 16 : 0;
}

// Bytes from the start of a block of a panel.
static constexpr int64_t HighBitsAt(DataType type) { return kPanelWidth * (HasMinimum(type) ? 4 : 2); }
static constexpr int64_t ValuesAt(DataType type) {
  return HighBitsAt(type) + (HasFifthBit(type) ? kPanelWidth * 4 : 0);
}
static constexpr int64_t PanelBlockBytes(DataType type) { return kPanelWidth * QuantBlockBytes(type); }

// out[0, k) = the values of one row.
void UnpackQuantizedRow(const LinearWeight& weight, int64_t row, float* out);

}  // namespace somnus::cpu
