// Vectors of one instruction set. Included only by the kernels_*.cc units, each of which names its own
// namespace in SOMNUS_ISA and sets its compiler flags, so that no function of one set can stand in for
// another's. No include guard: this file is a part of each such unit. Uses no standard templates for the same
// reason.

#if defined(__aarch64__)
#include <arm_neon.h>
#define SOMNUS_NEON 1
#else
#include <immintrin.h>
#define SOMNUS_NEON 0
#endif

#include <cstdint>
#include <cstring>

#include "kernels/counter_random.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/quantized_layout.h"
#include "kernels/cpu/tile_sizes.h"

#if !defined(SOMNUS_ISA)
#error "define SOMNUS_ISA, the namespace of this unit's kernels"
#endif

namespace somnus::cpu::SOMNUS_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kW = 16;
#elif defined(__AVX2__)
constexpr int kW = 8;
#else
constexpr int kW = 4;
#endif

typedef float VF __attribute__((vector_size(kW * 4), may_alias));
typedef float VFu __attribute__((vector_size(kW * 4), may_alias, aligned(4)));
typedef int32_t VI __attribute__((vector_size(kW * 4), may_alias));
typedef uint32_t VU __attribute__((vector_size(kW * 4), may_alias));
typedef uint32_t VUu __attribute__((vector_size(kW * 4), may_alias, aligned(4)));
typedef uint16_t VH __attribute__((vector_size(kW * 2), may_alias));
typedef uint16_t VHu __attribute__((vector_size(kW * 2), may_alias, aligned(2)));
typedef uint8_t VB __attribute__((vector_size(kW), may_alias));
typedef int8_t VBs __attribute__((vector_size(kW), may_alias));
typedef int16_t VHs __attribute__((vector_size(kW * 2), may_alias));
typedef uint8_t VBu __attribute__((vector_size(kW), may_alias, aligned(1)));
typedef int8_t VBsu __attribute__((vector_size(kW), may_alias, aligned(1)));

#define SOMNUS_INLINE inline __attribute__((always_inline))

SOMNUS_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
SOMNUS_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

SOMNUS_INLINE VF Set(float x) { return x - VF{}; }
SOMNUS_INLINE VU SetU(uint32_t x) { return x - VU{}; }
SOMNUS_INLINE VF Load(const float* p) { return *reinterpret_cast<const VFu*>(p); }
SOMNUS_INLINE void Store(float* p, VF v) { *reinterpret_cast<VFu*>(p) = v; }
SOMNUS_INLINE VU LoadU(const void* p) { return *static_cast<const VUu*>(p); }

// The first n < kW values, zero (or `fill`) in the other lanes.
SOMNUS_INLINE VF LoadPart(const float* p, int64_t n, float fill = 0) {
  VF v = Set(fill);
  __builtin_memcpy(&v, p, static_cast<size_t>(n) * 4);
  return v;
}
SOMNUS_INLINE void StorePart(float* p, VF v, int64_t n) {
  __builtin_memcpy(p, &v, static_cast<size_t>(n) * 4);
}

SOMNUS_INLINE VF Fma(VF a, VF b, VF c) {
#if defined(__AVX512F__)
  return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif SOMNUS_NEON
  return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The larger; b when either is NaN, as x86 has an instruction for. GCC 12 does not find that instruction.
SOMNUS_INLINE VF MaxV(VF a, VF b) {
#if defined(__AVX512F__)
  return (VF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (VF)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (VF)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}
SOMNUS_INLINE VF MinV(VF a, VF b) {
#if defined(__AVX512F__)
  return (VF)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (VF)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (VF)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

SOMNUS_INLINE float ReduceAdd(VF v) {
  for (int w = kW / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) v[i] += v[i + w];
  }
  return v[0];
}
SOMNUS_INLINE float ReduceMax(VF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best = v[0];
  for (int i = 1; i < kW; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

// ---- 16-bit floats

SOMNUS_INLINE VF FromBf16(VH h) { return (VF)(__builtin_convertvector(h, VU) << 16); }

// Rounds to nearest even; a NaN stays a NaN.
SOMNUS_INLINE VU Bf16Bits(VF x) {
  const VU u = (VU)x;
  const VU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (VU)(x != x ? (VI)((u >> 16) | 0x40u) : (VI)rounded);
}
SOMNUS_INLINE VH ToBf16(VF x) { return __builtin_convertvector(Bf16Bits(x), VH); }
// The same, except for subnormal numbers, which may become zero.
SOMNUS_INLINE VH ToBf16Fast(VF x) {
#if defined(__AVX512BF16__)
  return (VH)_mm512_cvtneps_pbh((__m512)x);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (VH)vcvt_bf16_f32((float32x4_t)x);
#else
  return ToBf16(x);
#endif
}
#if !defined(__F16C__) && !SOMNUS_NEON
inline uint16_t ToF16Scalar(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // Rounds to 65536 or more.
  if (u < 0x38800000) {  // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    float magnitude;
    __builtin_memcpy(&magnitude, &u, 4);
    magnitude += 0.5f;
    __builtin_memcpy(&u, &magnitude, 4);
    return static_cast<uint16_t>(sign | (u - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13));
}
#endif

SOMNUS_INLINE VF FromF16(VH h) {
#if defined(__AVX512F__)
  return (VF)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  return (VF)_mm256_cvtph_ps((__m128i)h);
#elif SOMNUS_NEON
  return (VF)vcvt_f32_f16((float16x4_t)h);
#else
  // Scaling by 2^112 rebiases the exponent and normalizes subnormal numbers.
  const VU wide = __builtin_convertvector(h, VU), magnitude = wide & 0x7fffu;
  const VU bits = (VU)((VF)(magnitude << 13) * 0x1p112f) | ((wide & 0x8000u) << 16);
  return (VF)(bits | ((VU)(magnitude >= 0x7c00u) & 0x7f800000u));  // infinities and NaN
#endif
}
SOMNUS_INLINE VH ToF16(VF x) {
#if defined(__AVX512F__)
  return (VH)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  return (VH)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#elif SOMNUS_NEON
  return (VH)vcvt_f16_f32((float32x4_t)x);
#else
  VH h;
  for (int i = 0; i < kW; ++i) h[i] = ToF16Scalar(x[i]);
  return h;
#endif
}

// ---- Bytes. GCC 12 converts between vectors of bytes and of 32 bits one by one.

SOMNUS_INLINE VB LowBytes(VU u) {
#if defined(__AVX512F__)
  return (VB)_mm512_cvtepi32_epi8((__m512i)u);
#else
  return __builtin_convertvector(__builtin_convertvector(u, VH), VB);
#endif
}

#if defined(__SSE2__) && !defined(__AVX2__)
SOMNUS_INLINE VU SignedFromBytes(VB b) {
  int bytes;
  __builtin_memcpy(&bytes, &b, 4);
  const __m128i one = _mm_cvtsi32_si128(bytes), two = _mm_unpacklo_epi8(one, one);
  return (VU)_mm_srai_epi32(_mm_unpacklo_epi16(two, two), 24);
}
#endif

// Element types, for templates over stored types. PutExact keeps subnormal numbers on every instruction set.
struct F32 {
  static constexpr DataType kType = DataType::kF32;
  using Type = float;
  static SOMNUS_INLINE VF Get(const float* p) { return Load(p); }
  static SOMNUS_INLINE void Put(float* p, VF v) { Store(p, v); }
  static SOMNUS_INLINE void PutExact(float* p, VF v) { Store(p, v); }
};
struct BF16 {
  static constexpr DataType kType = DataType::kBF16;
  using Type = uint16_t;
  static SOMNUS_INLINE VF Get(const uint16_t* p) { return FromBf16(*reinterpret_cast<const VHu*>(p)); }
  static SOMNUS_INLINE void Put(uint16_t* p, VF v) { *reinterpret_cast<VHu*>(p) = ToBf16Fast(v); }
  static SOMNUS_INLINE void PutExact(uint16_t* p, VF v) { *reinterpret_cast<VHu*>(p) = ToBf16(v); }
};
struct F16 {
  static constexpr DataType kType = DataType::kF16;
  using Type = uint16_t;
  static SOMNUS_INLINE VF Get(const uint16_t* p) { return FromF16(*reinterpret_cast<const VHu*>(p)); }
  static SOMNUS_INLINE void Put(uint16_t* p, VF v) { *reinterpret_cast<VHu*>(p) = ToF16(v); }
  static SOMNUS_INLINE void PutExact(uint16_t* p, VF v) { Put(p, v); }
};

// Rounds to nearest even; |x| is at most 127. NaN becomes 0.
SOMNUS_INLINE VBs ToI8(VF x) {
  const VI i = (VI)(x + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  return (VBs)LowBytes((VU)i);
}
SOMNUS_INLINE VF FromI8(VBs b) {
#if defined(__AVX512F__)
  return (VF)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)b));
#elif defined(__AVX2__)
  __m128i bytes = {};
  __builtin_memcpy(&bytes, &b, sizeof(b));
  return (VF)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#elif SOMNUS_NEON
  uint32_t bytes;
  __builtin_memcpy(&bytes, &b, 4);
  return (VF)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes)))));
#elif defined(__SSE2__)
  return (VF)_mm_cvtepi32_ps((__m128i)SignedFromBytes((VB)b));
#else
  return __builtin_convertvector(__builtin_convertvector(b, VI), VF);
#endif
}

// For caches alone: written here, read by TileI8.
struct I8 {
  static constexpr DataType kType = DataType::kI8;
  using Type = int8_t;
  static SOMNUS_INLINE void Put(int8_t* p, VF v) { *reinterpret_cast<VBsu*>(p) = ToI8(v); }
};

// The first n <= kW values of an element type; parts go through a buffer.
template <typename E>
SOMNUS_INLINE VF Get(const typename E::Type* p, int64_t n) {
  if (n >= kW) return E::Get(p);
  typename E::Type part[kW] = {};
  __builtin_memcpy(part, p, static_cast<size_t>(n) * sizeof(part[0]));
  return E::Get(part);
}
template <typename E>
SOMNUS_INLINE void Put(typename E::Type* p, VF v, int64_t n) {
  if (n >= kW) return E::Put(p, v);
  typename E::Type part[kW];
  E::Put(part, v);
  __builtin_memcpy(p, part, static_cast<size_t>(n) * sizeof(part[0]));
}

// Calls fn(E{}) with the element type of `type`.
template <typename Fn>
SOMNUS_INLINE void WithElement(DataType type, const Fn& fn) {
  if (type == DataType::kF32) return fn(F32{});
  if (type == DataType::kBF16) return fn(BF16{});
  fn(F16{});
}

// ---- Functions

// e^x, within 2 ulp on the normal range; 0 far below, inf far above, NaN for NaN. Cody-Waite reduction and a
// degree 7 polynomial. The order of the operands of MaxV and MinV lets NaN through.
SOMNUS_INLINE VF Exp(VF x) {
  const VF clamped = MinV(Set(90.0f), MaxV(Set(-110.0f), x));
  const VF shift = Set(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const VF t = Fma(clamped, Set(1.44269504f), shift);
  const VF n = t - shift;
  VF r = Fma(n, Set(-0.693359375f), clamped);
  r = Fma(n, Set(2.12194440e-4f), r);
  VF p = Set(1.98412698e-4f);
  p = Fma(p, r, Set(1.38888889e-3f));
  p = Fma(p, r, Set(8.33333333e-3f));
  p = Fma(p, r, Set(4.16666667e-2f));
  p = Fma(p, r, Set(1.66666667e-1f));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
#if defined(__AVX512F__)
  return (VF)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // 2^n in two halves, as n reaches 130 and -159.
  const VI i = (VI)t - 0x4b400000;
  const VI half = i >> 1;
  return p * (VF)((half + 127) << 23) * (VF)((i - half + 127) << 23);
#endif
}

// tanh(x), within 3 ulp; +-1 far out, NaN for NaN. Below 0.625 an odd polynomial of degree 11, fitted to the
// relative error; beyond, 1 - 2 / (e^2|x| + 1), where the difference loses nothing.
SOMNUS_INLINE VF Tanh(VF x) {
  const VU sign = (VU)x & 0x80000000u;
  const VF magnitude = (VF)((VU)x ^ sign), z = x * x;
  VF p = Set(-0.00570525425f);
  p = Fma(p, z, Set(0.0206404991f));
  p = Fma(p, z, Set(-0.0537405624f));
  p = Fma(p, z, Set(0.133314582f));
  p = Fma(p, z, Set(-0.333332828f));
  const VF far = 1.0f - 2.0f / (Exp(magnitude * 2.0f) + 1.0f);
  return magnitude < 0.625f ? Fma(x * z, p, x) : (VF)((VU)far | sign);
}

// log(x) for normal positive x, within 2 ulp or so.
SOMNUS_INLINE VF Log(VF x) {
  const VI bits = (VI)x;
  // The mantissa is taken to [sqrt(1/2), sqrt(2)).
  VI e = (bits - 0x3f3504f3) >> 23;
  const VF m = (VF)(bits - (e << 23));
  const VF f = m - 1.0f;
  const VF s = f / (f + 2.0f);  // log(m) = 2 * atanh(s)
  const VF z = s * s;
  VF p = Set(0.22222222f);
  p = Fma(p, z, Set(0.28571429f));
  p = Fma(p, z, Set(0.4f));
  p = Fma(p, z, Set(0.66666667f));
  const VF ef = __builtin_convertvector(e, VF);
  const VF log_m = Fma(s * z, p, s * 2.0f);
  return Fma(ef, Set(0.69314718f), log_m);
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
