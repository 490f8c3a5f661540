#pragma once
// IEEE half precision, as files store it, to f32 and back. Pure.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace somnus {

// The value whose bits are at `p`, which need not be aligned. Without branches, so that loops over LoadHalf
// become vector code: scaling by 2^112 rebiases the exponent and normalizes subnormal numbers.
inline float LoadHalf(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof(half));
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t bits = magnitude << 13;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  value *= 0x1p112f;
  std::memcpy(&bits, &value, sizeof(bits));
  bits |= (magnitude >= 0x7c00u ? 0x7f800000u : 0u) | (half & 0x8000u) << 16;  // infinities, NaN and the sign
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The bits of the nearest half; ties go to the even half, and values that are too large become infinity.
inline uint16_t RoundToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);  // NaN
  if (magnitude < 0x38800000u) {  // subnormal: a multiple of 2^-24, of which 1024 are the smallest normal
                                  // number
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::fabs(value) * 0x1p24f)));
  }
  const uint32_t rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  return static_cast<uint16_t>(sign | std::min(rounded - (112u << 10), 0x7c00u));
}

}  // namespace somnus
