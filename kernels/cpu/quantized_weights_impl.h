// A sub-block of quantized weights (quantized_layout.h) as numbers: bytes to multiply, and f32 scales and
// minima. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// `value` in each byte whose bit is set in the bits of kW columns at `p`.
template <uint8_t value>
SOMNUS_INLINE VU HighBit(const char* p) {
#if defined(__AVX512F__)
  uint64_t bits;
  __builtin_memcpy(&bits, p, 8);
  return (VU)_mm512_maskz_set1_epi8(bits, value);
#elif defined(__AVX2__)
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  const __m256i of_byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), bit);
  return (VU)_mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(value));
#elif SOMNUS_NEON
  const uint8x8_t first = vld1_dup_u8(reinterpret_cast<const uint8_t*>(p));
  const uint8x8_t second = vld1_dup_u8(reinterpret_cast<const uint8_t*>(p) + 1);
  const uint8x16_t bit = (uint8x16_t)vdupq_n_u64(0x8040201008040201);
  return (VU)vandq_u8(vtstq_u8(vcombine_u8(first, second), bit), vdupq_n_u8(value));
#else
  uint16_t bits;
  __builtin_memcpy(&bits, p, 2);
  VU spread;
  for (int i = 0; i < kW; ++i) spread[i] = (bits >> 4 * i & 0xfu) * 0x204081u & 0x01010101u;
  return spread * value;
#endif
}

// kW bytes as numbers; GCC 12 converts vectors of bytes one by one.
SOMNUS_INLINE VU FromBytes(const char* p) {
#if defined(__AVX512F__)
  return (VU)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#elif SOMNUS_NEON
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return (VU)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const __m128i zero = _mm_setzero_si128();
  return (VU)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
#endif
}

// The bytes of indices of a table of 16 values, with `offset` added.
template <typename Table>
SOMNUS_INLINE VU LookUp(const Table& table, int offset, VU indices) {
#if defined(__AVX2__) || SOMNUS_NEON
  uint8_t shifted[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) shifted[i] = static_cast<uint8_t>(table[i] + offset);
#if SOMNUS_NEON
  return (VU)vqtbl1q_u8(vld1q_u8(shifted), (uint8x16_t)indices);
#else
  __m128i values;
  __builtin_memcpy(&values, shifted, 16);
#endif
#if defined(__AVX512F__)
  return (VU)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), (__m512i)indices);
#elif defined(__AVX2__)
  return (VU)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), (__m256i)indices);
#endif
#else
  uint8_t bytes[kW * 4];
  __builtin_memcpy(bytes, &indices, sizeof(bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table[byte] + offset);
  __builtin_memcpy(&indices, bytes, sizeof(bytes));
  return indices;
#endif
}

// Sub-block `sub` of a block, columns [column, column + kW) of the panel and the following columns.
template <DataType kType>
struct StoredWeights {
  static constexpr QuantLayout kLayout = LayoutOf(kType);

  const char* block;
  int64_t sub;
  int64_t column;

  // Where bits of group g lie, of kBits a value, in arrays that start at `p`.
  template <int kBits>
  SOMNUS_INLINE VU Bits(const char* p, int g, int to) const {
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    const VU bytes = LoadU(p + g % kBits * kGroupBytes + column * 4);
    const int from = g / kBits * kBits;
    if constexpr (kBits == 8) return bytes;
    return (from >= to ? bytes >> (from - to) : bytes << (to - from)) & (kMask << to);
  }

  // The bytes of group g of column vector v: a word to a lane.
  SOMNUS_INLINE VU Group(int v, int g) const {
    const StoredWeights at{block, sub, column + v * kW};
    const char* const p = block + SubBlocksAt(kType) + sub * SubBlockBytes(kType);
    VU w = at.template Bits<kLayout.low_bits>(p + LowBitsAt(kType), g, 0);
    if constexpr (kLayout.high_bits == 1)
      w |= HighBit<1 << kLayout.low_bits>(p + g * kPanelWidth / 2 + at.column / 2);
    if constexpr (kLayout.high_bits == 2) w |= at.template Bits<2>(p, g, kLayout.low_bits);
    if constexpr (kType == DataType::kQ8_0 && TakenAsSigned(kType)) w ^= 0x80808080u;
    if constexpr (kType == DataType::kIQ4_NL) w = LookUp(kIq4Values, OffsetHere(kType), w);
    if constexpr (kType == DataType::kMXFP4) w = LookUp(kFp4Values, OffsetHere(kType), w);
    return w;
  }

  // Numbers of 8 bits, one for each column: array `i` of the packed scales.
  SOMNUS_INLINE VU Packed(int64_t i, int64_t from) const {
    return FromBytes(block + PackedScalesAt(kType) + i * kPanelWidth + from);
  }
  // The first or second of the two numbers of 6 bits.
  SOMNUS_INLINE VU SixBits(int which, int64_t from) const {
    const VU low = Packed(sub, from) >> (4 * which);
    const VU high =
        Packed(SubBlocks(kType) + sub / 2, from) >> static_cast<uint32_t>(sub % 2 * 4 + 2 * which);
    return (low & 0xfu) | (high & 3u) << 4;
  }
  static SOMNUS_INLINE VF ToFloat(VU numbers) { return __builtin_convertvector((VI)numbers, VF); }
  SOMNUS_INLINE VF Fixed(int which, int64_t from) const {
    return F16::Get(reinterpret_cast<const uint16_t*>(block) + which * kPanelWidth + from);
  }

  // The scale of part `part` of the sub-block.
  SOMNUS_INLINE VF Scale(int v, int part) const {
    const int64_t from = column + v * kW;
    if constexpr (kType == DataType::kMXFP4) {
      const VU exponent = Packed(-1, from);
      const VU small = exponent < 1u ? SetU(0x00200000u) : SetU(0x00400000u);
      return (VF)(exponent < 2u ? small : (exponent - 1u) << 23);
    } else if constexpr (kLayout.scales == PackedScales::kSixBits) {
      // With one part the second number is the part's minimum, else the second part's scale, which has a
      // sign.
      const VU number = SixBits(part, from);
      return Fixed(0, from) * ToFloat(kLayout.parts == 1 ? number : number - 32u);
    } else if constexpr (kLayout.scales == PackedScales::kFourBits) {
      return Fixed(0, from) * ToFloat(Packed(2 * sub + part, from) & 0xfu);
    } else if constexpr (kLayout.scales == PackedScales::kEightBits) {
      const VU number = Packed(2 * sub + part, from);
      return Fixed(0, from) * ToFloat((number ^ 0x80u) - 0x80u);
    } else {
      return Fixed(0, from);
    }
  }

  // The amount that the part's minimum adds to each value.
  SOMNUS_INLINE VF Minimum(int v, int part) const {
    const int64_t from = column + v * kW;
    if constexpr (kLayout.scales == PackedScales::kSixBits)
      return -Fixed(1, from) * ToFloat(SixBits(1, from));
    if constexpr (kLayout.scales == PackedScales::kFourBits)
      return -Fixed(1, from) * ToFloat(Packed(2 * sub + part, from) >> 4);
    return Fixed(1, from);
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
