#include "kernels/cpu/quantized_blocks.h"

#include <cstring>
#include <utility>

#include "base/half_float.h"
#include "kernels/cpu/quantized_layout.h"

namespace somnus::cpu {
namespace {

template <typename Word>
Word Load(const uint8_t* p) {
  Word value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
template <typename Word>
void Store(uint8_t* p, Word value) {
  std::memcpy(p, &value, sizeof(value));
}

// `bits` ones in each byte.
template <typename Word>
constexpr Word ByteMask(int bits) {
  return static_cast<Word>(0x0101010101010101u) * ((1u << bits) - 1);
}

// Bits [shift, shift + bits) of each of `count` bytes are put at bit `to` of a value: as the value's first
// bits, or beside bits that the value has already.
void PutBits(const uint8_t* from, int shift, int bits, int count, uint8_t* values) {
  for (int i = 0; i < count; i += 8)
    Store(values + i, Load<uint64_t>(from + i) >> shift & ByteMask<uint64_t>(bits));
}
void AddBits(const uint8_t* from, int shift, int bits, int to, int count, uint8_t* values) {
  for (int i = 0; i < count; i += 8) {
    const uint64_t added = (Load<uint64_t>(from + i) >> shift & ByteMask<uint64_t>(bits)) << to;
    Store(values + i, Load<uint64_t>(values + i) | added);
  }
}

float HalfToFloat(uint16_t bits) {
  uint8_t bytes[2];
  std::memcpy(bytes, &bits, 2);
  return LoadHalf(bytes);
}

float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// ---- GGUF's blocks

// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4: d, m if the type has m, 32 high bits if the type has them,
// values. Values of 4 bits: 0 to 15 in the low nibbles, 16 to 31 in the high nibbles.
void ReadSimpleBlock(const QuantLayout& layout, const uint8_t* from, QuantBlockNumbers* numbers) {
  numbers->d = from[0];
  if (layout.fixed > 1) numbers->d = Load<uint16_t>(from);
  if (layout.fixed > 2) numbers->m = Load<uint16_t>(from + 2);
  from += layout.fixed;
  uint8_t* const values = numbers->values;
  if (layout.low_bits == 8) {
    for (int i = 0; i < 32; i += 8) Store(values + i, Load<uint64_t>(from + i) ^ ByteMask<uint64_t>(1) << 7);
    return;
  }
  const uint8_t* const nibbles = from + (layout.high_bits == 1 ? 4 : 0);
  PutBits(nibbles, 0, 4, 16, values);
  PutBits(nibbles, 4, 4, 16, values + 16);
  if (layout.high_bits == 0) return;
  for (int i = 0; i < 32; i += 8) {
    // Byte j of the product's terms has bit j at its place.
    const uint64_t spread = from[i / 8] * ByteMask<uint64_t>(1) & 0x8040201008040201u;
    const uint64_t bits = (spread + 0x7f7f7f7f7f7f7f7fu) >> 7 & ByteMask<uint64_t>(1);
    Store(values + i, Load<uint64_t>(values + i) | bits << 4);
  }
}

// 16 bytes of scales in the low nibbles and minima in the high nibbles; 64 bytes bit pairs; d, m. Bit pairs
// are two halves of 128 values, each four groups of 32, the lowest bits of 32 bytes first.
void ReadQ2K(const uint8_t* from, QuantBlockNumbers* numbers) {
  for (int i = 0; i < 16; ++i) numbers->scales[i] = from[i] & 0xf;
  for (int i = 0; i < 16; ++i) numbers->minima[i] = from[i] >> 4;
  for (int group = 0; group < 8; ++group)
    PutBits(from + 16 + 32 * (group / 4), 2 * (group % 4), 2, 32, numbers->values + 32 * group);
  numbers->d = Load<uint16_t>(from + 80);
  numbers->m = Load<uint16_t>(from + 82);
}

// 32 bytes third bits, bit j of byte i for value i of group j; 64 bytes bit
// pairs; 12 bytes scales, low nibbles in 8 and high pairs in 4; d.
void ReadQ3K(const uint8_t* from, QuantBlockNumbers* numbers) {
  for (int group = 0; group < 8; ++group) {
    uint8_t* const values = numbers->values + 32 * group;
    PutBits(from + 32 + 32 * (group / 4), 2 * (group % 4), 2, 32, values);
    AddBits(from, group, 1, 2, 32, values);
  }
  const uint8_t* const low = from + 96;
  const uint8_t* const high = from + 104;
  for (int i = 0; i < 16; ++i)
    numbers->scales[i] = (low[i % 8] >> (4 * (i / 8)) & 0xf) | (high[i % 4] >> (2 * (i / 4)) & 3) << 4;
  numbers->d = Load<uint16_t>(from + 108);
}

// For Q4_K and Q5_K: d and m, then 12 bytes of 8 scales and 8 minima, 6 bits each. The first four scales, and
// minima, are whole in 4 bytes; the low nibbles of the last four share 4 more bytes, and their high bits lie
// above the first four.
void ReadScalesAndMinima(const uint8_t* from, QuantBlockNumbers* numbers) {
  numbers->d = Load<uint16_t>(from);
  numbers->m = Load<uint16_t>(from + 2);
  const uint8_t* const packed = from + 4;
  for (int i = 0; i < 4; ++i) {
    numbers->scales[i] = packed[i] & 63;
    numbers->minima[i] = packed[4 + i] & 63;
    numbers->scales[4 + i] = (packed[8 + i] & 0xf) | packed[i] >> 6 << 4;
    numbers->minima[4 + i] = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
  }
}

// 128 bytes of nibbles: 32 bytes are a group of 32 values in the low nibbles, the next group in the high
// nibbles. Q5_K's fifth bits are 32 bytes, as Q3_K's third bits.
void ReadQ4K(const uint8_t* from, QuantBlockNumbers* numbers) {
  ReadScalesAndMinima(from, numbers);
  for (int group = 0; group < 8; ++group)
    PutBits(from + 16 + 32 * (group / 2), 4 * (group % 2), 4, 32, numbers->values + 32 * group);
}

void ReadQ5K(const uint8_t* from, QuantBlockNumbers* numbers) {
  ReadScalesAndMinima(from, numbers);
  for (int group = 0; group < 8; ++group) {
    uint8_t* const values = numbers->values + 32 * group;
    PutBits(from + 48 + 32 * (group / 2), 4 * (group % 2), 4, 32, values);
    AddBits(from + 16, group, 1, 4, 32, values);
  }
}

// 128 bytes of nibbles, in which each half of 128 values has groups 0 and 1 of 32 in the low nibbles of 64
// bytes, groups 2 and 3 in the high nibbles; 64 bytes of the bit pairs above; 16 scales; d.
void ReadQ6K(const uint8_t* from, QuantBlockNumbers* numbers) {
  for (int group = 0; group < 8; ++group) {
    uint8_t* const values = numbers->values + 32 * group;
    PutBits(from + 64 * (group / 4) + 32 * (group % 2), 4 * (group / 2 % 2), 4, 32, values);
    AddBits(from + 128 + 32 * (group / 4), 2 * (group % 4), 2, 4, 32, values);
  }
  std::memcpy(numbers->scales, from + 192, 16);
  numbers->d = Load<uint16_t>(from + 208);
}

// ---- Columns of panels

// kBits bits of each of 32 values, from bit `shift` on, into arrays
// [kBits][32][4] and back.
template <int kBits>
void WriteBits(const uint8_t* values, int shift, int64_t column, uint8_t* to) {
  for (int w = 0; w < kBits; ++w) {
    uint32_t word = 0;
    for (int g = w; g < kQuantGroups; g += kBits)
      word |= (Load<uint32_t>(values + 4 * g) >> shift & ByteMask<uint32_t>(kBits)) << (g - w);
    Store(to + w * kGroupBytes + column * 4, word);
  }
}
template <int kBits>
void AddColumnBits(const uint8_t* from, int shift, int64_t column, uint8_t* values) {
  for (int g = 0; g < kQuantGroups; ++g) {
    const uint32_t word = Load<uint32_t>(from + g % kBits * kGroupBytes + column * 4) >> (g / kBits * kBits);
    const uint32_t bits = (word & ByteMask<uint32_t>(kBits)) << shift;
    Store(values + 4 * g, Load<uint32_t>(values + 4 * g) | bits);
  }
}

// One bit of each of 32 values, bit `shift`. Two columns share a byte.
void WriteSingleBits(const uint8_t* values, int shift, int64_t column, uint8_t* to) {
  for (int64_t g = 0; g < kQuantGroups; ++g) {
    // The multiplication gathers the lowest bit of each of four bytes.
    const uint32_t ones = Load<uint32_t>(values + 4 * g) >> shift & ByteMask<uint32_t>(1);
    const uint32_t bits = ones * 0x01020408u >> 24;
    uint8_t* const byte = to + g * kPanelWidth / 2 + column / 2;
    const int at = column % 2 * 4;
    *byte = static_cast<uint8_t>((*byte & ~(0xf << at)) | bits << at);
  }
}
void AddSingleBits(const uint8_t* from, int shift, int64_t column, uint8_t* values) {
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    const uint8_t byte = from[i / 4 * kPanelWidth / 2 + column / 2];
    values[i] |= (byte >> (column % 2 * 4 + i % 4) & 1) << shift;
  }
}

// Writes a sub-block of any type: low bits as the type stores them, and the high bits above.
void WriteSubBlock(const QuantLayout& layout, const uint8_t* values, int64_t column, uint8_t* high,
                   uint8_t* low) {
  if (layout.low_bits == 8) WriteBits<8>(values, 0, column, low);
  if (layout.low_bits == 4) WriteBits<4>(values, 0, column, low);
  if (layout.low_bits == 2) WriteBits<2>(values, 0, column, low);
  if (layout.high_bits == 1) WriteSingleBits(values, layout.low_bits, column, high);
  if (layout.high_bits == 2) WriteBits<2>(values, layout.low_bits, column, high);
}
void AddSubBlock(const QuantLayout& layout, const uint8_t* high, const uint8_t* low, int64_t column,
                 uint8_t* values) {
  if (layout.low_bits == 8) AddColumnBits<8>(low, 0, column, values);
  if (layout.low_bits == 4) AddColumnBits<4>(low, 0, column, values);
  if (layout.low_bits == 2) AddColumnBits<2>(low, 0, column, values);
  if (layout.high_bits == 1) AddSingleBits(high, layout.low_bits, column, values);
  if (layout.high_bits == 2) AddColumnBits<2>(high, layout.low_bits, column, values);
}

// The two numbers of 6 bits of sub-block `sub`: the scale and the minimum, or the two scales.
template <typename Numbers>
auto PairOf(DataType type, int sub, Numbers* numbers) {
  return LayoutOf(type).parts == 1 ? std::pair(numbers->scales + sub, numbers->minima + sub)
                                   : std::pair(numbers->scales + 2 * sub, numbers->scales + 2 * sub + 1);
}

void WriteScales(DataType type, const QuantBlockNumbers& numbers, uint8_t* to) {
  switch (LayoutOf(type).scales) {
    case PackedScales::kNone:
      return;
    case PackedScales::kSixBits:
      for (int i = 0; i < 4; ++i) {
        uint8_t high = 0;
        for (int sub = 2 * i; sub < 2 * i + 2; ++sub) {
          const auto pair = PairOf(type, sub, &numbers);
          to[sub * kPanelWidth] = static_cast<uint8_t>((*pair.first & 0xf) | (*pair.second & 0xf) << 4);
          high |= (*pair.first >> 4 | *pair.second >> 4 << 2) << (sub % 2 * 4);
        }
        to[(8 + i) * kPanelWidth] = high;
      }
      return;
    case PackedScales::kFourBits:
      for (int i = 0; i < 16; ++i)
        to[i * kPanelWidth] = static_cast<uint8_t>(numbers.scales[i] | numbers.minima[i] << 4);
      return;
    case PackedScales::kEightBits:
      for (int i = 0; i < 16; ++i) to[i * kPanelWidth] = numbers.scales[i];
  }
}

void ReadScales(DataType type, const uint8_t* from, QuantBlockNumbers* numbers) {
  switch (LayoutOf(type).scales) {
    case PackedScales::kNone:
      return;
    case PackedScales::kSixBits:
      for (int sub = 0; sub < 8; ++sub) {
        const auto pair = PairOf(type, sub, numbers);
        const int low = from[sub * kPanelWidth], high = from[(8 + sub / 2) * kPanelWidth] >> (sub % 2 * 4);
        *pair.first = static_cast<uint8_t>((low & 0xf) | (high & 3) << 4);
        *pair.second = static_cast<uint8_t>(low >> 4 | (high >> 2 & 3) << 4);
      }
      return;
    case PackedScales::kFourBits:
      for (int i = 0; i < 16; ++i) numbers->scales[i] = from[i * kPanelWidth] & 0xf;
      for (int i = 0; i < 16; ++i) numbers->minima[i] = from[i * kPanelWidth] >> 4;
      return;
    case PackedScales::kEightBits:
      for (int i = 0; i < 16; ++i) numbers->scales[i] = from[i * kPanelWidth];
  }
}

// ---- Floats

// The factor of part `part` of a block.
float ScaleOf(DataType type, const QuantBlockNumbers& numbers, int64_t part) {
  if (type == DataType::kMXFP4)  // twice the values of E2M1 are in the table, so
                                 // the scale is halved
    return FloatOfBits(numbers.d < 2 ? 0x00200000u << numbers.d : (numbers.d - 1u) << 23);
  const float d = HalfToFloat(numbers.d);
  const int scale = numbers.scales[part];
  switch (LayoutOf(type).scales) {
    case PackedScales::kNone:
      return d;
    case PackedScales::kEightBits:
      return d * static_cast<float>(static_cast<int8_t>(scale));
    default:
      return d * static_cast<float>(type == DataType::kQ3_K ? scale - 32 : scale);
  }
}

// The value that the part's minimum adds.
float MinimumOf(DataType type, const QuantBlockNumbers& numbers, int64_t part) {
  const QuantLayout layout = LayoutOf(type);
  if (!layout.minimum) return 0;
  const float m = HalfToFloat(numbers.m);
  return layout.scales == PackedScales::kNone ? m : -(m * static_cast<float>(numbers.minima[part]));
}

}  // namespace

void ReadStoredBlock(DataType type, const uint8_t* from, QuantBlockNumbers* numbers) {
  switch (type) {
    case DataType::kQ2_K:
      return ReadQ2K(from, numbers);
    case DataType::kQ3_K:
      return ReadQ3K(from, numbers);
    case DataType::kQ4_K:
      return ReadQ4K(from, numbers);
    case DataType::kQ5_K:
      return ReadQ5K(from, numbers);
    case DataType::kQ6_K:
      return ReadQ6K(from, numbers);
    default:
      return ReadSimpleBlock(LayoutOf(type), from, numbers);
  }
}

void WriteColumn(DataType type, const QuantBlockNumbers& numbers, int64_t column, uint8_t* block) {
  const QuantLayout layout = LayoutOf(type);
  if (layout.fixed == 1) {
    block[column] = static_cast<uint8_t>(numbers.d);
  } else {
    std::memcpy(block + 2 * column, &numbers.d, 2);
  }
  if (layout.fixed > 2) std::memcpy(block + 2 * (kPanelWidth + column), &numbers.m, 2);
  WriteScales(type, numbers, block + PackedScalesAt(type) + column);
  for (int64_t sub = 0; sub < SubBlocks(type); ++sub) {
    uint8_t* const to = block + SubBlocksAt(type) + sub * SubBlockBytes(type);
    WriteSubBlock(layout, numbers.values + kQuantBlock * sub, column, to, to + LowBitsAt(type));
  }
}

void ReadColumn(DataType type, const uint8_t* block, int64_t column, QuantBlockNumbers* numbers) {
  const QuantLayout layout = LayoutOf(type);
  *numbers = {};
  numbers->d = block[column];
  if (layout.fixed > 1) std::memcpy(&numbers->d, block + 2 * column, 2);
  if (layout.fixed > 2) std::memcpy(&numbers->m, block + 2 * (kPanelWidth + column), 2);
  ReadScales(type, block + PackedScalesAt(type) + column, numbers);
  for (int64_t sub = 0; sub < SubBlocks(type); ++sub) {
    const uint8_t* const from = block + SubBlocksAt(type) + sub * SubBlockBytes(type);
    AddSubBlock(layout, from, from + LowBitsAt(type), column, numbers->values + kQuantBlock * sub);
  }
}

void BlockToFloats(DataType type, const QuantBlockNumbers& numbers, float* out) {
  const QuantLayout layout = LayoutOf(type);
  const int64_t per_part = kQuantBlock / layout.parts;
  for (int64_t part = 0; part < QuantBlockValues(type) / per_part; ++part) {
    const float scale = ScaleOf(type, numbers, part), minimum = MinimumOf(type, numbers, part);
    for (int64_t i = part * per_part; i < (part + 1) * per_part; ++i) {
      const int stored = numbers.values[i];
      const int value = type == DataType::kIQ4_NL  ? kIq4Values[stored]
                        : type == DataType::kMXFP4 ? kFp4Values[stored]
                                                   : stored - layout.offset;
      const float product = static_cast<float>(value) * scale;
      out[i] = layout.minimum ? product + minimum : product;
    }
  }
}

}  // namespace somnus::cpu
