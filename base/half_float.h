#pragma once
// IEEE half precision, as files store it, to f32. Pure.

#include <cstdint>
#include <cstring>

namespace somnus {

// The value whose bits are at `p`, which need not be aligned. Without branches, so that loops over it become
// vector code: scaling by 2^112 rebiases the exponent and normalizes subnormal numbers.
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

}  // namespace somnus
