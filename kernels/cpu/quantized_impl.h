// Linear with quantized weights (quantized_layout.h): activations are quantized as well, products are integer
// sums over a block of 32, and f32 sums over blocks. Part of kernels_*.cc.
//
// Integer sums are exact, so their order is free. The f32 sum of an output element is one chain over the
// blocks of k in ascending order, whatever the tile's shape: that makes results independent of the batch.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// What an offset or a minimum is multiplied by comes with the activations; AVX2 and AVX-512 without VNNI take
// the bytes of Q8_0 as signed numbers, and so without offset.
constexpr int32_t OffsetHere(DataType type) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  return type == DataType::kQ8_0 ? 0 : QuantOffset(type);
#else
  return QuantOffset(type);
#endif
}

// ---- Activations: a block of 32 values is {f32 d, a word, the values q}; a value is d * q, q from -127 to
// 127. The word is what the weight's offset or minimum is multiplied by: int32 -offset * sum(q), or, for
// types with a minimum, f32 d * sum(q).

// SSE2 multiplies 16-bit numbers only: there the values are such, of each four the even ones, then the odd
// ones. Weights are taken apart in the same way.
#if defined(__AVX2__)
constexpr int kParts = 1;
#else
constexpr int kParts = 2;
#endif
constexpr int kWords = kQuantGroups * kParts;  // 32-bit words of a block of values
constexpr int64_t kActBlockBytes = 8 + kWords * 4;

SOMNUS_INLINE uint32_t ReduceMaxBits(VU v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32((__m512i)v);
#else
  uint32_t best = v[0];
  for (int i = 1; i < kW; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

SOMNUS_INLINE int32_t ReduceAddInts(VI v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  int32_t sum = 0;
  for (int i = 0; i < kW; ++i) sum += v[i];
  return sum;
#endif
}

SOMNUS_INLINE void StoreQuantized(char* out, VI q) {
#if defined(__AVX2__)
  const VBs bytes = __builtin_convertvector(q, VBs);
  __builtin_memcpy(out, &bytes, kW);
#else
  const int16_t halves[] = {static_cast<int16_t>(q[0]), static_cast<int16_t>(q[2]),
                            static_cast<int16_t>(q[1]), static_cast<int16_t>(q[3])};
  __builtin_memcpy(out, halves, sizeof(halves));
#endif
}

template <typename E>
void QuantizeRow(const char* x, int64_t k, DataType weight, char* out) {
  constexpr int kVectors = kQuantBlock / kW;
  const auto* p = reinterpret_cast<const typename E::Type*>(x);
  for (int64_t b = 0; b < k; b += kQuantBlock, out += kActBlockBytes) {
    VF v[kVectors];
    VU largest = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      v[i] = E::Get(p + b + i * kW);
      // As integers, magnitudes are in order, infinity above all numbers and NaN above infinity.
      const VU magnitude = (VU)v[i] & 0x7fffffffu;
      largest = (VU)(magnitude > largest ? (VI)magnitude : (VI)largest);
    }
    const uint32_t bits = ReduceMaxBits(largest);
    float max;
    __builtin_memcpy(&max, &bits, 4);
    // So small a block counts as zero: the inverse of its scale would overflow.
    const bool zero = max < 1e-30f;
    const float d = zero ? 0.0f : max / 127.0f, inverse = zero ? 0.0f : 127.0f / max;
    const VF shift = Set(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the rounded integer
    VI sum = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const VI q = (VI)(v[i] * inverse + shift) - 0x4b400000;
      sum += q;
      StoreQuantized(out + 8 + i * kW * kParts, q);
    }
    const int32_t total = ReduceAddInts(sum);
    const float minimum_times = d * static_cast<float>(total);
    const int32_t offset_times = -OffsetHere(weight) * total;
    __builtin_memcpy(out, &d, 4);
    if (HasMinimum(weight)) {
      __builtin_memcpy(out + 4, &minimum_times, 4);
    } else {
      __builtin_memcpy(out + 4, &offset_times, 4);
    }
  }
}

void QuantizeRowAny(const char* x, DataType type, int64_t k, DataType weight, char* out) {
  WithElement(type, [&](auto e) { QuantizeRow<decltype(e)>(x, k, weight, out); });
}

// ---- Products

// 16 in each byte whose bit is set in the bits of kW columns at `p`.
SOMNUS_INLINE VU FifthBits(const char* p) {
#if defined(__AVX512F__)
  uint64_t bits;
  __builtin_memcpy(&bits, p, 8);
  return (VU)_mm512_maskz_set1_epi8(bits, 16);
#elif defined(__AVX2__)
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  const __m256i of_byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), bit);
  return (VU)_mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16));
#else
  uint16_t bits;
  __builtin_memcpy(&bits, p, 2);
  VU spread;
  for (int i = 0; i < kW; ++i) spread[i] = (bits >> 4 * i & 0xfu) * 0x204081u & 0x01010101u;
  return spread << 4;
#endif
}

// The values of one block of kW columns: of each group a word to a lane.
template <DataType kType>
SOMNUS_INLINE void UnpackGroups(const char* block, int64_t column, VU (&w)[kQuantGroups]) {
  const char* const q = block + ValuesAt(kType) + column * 4;
  if constexpr (kType == DataType::kQ8_0) {
#pragma GCC unroll 8
    for (int g = 0; g < kQuantGroups; ++g) {
      w[g] = LoadU(q + g * kGroupBytes);
      if constexpr (OffsetHere(kType) == 0) w[g] ^= 0x80808080u;
    }
  } else {
#pragma GCC unroll 4
    for (int g = 0; g < kQuantGroups / 2; ++g) {
      const VU nibbles = LoadU(q + g * kGroupBytes);
      w[g] = nibbles & 0x0f0f0f0fu;
      w[g + 4] = (nibbles >> 4) & 0x0f0f0f0fu;
    }
  }
  if constexpr (HasFifthBit(kType)) {
    const char* const high = block + HighBitsAt(kType) + column / 2;
#pragma GCC unroll 8
    for (int g = 0; g < kQuantGroups; ++g) w[g] |= FifthBits(high + g * kPanelWidth / 2);
  }
}

template <DataType kType>
SOMNUS_INLINE void UnpackColumns(const char* block, int64_t column, VU (&w)[kWords]) {
  if constexpr (kParts == 1) {
    UnpackGroups<kType>(block, column, w);
  } else {
    VU bytes[kQuantGroups];
    UnpackGroups<kType>(block, column, bytes);
#pragma GCC unroll 8
    for (int g = 0; g < kQuantGroups; ++g) {
      w[2 * g] = bytes[g] & 0x00ff00ffu;
      w[2 * g + 1] = (bytes[g] >> 8) & 0x00ff00ffu;
    }
  }
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#if defined(__AVX512F__)
SOMNUS_INLINE VU Negate(VU x, VU where) {
  return (VU)_mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)where), __m512i{}, (__m512i)x);
}
SOMNUS_INLINE VU AbsBytes(VU x) { return (VU)_mm512_abs_epi8((__m512i)x); }
SOMNUS_INLINE VU AddHalves(VU a, VU b) { return (VU)_mm512_add_epi16((__m512i)a, (__m512i)b); }
SOMNUS_INLINE VU PairsOfBytes(VU a, VU b) { return (VU)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
SOMNUS_INLINE VI SumsOfPairs(VU a) { return (VI)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(1)); }
#else
SOMNUS_INLINE VU Negate(VU x, VU where) { return (VU)_mm256_sign_epi8((__m256i)x, (__m256i)where); }
SOMNUS_INLINE VU AbsBytes(VU x) { return (VU)_mm256_abs_epi8((__m256i)x); }
SOMNUS_INLINE VU AddHalves(VU a, VU b) { return (VU)_mm256_add_epi16((__m256i)a, (__m256i)b); }
SOMNUS_INLINE VU PairsOfBytes(VU a, VU b) { return (VU)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
SOMNUS_INLINE VI SumsOfPairs(VU a) { return (VI)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); }
#endif

// Products of pairs of bytes are added up in 16 bits: as many groups at a time as cannot overflow.
template <DataType kType>
SOMNUS_INLINE VI DotGroups(const VU (&w)[kQuantGroups], const char* x) {
  constexpr int kAtOnce = kType == DataType::kQ8_0 ? 1 : HasFifthBit(kType) ? 4 : 8;
  VI sum = {};
#pragma GCC unroll 8
  for (int begin = 0; begin < kQuantGroups; begin += kAtOnce) {
    VU pairs = {};
#pragma GCC unroll 8
    for (int g = begin; g < begin + kAtOnce; ++g) {
      uint32_t four;
      __builtin_memcpy(&four, x + 4 * g, 4);
      const VU a = SetU(four);
      if constexpr (kType == DataType::kQ8_0) {
        pairs = AddHalves(pairs, PairsOfBytes(AbsBytes(w[g]), Negate(a, w[g])));
      } else {
        pairs = AddHalves(pairs, PairsOfBytes(w[g], a));
      }
    }
    sum += SumsOfPairs(pairs);
  }
  return sum;
}
#elif !defined(__AVX2__)
template <DataType kType>
SOMNUS_INLINE VI DotGroups(const VU (&w)[kWords], const char* x) {
  __m128i sum = _mm_setzero_si128();
#pragma GCC unroll 16
  for (int i = 0; i < kWords; ++i) {
    int32_t pair;
    __builtin_memcpy(&pair, x + 4 * i, 4);
    sum = _mm_add_epi32(sum, _mm_madd_epi16((__m128i)w[i], _mm_set1_epi32(pair)));
  }
  return (VI)sum;
}
#endif

// sums[v] = what the offset brings + the products of a block of activations at `x` and of the columns w[v].
template <DataType kType, int kVectors>
SOMNUS_INLINE void DotBlock(const VU (&w)[kVectors][kWords], const char* x, VI (&sums)[kVectors]) {
  int32_t start = 0;
  if constexpr (OffsetHere(kType) != 0) __builtin_memcpy(&start, x + 4, 4);
  const char* const q = x + 8;
#if defined(__AVX512VNNI__)
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sums[v] = (VI)SetU(static_cast<uint32_t>(start));
#pragma GCC unroll 8
  for (int g = 0; g < kQuantGroups; ++g) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * g, 4);
    const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[v] = (VI)_mm512_dpbusd_epi32((__m512i)sums[v], (__m512i)w[v][g], a);
  }
#else
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sums[v] = DotGroups<kType>(w[v], q) + start;
#endif
}

template <DataType kType, int kRows, int kVectors>
inline __attribute__((noinline)) void QuantizedTile(const LinearArgs& args, const char* panel, int64_t row,
                                                    int64_t column, int64_t ahead) {
  VF acc[kRows][kVectors] = {};
  const char* x = args.x + row * args.x_stride;
  const int64_t in_panel = column % kPanelWidth;
  const char* const end = panel + PanelBytes(kType, args.k);
  for (const char* block = panel; block < end; block += PanelBlockBytes(kType), x += kActBlockBytes) {
    if (ahead != 0) {
      for (int64_t i = 0; i < PanelBlockBytes(kType); i += 64) __builtin_prefetch(block + ahead + i, 0, 2);
    }
    VF d[kVectors], m[kVectors];
    VU w[kVectors][kWords];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto* scales = reinterpret_cast<const uint16_t*>(block) + in_panel + v * kW;
      d[v] = F16::Get(scales);
      if constexpr (HasMinimum(kType)) m[v] = F16::Get(scales + kPanelWidth);
      UnpackColumns<kType>(block, in_panel + v * kW, w[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const char* const a = x + r * args.x_stride;
      float words[2];
      __builtin_memcpy(words, a, 8);
      VI sums[kVectors];
      DotBlock<kType, kVectors>(w, a, sums);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = Fma(__builtin_convertvector(sums[v], VF), d[v] * words[0], acc[r][v]);
        if constexpr (HasMinimum(kType)) acc[r][v] = Fma(m[v], Set(words[1]), acc[r][v]);
      }
    }
  }
  StoreTile<kRows, kVectors>(args, row, column, acc);
}

constexpr int kMaxQuantRows = 4;
// Two vectors are a whole panel where a vector has 16 lanes: memory is then read as it lies.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int QuantVectors(int rows) { return rows <= 2 ? 2 : 1; }
#else
constexpr int QuantVectors(int) { return 2; }
#endif

template <DataType kType>
void QuantizedRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                    int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  const int64_t tiles = (rows + kMaxQuantRows - 1) / kMaxQuantRows;
  const int64_t panel_bytes = PanelBytes(kType, args.k);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const char* const w = args.w + panel * panel_bytes;
    const int64_t next = panel + 1 < panel_end ? panel_bytes : 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = row_begin + rows * tile / tiles;
      const int64_t ahead = tiles == 1 ? AheadBytes(rows) : tile == tiles - 1 ? next : 0;
      WithRows<kMaxQuantRows>(row_begin + rows * (tile + 1) / tiles - row, [&]<int kRows>() {
        constexpr int kVectors = QuantVectors(kRows);
        for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW)
          QuantizedTile<kType, kRows, kVectors>(args, w, row, panel * kPanelWidth + c, c == 0 ? ahead : 0);
      });
    }
  }
}

constexpr void SetQuantized(KernelTable& table) {
  table.linear[static_cast<int>(DataType::kQ8_0)] = QuantizedRange<DataType::kQ8_0>;
  table.linear[static_cast<int>(DataType::kQ4_0)] = QuantizedRange<DataType::kQ4_0>;
  table.linear[static_cast<int>(DataType::kQ4_1)] = QuantizedRange<DataType::kQ4_1>;
  table.linear[static_cast<int>(DataType::kQ5_0)] = QuantizedRange<DataType::kQ5_0>;
  table.linear[static_cast<int>(DataType::kQ5_1)] = QuantizedRange<DataType::kQ5_1>;
  table.quantized_bytes = kActBlockBytes;
  table.quantize_row = QuantizeRowAny;
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
