// How the types of a KV cache become the pairs of bf16 that tiles multiply. A bf16 holds every value of a
// byte exactly. Part of kernels_amx.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// How a cache stores 16 tokens' keys of two dims, `row` bytes apart, and 16 dims of two tokens' values: Pair
// returns both as bf16, the second in the upper halves.
struct StoredBF16 : TileBF16 {
  static SOMNUS_INLINE VU Pair(const char* p, int64_t) { return LoadU(p); }
};
struct StoredI8 : TileI8 {
  using ActElement = BF16;
  static SOMNUS_INLINE VU Pair(const char* p, int64_t row) {
    return (VU)LoadB(p).w >> 16 | ((VU)LoadB(p + row).w & 0xffff0000u);
  }
};
struct StoredF8 : TileF8 {
  using ActElement = BF16;
  // A 256th of each value (kF8Unit), in halves: the bits with another exponent bias, but for the subnormal
  // numbers, which are looked up, and for NaN.
  static SOMNUS_INLINE VU Pair(const char* p, int64_t row) {
    const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i high = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + row)));
    const __m512i both = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    const __m512i magnitude = _mm512_and_si512(both, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(both, 8), _mm512_set1_epi16(-0x8000));
    const __m512i small = _mm512_broadcast_i32x4(
        _mm_setr_epi16(0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860));  // times 2^-17
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(0x3800));
    bits = _mm512_mask_permutexvar_epi16(bits, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)),
                                         magnitude, small);
    const __mmask32 nan = _mm512_cmpeq_epu16_mask(magnitude, _mm512_set1_epi16(0x7f));
    bits = _mm512_mask_mov_epi16(bits, nan, _mm512_set1_epi16(0x7fc0));
    return (VU)_mm512_or_si512(sign, bits);
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
