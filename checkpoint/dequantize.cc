#include "checkpoint/dequantize.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/float8.h"
#include "base/half_float.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

// Elements of one block, of the simple types and of the K types ("super-blocks").
constexpr int kGgmlBlock = 32;
constexpr int kSuperBlock = 256;
constexpr int kMaxBlock = kSuperBlock;

float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint32_t Load32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void ConvertF16(const uint8_t* src, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = LoadHalf(src + 2 * i);
}

void ConvertBf16(const uint8_t* src, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = FloatOfBits(static_cast<uint32_t>(Load16(src + 2 * i)) << 16);
}

// Block: half d; int8 q[32].
void ConvertQ8_0(const uint8_t* src, float* out) {
  const float d = LoadHalf(src);
  const auto* q = reinterpret_cast<const int8_t*>(src + 2);
  for (int i = 0; i < kGgmlBlock; ++i) out[i] = static_cast<float>(q[i]) * d;
}

// Block: half d; 16 bytes, low nibbles are elements 0-15, high nibbles 16-31.
void ConvertQ4_0(const uint8_t* src, float* out) {
  const float d = LoadHalf(src);
  const uint8_t* q = src + 2;
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>((q[i] & 0x0F) - 8) * d;
  for (int i = 0; i < 16; ++i) out[i + 16] = static_cast<float>((q[i] >> 4) - 8) * d;
}

// Block: half d, m; nibbles as in Q4_0.
void ConvertQ4_1(const uint8_t* src, float* out) {
  const float d = LoadHalf(src), m = LoadHalf(src + 2);
  const uint8_t* q = src + 4;
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(q[i] & 0x0F) * d + m;
  for (int i = 0; i < 16; ++i) out[i + 16] = static_cast<float>(q[i] >> 4) * d + m;
}

// The 32 5-bit values of a Q5 block: nibbles `q`, fifth bits in `high`.
void UnpackFiveBits(uint32_t high, const uint8_t* q, int32_t* values) {
  for (int i = 0; i < 16; ++i) values[i] = (q[i] & 0x0F) | static_cast<int32_t>((high >> i) & 1) << 4;
  for (int i = 0; i < 16; ++i)
    values[i + 16] = (q[i] >> 4) | static_cast<int32_t>((high >> (i + 16)) & 1) << 4;
}

// Block: half d; uint32 fifth bits; nibbles.
void ConvertQ5_0(const uint8_t* src, float* out) {
  const float d = LoadHalf(src);
  int32_t values[kGgmlBlock];
  UnpackFiveBits(Load32(src + 2), src + 6, values);
  for (int i = 0; i < kGgmlBlock; ++i) out[i] = static_cast<float>(values[i] - 16) * d;
}

// Block: half d, m; uint32 fifth bits; nibbles.
void ConvertQ5_1(const uint8_t* src, float* out) {
  const float d = LoadHalf(src), m = LoadHalf(src + 2);
  int32_t values[kGgmlBlock];
  UnpackFiveBits(Load32(src + 4), src + 8, values);
  for (int i = 0; i < kGgmlBlock; ++i) out[i] = static_cast<float>(values[i]) * d + m;
}

// Block: half d; nibbles as in Q4_0, each the index of a value.
void ConvertIQ4_NL(const uint8_t* src, float* out) {
  static constexpr int8_t kValues[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
  const float d = LoadHalf(src);
  const uint8_t* q = src + 2;
  for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(kValues[q[i] & 0x0F]);
  for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(kValues[q[i] >> 4]);
}

// Block: an exponent, 127 for 1.0; nibbles as in Q4_0, each a float of 4 bits (E2M1). The table has twice the
// nibbles' values, so the scale is half of the exponent's power.
void ConvertMXFP4(const uint8_t* src, float* out) {
  static constexpr int8_t kValues[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint32_t exponent = src[0];
  const float d = FloatOfBits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  const uint8_t* q = src + 1;
  for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(kValues[q[i] & 0x0F]);
  for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(kValues[q[i] >> 4]);
}

// Block: 16 bytes, a scale in the low nibble and a minimum in the high nibble for each 16 elements; 64 bytes
// bit pairs: two halves of 128 elements, each four groups of 32, lowest bits first; half d, dmin.
void ConvertQ2_K(const uint8_t* src, float* out) {
  const uint8_t* q = src + 16;
  const float d = LoadHalf(src + 80), dmin = LoadHalf(src + 82);
  for (int part = 0; part < 16; ++part) {
    const float d1 = d * static_cast<float>(src[part] & 0x0F), m1 = dmin * static_cast<float>(src[part] >> 4);
    const uint8_t* pairs = q + 32 * (part / 8) + 16 * (part % 2);
    const int shift = 2 * (part / 2 % 4);
    for (int i = 0; i < 16; ++i) *out++ = d1 * static_cast<float>((pairs[i] >> shift) & 3) - m1;
  }
}

// The 16 scales of a Q3_K block, 6 bits each, from -32: low nibbles in 8 bytes, high pairs in 4.
void UnpackScales(const uint8_t* packed, int8_t* scales) {
  for (int j = 0; j < 16; ++j) {
    const int low = (packed[j % 8] >> (4 * (j / 8))) & 0x0F, high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
    scales[j] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

// Block: 32 bytes third bits (bit j of byte i: element i of group j of 32); 64 bytes bit pairs as in Q2_K; 12
// bytes scales, each for 16 elements; half d. An element is the three bits' number less four.
void ConvertQ3_K(const uint8_t* src, float* out) {
  const float d = LoadHalf(src + 108);
  int8_t scales[16];
  UnpackScales(src + 96, scales);
  for (int part = 0; part < 16; ++part) {
    const float d1 = d * static_cast<float>(scales[part]);
    const uint8_t* high = src + 16 * (part % 2);
    const uint8_t* pairs = src + 32 + 32 * (part / 8) + 16 * (part % 2);
    const int shift = 2 * (part / 2 % 4);
    for (int i = 0; i < 16; ++i) {
      const int value = ((pairs[i] >> shift) & 3) | ((high[i] >> (part / 2)) & 1) << 2;
      *out++ = d1 * static_cast<float>(value - 4);
    }
  }
}

// Scale and minimum, 6 bits each, of sub-block j of a Q4_K or Q5_K block; 12 bytes hold eight pairs.
void UnpackScaleMin(const uint8_t* packed, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *min = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 0x0F) | (packed[j - 4] >> 6) << 4;
    *min = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
  }
}

// Block: half d, dmin; 12 bytes scales; 128 bytes nibbles. Eight sub-blocks of 32: low nibbles, then high
// nibbles.
void ConvertQ4_K(const uint8_t* src, float* out) {
  const float d = LoadHalf(src), dmin = LoadHalf(src + 2);
  const uint8_t* scales = src + 4;
  const uint8_t* q = src + 16;
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(scales, j, &scale, &min);
    const float d1 = d * scale, m1 = dmin * min;
    const uint8_t* pair = q + 32 * (j / 2);
    const int shift = 4 * (j % 2);
    for (int i = 0; i < 32; ++i) out[32 * j + i] = d1 * static_cast<float>((pair[i] >> shift) & 0x0F) - m1;
  }
}

// Block: half d, dmin; 12 bytes scales; 32 bytes fifth bits (bit j of byte i: element i of sub-block j);
// nibbles.
void ConvertQ5_K(const uint8_t* src, float* out) {
  const float d = LoadHalf(src), dmin = LoadHalf(src + 2);
  const uint8_t* scales = src + 4;
  const uint8_t* high = src + 16;
  const uint8_t* q = src + 48;
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(scales, j, &scale, &min);
    const float d1 = d * scale, m1 = dmin * min;
    const uint8_t* pair = q + 32 * (j / 2);
    const int shift = 4 * (j % 2);
    for (int i = 0; i < 32; ++i) {
      const int value = ((pair[i] >> shift) & 0x0F) | ((high[i] >> j) & 1) << 4;
      out[32 * j + i] = d1 * static_cast<float>(value) - m1;
    }
  }
}

// Block: 128 bytes low nibbles; 64 bytes high bit pairs; int8 scales[16]; half d. Two halves of 128 elements,
// each of four groups of 32: groups 0, 1 in the low nibbles, 2, 3 in the high nibbles; 16 elements share a
// scale.
void ConvertQ6_K(const uint8_t* src, float* out) {
  const float d = LoadHalf(src + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = src + 64 * half;
    const uint8_t* high = src + 128 + 32 * half;
    const auto* scales = reinterpret_cast<const int8_t*>(src + 192 + 8 * half);
    for (int group = 0; group < 4; ++group) {
      const uint8_t* nibbles = low + 32 * (group % 2);
      const int shift = 4 * (group / 2), high_shift = 2 * group;
      float* to = out + 128 * half + 32 * group;
      const float scale[2] = {d * scales[2 * group], d * scales[2 * group + 1]};
      for (int part = 0; part < 2; ++part) {
        for (int i = 16 * part; i < 16 * part + 16; ++i) {
          const int value = ((nibbles[i] >> shift) & 0x0F) | ((high[i] >> high_shift) & 3) << 4;
          to[i] = scale[part] * static_cast<float>(value - 32);
        }
      }
    }
  }
}

// Block: float d; f8e4m3 q[32].
void ConvertF8E4M3(const uint8_t* block, float* out) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  for (int i = 0; i < kGgmlBlock; ++i) out[i] = Float8ToFloat(block[sizeof(scale) + i]) * scale;
}

using ConvertBlock = void (*)(const uint8_t*, float*);

template <StorageType kType, ConvertBlock kConvert>
void ConvertBlocks(const uint8_t* src, int64_t blocks, float* out) {
  constexpr BlockSize kSize = BlockSizeOf(kType);
  for (int64_t b = 0; b < blocks; ++b) kConvert(src + b * kSize.bytes, out + b * kSize.elements);
}

void CopyF32(const uint8_t* src, int64_t count, float* out) {
  std::memcpy(out, src, static_cast<size_t>(count) * sizeof(float));
}

// By StorageType.
constexpr void (*kConverters[])(const uint8_t*, int64_t, float*) = {
    CopyF32,
    ConvertF16,
    ConvertBf16,
    ConvertBlocks<StorageType::kQ8_0, ConvertQ8_0>,
    ConvertBlocks<StorageType::kQ4_0, ConvertQ4_0>,
    ConvertBlocks<StorageType::kQ4_1, ConvertQ4_1>,
    ConvertBlocks<StorageType::kQ5_0, ConvertQ5_0>,
    ConvertBlocks<StorageType::kQ5_1, ConvertQ5_1>,
    ConvertBlocks<StorageType::kIQ4_NL, ConvertIQ4_NL>,
    ConvertBlocks<StorageType::kMXFP4, ConvertMXFP4>,
    ConvertBlocks<StorageType::kQ2_K, ConvertQ2_K>,
    ConvertBlocks<StorageType::kQ3_K, ConvertQ3_K>,
    ConvertBlocks<StorageType::kQ4_K, ConvertQ4_K>,
    ConvertBlocks<StorageType::kQ5_K, ConvertQ5_K>,
    ConvertBlocks<StorageType::kQ6_K, ConvertQ6_K>,
    ConvertBlocks<StorageType::kF8E4M3, ConvertF8E4M3>,
};
static_assert(std::size(kConverters) == std::size(kStorageTypeInfos));

}  // namespace

void DequantizeBlocks(StorageType type, const uint8_t* src, int64_t blocks, float* out) {
  if (blocks > 0) kConverters[static_cast<int>(type)](src, blocks, out);
}

void DequantizeRange(StorageType type, const uint8_t* src, int64_t begin, int64_t end, float* out) {
  const BlockSize size = BlockSizeOf(type);
  float buffer[kMaxBlock];
  while (begin < end) {
    const int64_t block = begin / size.elements, offset = begin % size.elements;
    const uint8_t* from = src + block * size.bytes;
    if (offset == 0 && end - begin >= size.elements) {
      const int64_t blocks = (end - begin) / size.elements;
      DequantizeBlocks(type, from, blocks, out);
      begin += blocks * size.elements;
      out += blocks * size.elements;
      continue;
    }
    DequantizeBlocks(type, from, 1, buffer);
    const int64_t count = std::min(size.elements - offset, end - begin);
    std::memcpy(out, buffer + offset, static_cast<size_t>(count) * sizeof(float));
    begin += count;
    out += count;
  }
}

}  // namespace somnus
