// Quantized weights into panels and, for Embedding, back: the bytes of GGUF blocks in another order.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half_float.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantized_layout.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

uint32_t Load32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void Store32(uint8_t* p, uint32_t value) { std::memcpy(p, &value, sizeof(value)); }

// The block of a panel that holds block `block` of row `row`.
uint8_t* BlockOf(const LinearWeight& weight, int64_t row, int64_t block) {
  return static_cast<uint8_t*>(weight.data) + row / kPanelWidth * PanelBytes(weight.dtype, weight.k) +
         block * PanelBlockBytes(weight.dtype);
}

// The fifth bits of a stored block: bit i belongs to value i. Two columns share a byte.
void PackFifthBits(uint32_t bits, int64_t column, uint8_t* high) {
  for (int64_t g = 0; g < kQuantGroups; ++g) {
    uint8_t* const byte = high + g * kPanelWidth / 2 + column / 2;
    const int shift = column % 2 * 4;
    *byte = static_cast<uint8_t>((*byte & ~(0xf << shift)) | (bits >> 4 * g & 0xf) << shift);
  }
}

// `from`: GGUF's block, {f16 d, f16 m where there is one, uint32 fifth bits where there are some, values}.
// Values of four bits have 0 to 15 in the low nibbles and 16 to 31 in the high ones: groups as here.
template <DataType kType>
void PackBlock(const uint8_t* from, int64_t column, uint8_t* to) {
  constexpr int64_t kScales = HasMinimum(kType) ? 2 : 1;
  for (int64_t i = 0; i < kScales; ++i, from += 2) std::memcpy(to + (i * kPanelWidth + column) * 2, from, 2);
  if constexpr (HasFifthBit(kType)) {
    PackFifthBits(Load32(from), column, to + HighBitsAt(kType));
    from += 4;
  }
  constexpr bool kBytes = kType == DataType::kQ8_0;
  uint8_t* const values = to + ValuesAt(kType) + column * 4;
  for (int64_t g = 0; g < (kBytes ? kQuantGroups : kQuantGroups / 2); ++g) {
    Store32(values + g * kGroupBytes, Load32(from + 4 * g) ^ (kBytes ? 0x80808080u : 0));
  }
}

template <DataType kType>
void PackRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const uint8_t* rows) {
  const int64_t blocks = weight.k / kQuantBlock;
  constexpr int64_t kBytes = QuantBlockBytes(kType);
  for (int64_t i = 0; i < num_rows;) {
    // The rows of one panel side by side, so that its blocks are written one after another.
    const int64_t row = row_begin + i;
    const int64_t count = std::min(num_rows - i, kPanelWidth - row % kPanelWidth);
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t* const block = BlockOf(weight, row, b);
      for (int64_t r = 0; r < count; ++r)
        PackBlock<kType>(rows + ((i + r) * blocks + b) * kBytes, row % kPanelWidth + r, block);
    }
    i += count;
  }
}

template <DataType kType>
void UnpackRow(const LinearWeight& weight, int64_t row, float* out) {
  const int64_t column = row % kPanelWidth;
  for (int64_t b = 0; b < weight.k / kQuantBlock; ++b, out += kQuantBlock) {
    const uint8_t* const block = BlockOf(weight, row, b);
    const float d = LoadHalf(block + 2 * column);
    const float m = HasMinimum(kType) ? LoadHalf(block + 2 * (kPanelWidth + column)) : 0;
    const uint8_t* const values = block + ValuesAt(kType) + column * 4;
    for (int64_t i = 0; i < kQuantBlock; ++i) {
      const int64_t g = i / 4;
      int32_t q;
      if constexpr (kType == DataType::kQ8_0) {
        q = values[g * kGroupBytes + i % 4];
      } else {
        q = values[g % 4 * kGroupBytes + i % 4] >> (g < 4 ? 0 : 4) & 0xf;
      }
      if constexpr (HasFifthBit(kType)) {
        const uint8_t high = block[HighBitsAt(kType) + g * kPanelWidth / 2 + column / 2];
        q |= (high >> (column % 2 * 4 + i % 4) & 1) << 4;
      }
      const float product = static_cast<float>(q - QuantOffset(kType)) * d;
      out[i] = HasMinimum(kType) ? product + m : product;
    }
  }
}

// Calls fn.template operator()<type>().
template <typename Fn>
void WithType(DataType type, const Fn& fn) {
  switch (type) {
    case DataType::kQ8_0:
      return fn.template operator()<DataType::kQ8_0>();
    case DataType::kQ4_0:
      return fn.template operator()<DataType::kQ4_0>();
    case DataType::kQ4_1:
      return fn.template operator()<DataType::kQ4_1>();
    case DataType::kQ5_0:
      return fn.template operator()<DataType::kQ5_0>();
    case DataType::kQ5_1:
      return fn.template operator()<DataType::kQ5_1>();
    default:
      SOMNUS_CHECK(false);
  }
}

}  // namespace

bool ComputesQuantized(const Device& device, DataType type) {
  return AsCpu(device).kernels().linear[static_cast<int>(type)] != nullptr;
}

void PackQuantizedRows(const Device&, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                       const uint8_t* rows) {
  WithType(weight.dtype, [&]<DataType kType>() { PackRows<kType>(weight, row_begin, num_rows, rows); });
}

void UnpackQuantizedRow(const LinearWeight& weight, int64_t row, float* out) {
  WithType(weight.dtype, [&]<DataType kType>() { UnpackRow<kType>(weight, row, out); });
}

}  // namespace somnus::cpu
