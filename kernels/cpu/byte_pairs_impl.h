// The bytes of a KV cache as pairs of bf16, which hold the values exactly: with the permutations of bytes of
// AVX-512 VBMI, which find 64 of 128 entries at once. Part of kernels_avx512_vbmi.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// The bf16 of each magnitude: low bytes, and high bytes without a sign.
struct ByteTables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  constexpr void Set(int magnitude, uint32_t bits) {
    low[magnitude] = static_cast<uint8_t>(bits & 0xff);
    high[magnitude] = static_cast<uint8_t>(bits >> 8);
  }
  // mantissa times 2^exponent; a mantissa has eight bits at most.
  constexpr void SetNumber(int magnitude, uint32_t mantissa, int exponent) {
    if (mantissa == 0) return Set(magnitude, 0);
    int shift = 0;
    while ((mantissa << shift & 0x80) == 0) ++shift;
    Set(magnitude, static_cast<uint32_t>(exponent + 7 - shift + 127) << 7 | (mantissa << shift & 0x7f));
  }
};

// A 256th of each value (kF8Unit), as in TileF8.
constexpr ByteTables F8Tables() {
  ByteTables tables{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3;
    const auto mantissa = static_cast<uint32_t>(exponent == 0 ? code & 7 : 8 | (code & 7));
    tables.SetNumber(code, mantissa, (exponent == 0 ? 1 : exponent) - 7 - 3 - 8);
  }
  tables.Set(127, 0x7fc0);
  return tables;
}
constexpr ByteTables I8Tables() {
  ByteTables tables{};
  for (int i = 0; i < 128; ++i) tables.SetNumber(i, static_cast<uint32_t>(i), 0);
  return tables;
}

struct BytesF8 {
  using Stored = TileF8;
  static constexpr ByteTables kTables = F8Tables();
  static SOMNUS_INLINE __m512i Magnitudes(__m512i bytes) { return bytes; }  // look-ups ignore the sign
};
struct BytesI8 {
  using Stored = TileI8;
  static constexpr ByteTables kTables = I8Tables();
  static SOMNUS_INLINE __m512i Magnitudes(__m512i bytes) { return _mm512_abs_epi8(bytes); }
};

// Where 64 bytes are taken from so that their bf16, by unpacking low and high bytes within 128 bits, become
// two vectors of pairs. The first and second of the pairs of the first vector are `pair` bytes apart, and
// begin at 0; the pairs of the second vector begin at `second`.
struct PairOrder {
  alignas(64) uint8_t from[64];
  constexpr PairOrder(int pair, int second) : from() {
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 16 * 4 + i % 8 / 2;
      from[i] = static_cast<uint8_t>(i % 2 * pair + (i % 16 / 8) * second + lane);
    }
  }
};

bool ServesPairs(const KvCacheView& cache) {
  return !cache.latent && cache.head_dim % 32 == 0 && cache.block_size % kW == 0;
}

template <typename Bytes>
struct AsBf16Pairs {
  using Stored = typename Bytes::Stored;
  using Tiles = TileBF16;

  struct Pairs {
    __m512i first;
    __m512i second;
  };
  static SOMNUS_INLINE Pairs PairsOf(__m512i bytes, const PairOrder& order) {
    const ByteTables& t = Bytes::kTables;
    const __m512i ordered = _mm512_permutexvar_epi8(_mm512_load_si512(order.from), bytes);
    const __m512i magnitudes = Bytes::Magnitudes(ordered);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(t.low), magnitudes, _mm512_load_si512(t.low + 64));
    const __m512i unsigned_high =
        _mm512_permutex2var_epi8(_mm512_load_si512(t.high), magnitudes, _mm512_load_si512(t.high + 64));
    constexpr int kOrOfAnd = 0xf8;  // a | b & c
    const __m512i high = _mm512_ternarylogic_epi32(unsigned_high, ordered, _mm512_set1_epi8(-128), kOrOfAnd);
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }

  // Four dims of 16 tokens.
  static SOMNUS_INLINE __m512i FourRows(const char* from, int64_t stride) {
    if (stride == kW) return _mm512_loadu_si512(from);
    const auto row = [&](int64_t i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
    };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }

  static void Keys(const char* from, int64_t stride, int64_t tokens, int64_t head_dim, char* to,
                   int64_t to_stride, int64_t ahead) {
    static constexpr PairOrder kOrder(16, 32);
    for (int64_t t = 0; t < tokens; t += kW) {
      for (int64_t d = 0; d < head_dim; d += 4) {
        const char* const rows = from + d * stride + t;
        __builtin_prefetch(rows + ahead, 0, 2);
        const Pairs pairs = PairsOf(FourRows(rows, stride), kOrder);
        char* const step = to + d / 2 * to_stride + t * 4;
        _mm512_storeu_si512(step, pairs.first);
        _mm512_storeu_si512(step + to_stride, pairs.second);
      }
    }
  }

  static void Values(const char* from, int64_t tokens, int64_t dims, char* to, int64_t ahead) {
    static constexpr PairOrder kOrder(32, 16);
    const auto row = [](const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
    for (int64_t t = 0; t < tokens; t += 2, from += 2 * dims) {
      for (int64_t d = 0; d < dims; d += 32, to += 128) {
        __builtin_prefetch(from + 2 * d + ahead, 0, 2);
        const __m512i both =
            _mm512_inserti64x4(_mm512_castsi256_si512(row(from + d)), row(from + dims + d), 1);
        const Pairs pairs = PairsOf(both, kOrder);
        _mm512_storeu_si512(to, pairs.first);
        _mm512_storeu_si512(to + 64, pairs.second);
      }
    }
  }
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
