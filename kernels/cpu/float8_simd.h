// Vectors of f8e4m3: a sign, four bits of exponent with bias 7, three of mantissa; no infinities; NaN is
// 0x7f. Part of kernels_*.cc, as simd.h.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// Returns a 256th of the value (kF8Unit): puts the bits at their places in an f16: the conversion is exact,
// and as fast for subnormal numbers as for normal numbers. kFinite: no byte is NaN.
template <bool kFinite = false>
SOMNUS_INLINE VF FromF8(VB b) {
#if defined(__SSE2__) && !defined(__AVX2__)
  // The bits at their places in an f32; where the exponent is 0, no leading 1.
  const VU signs = SignedFromBytes(b), bits = (signs & 0x7fu) << 20;
  const VF subnormal = (VF)(bits + (113u << 23)) - 0x1p-14f;
  const VU magnitude = (VU)(bits < (1u << 23) ? (VI)subnormal : (VI)(bits + (112u << 23)));
  const VU nan = kFinite ? VU{} : (VU)(bits == (0x7fu << 20)) & 0x7fc00000u;
  return (VF)((signs & 0x80000000u) | magnitude | nan);
#else
#if SOMNUS_NEON  // GCC 12 converts vectors of four bytes one by one.
  uint32_t bytes;
  __builtin_memcpy(&bytes, &b, 4);
  const VHs signs = (VHs)vget_low_s16(vmovl_s8(vcreate_s8(bytes)));
#else
  const VHs signs = __builtin_convertvector((VBs)b, VHs);
#endif
  const VH wide = (VH)signs << 7;  // the sign twice, exponent and mantissa
  if constexpr (kFinite) return FromF16(wide & 0xbf80);
  // Among the magnitudes only NaN's carries into the next bit, which makes a NaN of f16.
  const VH carry = (wide & 0x3f80) + 0x80;
#if defined(__AVX512F__)
  constexpr int kThirdChooses = 0xd8;  // where its bit is set, the second's, else the first's
  return FromF16(
      (VH)_mm256_ternarylogic_epi32((__m256i)wide, (__m256i)carry, _mm256_set1_epi16(0x4000), kThirdChooses));
#else
  return FromF16((wide & 0xbf80) | (carry & 0x4000));
#endif
#endif
}

// Whether any byte is NaN; also true where `bytes` is not a multiple of kW * 4.
SOMNUS_INLINE bool AnyNanOfF8(const char* p, int64_t bytes) {
  typedef uint8_t VBytes __attribute__((vector_size(kW * 4), may_alias));
  VBytes changed = {};  // the high bits: adding 1 carries into the sign of NaN alone
  int64_t i = 0;
  for (; i + kW * 4 <= bytes; i += kW * 4) {
    const VBytes x = (VBytes)LoadU(p + i);
    changed |= (x + 1) ^ x;
  }
#if defined(__AVX512F__)
  return i < bytes || _mm512_movepi8_mask((__m512i)changed) != 0;
#elif defined(__AVX2__)
  return i < bytes || _mm256_movemask_epi8((__m256i)changed) != 0;
#elif SOMNUS_NEON
  return i < bytes || vmaxvq_u8((uint8x16_t)changed) >= 0x80;
#else
  return i < bytes || _mm_movemask_epi8((__m128i)changed) != 0;
#endif
}

// Rounds to nearest even; saturates beyond 448, infinities too; NaN becomes 0x7f.
SOMNUS_INLINE VB ToF8(VF x) {
  const VU bits = (VU)x;
  const VF magnitude = MinV(Set(448.0f), (VF)(bits & 0x7fffffffu));
  const VU u = (VU)magnitude;
  const VU normal = (u + 0x7ffffu + ((u >> 20) & 1u) - (120u << 23)) >> 20;
  // Multiples of 2^-9: adding 2^14 leaves the rounded multiple in the low bits.
  const VU subnormal = (VU)(magnitude + 16384.0f) - 0x46800000u;
  const VU rounded = (VU)(magnitude < 0.015625f ? (VI)subnormal : (VI)normal) | ((bits >> 24) & 0x80u);
  return LowBytes((VU)(x != x ? (VI)SetU(0x7f) : (VI)rounded));
}

// For caches alone: written here, read by TileF8.
struct F8 {
  static constexpr DataType kType = DataType::kF8E4M3;
  using Type = uint8_t;
  static SOMNUS_INLINE void Put(uint8_t* p, VF v) { *reinterpret_cast<VBu*>(p) = ToF8(v); }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
