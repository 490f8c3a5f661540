#pragma once
// How weights of GGUF's quantized types lie in memory: the bytes of the file in another order, for all
// instruction sets the same. As in kernel_table.h every inline function has internal linkage.
//
// A panel is [k / QuantBlockValues] blocks of 32 columns each. A block is a header of the columns' scales:
//   f16 d[32] or, of MXFP4, an exponent each
//   f16 m[32] the minima (Q4_1, Q5_1) or the factors of the minima (K types)
//   uint8 s[][32]                the K types' scales and minima, packed as PackedScales says
// and sub-blocks of 32 values (one, or eight of a K type), each with the values' bits:
//   uint8 high[8][16]            one high bit (Q5_0, Q5_1, Q3_K, Q5_K): bit 4 * column + i of group g belongs
//                                to value 4 * g + i of the column
//   uint8 high[2][32][4]         or two (Q6_K)
//   uint8 low[8, 4 or 2][32][4] 8, 4 or 2 low bits Group g is values 4 * g to 4 * g + 3. Where a byte has
//   bits of several values, array [w] holds group w in the lowest bits, group w + w_count in the next bits,
//   and so on. Values are unsigned: numbers that a file stores as signed have an offset added.

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/tensor.h"

namespace somnus::cpu {

inline constexpr int64_t kQuantGroups = 8;  // of four values each, in a sub-block
inline constexpr int64_t kGroupBytes = kPanelWidth * 4;

// The scales of a block's sub-blocks.
enum class PackedScales {
  kNone,      // d and m are the scales
  kSixBits,   // two numbers of 6 bits for each sub-block: low[8][32] has both numbers' low nibbles in a byte,
              // high[4][32] of each the two bits above, sub-blocks 2 * i and 2 * i + 1 in byte i
  kFourBits,  // uint8 [16][32]: for each 16 values a scale in the low nibble, a minimum in the high one
  kEightBits,  // int8 [16][32]: for each 16 values a scale
};

struct QuantLayout {
  int low_bits;   // of a value
  int high_bits;  // above the low bits
  PackedScales scales = PackedScales::kNone;
  int parts = 1;  // of a sub-block, with a scale each
  bool minimum = false;
  int offset = 0;  // a value is scale * (stored - offset), or scale * stored + minimum
  int fixed = 2;   // bytes of d and m for each column

  constexpr int64_t PackedBytes() const {
    return scales == PackedScales::kNone ? 0 : scales == PackedScales::kSixBits ? 12 : 16;
  }
};

// IQ4_NL and MXFP4 store indices of values; the offset is that of the values.
static constexpr QuantLayout LayoutOf(DataType type) {
  switch (type) {
    case DataType::kQ8_0:
      return {.low_bits = 8, .high_bits = 0, .offset = 128};
    case DataType::kQ4_0:
      return {.low_bits = 4, .high_bits = 0, .offset = 8};
    case DataType::kQ4_1:
      return {.low_bits = 4, .high_bits = 0, .minimum = true, .fixed = 4};
    case DataType::kQ5_0:
      return {.low_bits = 4, .high_bits = 1, .offset = 16};
    case DataType::kQ5_1:
      return {.low_bits = 4, .high_bits = 1, .minimum = true, .fixed = 4};
    case DataType::kIQ4_NL:
      return {.low_bits = 4, .high_bits = 0, .offset = 128};
    case DataType::kMXFP4:
      return {.low_bits = 4, .high_bits = 0, .offset = 12, .fixed = 1};
    case DataType::kQ2_K:
      return {.low_bits = 2,
              .high_bits = 0,
              .scales = PackedScales::kFourBits,
              .parts = 2,
              .minimum = true,
              .fixed = 4};
    case DataType::kQ3_K:
      return {.low_bits = 2, .high_bits = 1, .scales = PackedScales::kSixBits, .parts = 2, .offset = 4};
    case DataType::kQ4_K:
      return {.low_bits = 4, .high_bits = 0, .scales = PackedScales::kSixBits, .minimum = true, .fixed = 4};
    case DataType::kQ5_K:
      return {.low_bits = 4, .high_bits = 1, .scales = PackedScales::kSixBits, .minimum = true, .fixed = 4};
    default:  // kQ6_K
      return {.low_bits = 4, .high_bits = 2, .scales = PackedScales::kEightBits, .parts = 2, .offset = 32};
  }
}

// The values that the indices of IQ4_NL and MXFP4 stand for.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static constexpr int64_t PanelBlockBytes(DataType type) { return kPanelWidth * QuantBlockBytes(type); }
static constexpr int64_t SubBlocks(DataType type) { return QuantBlockValues(type) / kQuantBlock; }
// Bytes from the start of a block of a panel, and of a sub-block.
static constexpr int64_t PackedScalesAt(DataType type) { return kPanelWidth * LayoutOf(type).fixed; }
static constexpr int64_t SubBlocksAt(DataType type) {
  return PackedScalesAt(type) + kPanelWidth * LayoutOf(type).PackedBytes();
}
static constexpr int64_t LowBitsAt(DataType type) { return LayoutOf(type).high_bits * kGroupBytes; }
static constexpr int64_t SubBlockBytes(DataType type) {
  return (LayoutOf(type).low_bits + LayoutOf(type).high_bits) * kGroupBytes;
}

// Calls fn.template operator()<type>() for each quantized type.
template <typename Fn>
static constexpr void ForEachQuantType(const Fn& fn) {
  fn.template operator()<DataType::kQ8_0>();
  fn.template operator()<DataType::kQ4_0>();
  fn.template operator()<DataType::kQ4_1>();
  fn.template operator()<DataType::kQ5_0>();
  fn.template operator()<DataType::kQ5_1>();
  fn.template operator()<DataType::kIQ4_NL>();
  fn.template operator()<DataType::kMXFP4>();
  fn.template operator()<DataType::kQ2_K>();
  fn.template operator()<DataType::kQ3_K>();
  fn.template operator()<DataType::kQ4_K>();
  fn.template operator()<DataType::kQ5_K>();
  fn.template operator()<DataType::kQ6_K>();
}

static constexpr bool PanelsHaveTheBytesOfFiles() {
  bool equal = true;
  ForEachQuantType([&]<DataType kType>() {
    equal = equal && SubBlocksAt(kType) + SubBlocks(kType) * SubBlockBytes(kType) == PanelBlockBytes(kType);
  });
  return equal;
}
static_assert(PanelsHaveTheBytesOfFiles());

// out[0, k) = the values of one row.
void UnpackQuantizedRow(const LinearWeight& weight, int64_t row, float* out);

}  // namespace somnus::cpu
