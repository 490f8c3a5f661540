#pragma once
// f8e4m3, the 8-bit float of fp8 checkpoints: a sign, four bits of exponent with bias 7, three of mantissa.
// The largest value is 448; there are no infinities, and NaN is 0x7f or 0xff. Pure functions.

#include <bit>
#include <cstdint>
#include <limits>

namespace somnus {

constexpr bool IsFloat8Nan(uint8_t bits) { return (bits & 0x7f) == 0x7f; }

constexpr float Float8ToFloat(uint8_t bits) {
  if (IsFloat8Nan(bits)) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t magnitude = bits & 0x7f;
  // Subnormal numbers are multiples of 2^-9; normal numbers get f32's bias.
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                                    : std::bit_cast<float>((magnitude << 20) + (120u << 23));
  return bits & 0x80 ? -value : value;
}

}  // namespace somnus
