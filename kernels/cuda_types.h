#pragma once
// Element types of kernels: bf16, f16, f8e4m3 and i8 as storage, f32 for arithmetic, and vectors of these
// that are moved by one access of up to 16 bytes. Trivial types, which may lie in unions, shared memory and
// registers.
//
// Conversions from f32 round to nearest even. NaN becomes the type's canonical NaN (0x7fff, 0x7fff, 0x7f), as
// cvt.rn does. bf16 and f16 overflow to infinity; f8e4m3 has no infinity and saturates to 448, infinities too
// (CUDA's __NV_SATFINITE). i8 holds integers up to 127, with the scale elsewhere; NaN becomes 0. On the
// device conversions are cvt instructions (for f8e4m3 below sm_89: integer arithmetic, as on the host), on
// the host integer arithmetic. tests/cuda/types_test.cc tests all 65536 or 256 patterns and all ties.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda_api.h"
#include "kernels/tensor.h"

#define SOMNUS_HD __host__ __device__ __forceinline__

namespace somnus::SOMNUS_CUDA_NAMESPACE {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct f8e4m3 {
  uint8_t bits;
};
struct i8 {
  int8_t bits;
};

template <typename T>
constexpr DataType kDataType = std::is_same_v<T, float>     ? DataType::kF32
                               : std::is_same_v<T, bf16>    ? DataType::kBF16
                               : std::is_same_v<T, f16>     ? DataType::kF16
                               : std::is_same_v<T, int32_t> ? DataType::kI32
                               : std::is_same_v<T, i8>      ? DataType::kI8
                                                            : DataType::kF8E4M3;

// ---- Bits

SOMNUS_HD uint32_t FloatBits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
#endif
}

SOMNUS_HD float FloatOfBits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
#endif
}

namespace types_internal {

// f32 rounded to a small float of `kMantissa` mantissa bits and the exponent bias `kBias`, without sign; the
// caller handles the largest exponents. `magnitude`: the bits of |x|, finite.
template <int kMantissa, int kBias>
SOMNUS_HD uint32_t RoundMagnitude(uint32_t magnitude) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 - kBias + 1) << 23;
  if (magnitude >= kMinNormal) {
    const uint32_t rounded = magnitude + ((1u << (kDrop - 1)) - 1) + (magnitude >> kDrop & 1);
    return (rounded - (static_cast<uint32_t>(127 - kBias) << 23)) >> kDrop;
  }
  // A denormal of the small type: units of 2^(1 - kBias - kMantissa).
  const int exponent = static_cast<int>(magnitude >> 23);
  const int shift = kDrop + (127 - kBias + 1) - (exponent == 0 ? 1 : exponent);
  if (shift > 25) return 0;
  const uint32_t mantissa = (magnitude & 0x7fffff) | (exponent == 0 ? 0 : 0x800000);
  return (mantissa + ((1u << (shift - 1)) - 1) + (mantissa >> shift & 1)) >> shift;
}

SOMNUS_HD uint16_t Bf16Bits(float x) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  const uint32_t u = FloatBits(x);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
}

SOMNUS_HD uint16_t F16Bits(float x) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  const uint32_t u = FloatBits(x);
  const uint32_t magnitude = u & 0x7fffffff;
  const uint32_t sign = u >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  return static_cast<uint16_t>(sign | RoundMagnitude<10, 15>(magnitude));
#endif
}

SOMNUS_HD float F16ToFloat(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return FloatOfBits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return FloatOfBits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float x = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -x : x;
#endif
}

SOMNUS_HD uint8_t F8BitsByHand(float x) {
  const uint32_t u = FloatBits(x);
  const uint32_t magnitude = u & 0x7fffffff;
  const uint32_t sign = u >> 24 & 0x80;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude >= 0x43e80000)
    return static_cast<uint8_t>(sign | 0x7e);  // 464 and more: 448 by rounding or saturation
  return static_cast<uint8_t>(sign | RoundMagnitude<3, 7>(magnitude));
}

SOMNUS_HD float F8ToFloatByHand(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return FloatOfBits(sign | 0x7fc00000);
  if (exponent != 0) return FloatOfBits(sign | (exponent + 120) << 23 | mantissa << 20);
  const float x = static_cast<float>(mantissa) * 0x1p-9f;
  return sign != 0 ? -x : x;
}

// |x| is at most 127 and a bit.
SOMNUS_HD int8_t I8Bits(float x) {
#ifdef __CUDA_ARCH__
  return static_cast<int8_t>(__float2int_rn(x));
#else
  if (x != x) return 0;
  return static_cast<int8_t>(std::nearbyintf(x));
#endif
}

// Two at once, as the instruction does; the first in the low byte.
SOMNUS_HD uint16_t F8Bits2(float lo, float hi) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(hi), "f"(lo));
  return bits;
#else
  return static_cast<uint16_t>(F8BitsByHand(lo) | F8BitsByHand(hi) << 8);
#endif
}

}  // namespace types_internal

// ---- One value

SOMNUS_HD float ToFloat(float x) { return x; }
SOMNUS_HD float ToFloat(bf16 x) { return FloatOfBits(static_cast<uint32_t>(x.bits) << 16); }
SOMNUS_HD float ToFloat(f16 x) { return types_internal::F16ToFloat(x.bits); }
SOMNUS_HD float ToFloat(i8 x) { return static_cast<float>(x.bits); }
SOMNUS_HD float ToFloat(f8e4m3 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(x.bits)));
  return types_internal::F16ToFloat(static_cast<uint16_t>(pair));
#else
  return types_internal::F8ToFloatByHand(x.bits);
#endif
}

// FromFloat<bf16>(x).
template <typename T>
SOMNUS_HD T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return bf16{types_internal::Bf16Bits(x)};
  } else if constexpr (std::is_same_v<T, f16>) {
    return f16{types_internal::F16Bits(x)};
  } else if constexpr (std::is_same_v<T, i8>) {
    return i8{types_internal::I8Bits(x)};
  } else {
    static_assert(std::is_same_v<T, f8e4m3>);
    return f8e4m3{static_cast<uint8_t>(types_internal::F8Bits2(x, 0.0f))};
  }
}

// ---- Two 16-bit values in a register, the first in the low half: the elements of mma's fragments.

template <typename T>
SOMNUS_HD uint32_t Pack2(float lo, float hi) {
#ifdef __CUDA_ARCH__
  uint32_t bits;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  }
  return bits;
#else
  return FromFloat<T>(lo).bits | static_cast<uint32_t>(FromFloat<T>(hi).bits) << 16;
#endif
}

template <typename T>
SOMNUS_HD float2 Unpack2(uint32_t bits) {
  return float2{ToFloat(T{static_cast<uint16_t>(bits)}), ToFloat(T{static_cast<uint16_t>(bits >> 16)})};
}

// Two f8e4m3, the first in the low byte, to f32 or to a register of two T (f16 exactly; bf16 exactly).
SOMNUS_HD float2 UnpackF8x2(uint16_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bits));
  return Unpack2<f16>(pair);
#else
  return float2{types_internal::F8ToFloatByHand(static_cast<uint8_t>(bits)),
                types_internal::F8ToFloatByHand(static_cast<uint8_t>(bits >> 8))};
#endif
}
SOMNUS_HD uint16_t PackF8x2(float lo, float hi) { return types_internal::F8Bits2(lo, hi); }
SOMNUS_HD uint16_t PackI8x2(float lo, float hi) {
  return static_cast<uint16_t>(static_cast<uint8_t>(types_internal::I8Bits(lo)) |
                               static_cast<uint8_t>(types_internal::I8Bits(hi)) << 8);
}

// Two i8, the first in the low byte, to a register of two T, exactly: integers up to 256 are numbers of bf16.
template <typename T>
SOMNUS_HD uint32_t I8x2To(uint16_t bits) {
#ifdef __CUDA_ARCH__
  const uint32_t biased = bits ^ 0x8080u;  // + 128
  if constexpr (std::is_same_v<T, f16>) {
    // As the low bits of the f16s 1024 + biased, from which 1024 + 128 is subtracted.
    uint32_t pair = __byte_perm(biased, 0x64646464u, 0x4140);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x64806480u));
    return pair;
  } else {
    // The same with f32s of 2^23.
    constexpr float kBias = 8388608.0f + 128.0f;
    return Pack2<T>(FloatOfBits(__byte_perm(biased, 0x4b000000u, 0x7540)) - kBias,
                    FloatOfBits(__byte_perm(biased, 0x4b000000u, 0x7541)) - kBias);
  }
#else
  return Pack2<T>(static_cast<float>(static_cast<int8_t>(bits)),
                  static_cast<float>(static_cast<int8_t>(bits >> 8)));
#endif
}

// Two f8e4m3 to a register of two T.
template <typename T>
SOMNUS_HD uint32_t F8x2To(uint16_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, f16>) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bits));
    return pair;
  } else
#endif
  {
    const float2 x = UnpackF8x2(bits);
    return Pack2<T>(x.x, x.y);
  }
}

// ---- Vectors

// N values that are loaded and stored at once. At most 16 bytes; aligned to its size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0);
  T values[N];
  SOMNUS_HD T& operator[](int i) { return values[i]; }
  SOMNUS_HD const T& operator[](int i) const { return values[i]; }
};

// How many T fill 16 bytes.
template <typename T>
constexpr int kVecSize = 16 / sizeof(T);
template <typename T>
using Vec16 = Vec<T, kVecSize<T>>;

// One access; `data` must be aligned to the vector. (Cached as any access; for streaming see ptx.h.)
template <typename T, int N>
SOMNUS_HD Vec<T, N> LoadVec(const T* data) {
  return *reinterpret_cast<const Vec<T, N>*>(data);
}
template <typename T, int N>
SOMNUS_HD void StoreVec(T* data, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(data) = v;
}

// ---- Dispatch

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls fn(TypeTag<T>{}) with the T of an activation type:
//   DispatchAct(x.dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... });
// Returns false, and does not call, when dtype is none of f32, bf16, f16.
template <typename Fn>
bool DispatchAct(DataType dtype, Fn&& fn) {
  switch (dtype) {
    case DataType::kF32:
      fn(TypeTag<float>{});
      return true;
    case DataType::kBF16:
      fn(TypeTag<bf16>{});
      return true;
    case DataType::kF16:
      fn(TypeTag<f16>{});
      return true;
    default:
      return false;
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
