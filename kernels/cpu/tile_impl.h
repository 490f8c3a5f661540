// The innermost loop of Linear and attention: a few rows times a few vectors of packed columns; and the end
// of a tile of Linear. Part of kernels_*.cc.
//
// Every output element is one chain of multiply-adds over k in ascending order, for any shape of the tile:
// that makes results independent of the batch.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// How packed elements and activations are multiplied. One step takes kStepK values of k.
struct TileF32 {
  using E = F32;
  using ActElement = F32;
  static constexpr int kStepK = 1;
  static constexpr int kABytes = 4;       // of one activation row per step
  static constexpr int kBBytes = kW * 4;  // of one vector of packed columns per step
  struct A {
    VF x;
  };
  struct B {
    VF w;
  };
  static SOMNUS_INLINE A LoadA(const char* p) { return {Set(*reinterpret_cast<const float*>(p))}; }
  static SOMNUS_INLINE B LoadB(const char* p) { return {Load(reinterpret_cast<const float*>(p))}; }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) { return Fma(a.x, b.w, acc); }
};

struct TileF16 : TileF32 {
  using E = F16;
  static constexpr int kBBytes = kW * 2;
  static SOMNUS_INLINE B LoadB(const char* p) { return {F16::Get(reinterpret_cast<const uint16_t*>(p))}; }
};

// For caches alone. Sums are a 256th of the true sums (kF8Unit).
struct TileF8 : TileF32 {
  using E = F8;
  static constexpr int kBBytes = kW;
  static SOMNUS_INLINE B LoadB(const char* p) { return {FromF8(*reinterpret_cast<const VBu*>(p))}; }
};
// The same of bytes of which none is NaN.
struct TileFiniteF8 : TileF8 {
  static SOMNUS_INLINE B LoadB(const char* p) { return {FromF8<true>(*reinterpret_cast<const VBu*>(p))}; }
};

// For caches alone. The products are with the integers; a token's scale is multiplied afterwards.
struct TileI8 : TileF32 {
  using E = I8;
  static constexpr int kBBytes = kW;
  static SOMNUS_INLINE B LoadB(const char* p) { return {FromI8(*reinterpret_cast<const VBsu*>(p))}; }
};

#if defined(__AVX512BF16__)
struct TileBF16 {
  using E = BF16;
  static constexpr int kStepK = 2;
  static constexpr int kABytes = 4;
  static constexpr int kBBytes = kW * 4;
  using ActElement = BF16;
  struct A {
    __m512i x;
  };
  struct B {
    __m512i w;
  };
  static SOMNUS_INLINE A LoadA(const char* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return {_mm512_set1_epi32(pair)};
  }
  static SOMNUS_INLINE B LoadB(const char* p) { return {_mm512_loadu_si512(p)}; }
  static SOMNUS_INLINE B FirstOfPair(B b) { return {_mm512_and_si512(b.w, _mm512_set1_epi32(0xffff))}; }
  static SOMNUS_INLINE B SecondOfPair(B b) {
    return {_mm512_and_si512(b.w, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))};
  }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) {
    return (VF)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a.x, (__m512bh)b.w);
  }
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct TileBF16 {
  using E = BF16;
  static constexpr int kStepK = 2;
  static constexpr int kABytes = 4;
  static constexpr int kBBytes = kW * 4;
  using ActElement = BF16;
  struct A {
    VU x;
  };
  struct B {
    VU w;
  };
  static SOMNUS_INLINE A LoadA(const char* p) {
    uint32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return {SetU(pair)};
  }
  static SOMNUS_INLINE B LoadB(const char* p) { return {LoadU(p)}; }
  static SOMNUS_INLINE B FirstOfPair(B b) { return {b.w & 0xffffu}; }
  static SOMNUS_INLINE B SecondOfPair(B b) { return {b.w & 0xffff0000u}; }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) {
    return (VF)vbfdotq_f32((float32x4_t)acc, (bfloat16x8_t)a.x, (bfloat16x8_t)b.w);
  }
};
#else
struct TileBF16 {
  using E = BF16;
  static constexpr int kStepK = 2;
  static constexpr int kABytes = 8;
  static constexpr int kBBytes = kW * 4;
  using ActElement = F32;
  struct A {
    const float* x;
  };
  struct B {
    VF low;
    VF high;
  };
  static SOMNUS_INLINE A LoadA(const char* p) { return {reinterpret_cast<const float*>(p)}; }
  static SOMNUS_INLINE B LoadB(const char* p) {
    const VU pair = LoadU(p);
    return {(VF)(pair << 16), (VF)(pair & 0xffff0000u)};
  }
  static SOMNUS_INLINE B FirstOfPair(B b) { return {b.low, VF{}}; }
  static SOMNUS_INLINE B SecondOfPair(B b) { return {VF{}, b.high}; }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) {
    return Fma(Set(a.x[1]), b.high, Fma(Set(a.x[0]), b.low, acc));
  }
};
#endif

// This unit's row of the table.
constexpr TileSizes kSizes = tile_sizes::SOMNUS_ISA;
constexpr int kMaxRows = kSizes.max_rows;
constexpr int TileVectors(int rows) { return kSizes.vectors[rows < 4 ? rows - 1 : 3]; }
// A step prefetches once for so many vectors of a tile: once for each cache line where vectors lie side by
// side.
template <typename P, bool kSideBySide>
constexpr int kPrefetchVectors = (SOMNUS_NEON || kSideBySide) && P::kBBytes < 64 ? 64 / P::kBBytes : 1;

// Into which cache a tile prefetches, if any: for kL2 and kL1 the locality that __builtin_prefetch takes.
enum class Prefetch { kNone = 0, kL2 = 2, kL1 = 3 };
constexpr Prefetch ToL2If(bool ahead) { return ahead ? Prefetch::kL2 : Prefetch::kNone; }

// Memory that a tile prefetches at an even pace, from `begin` on: `step` bytes in each of its steps.
struct PacedBytes {
  const char* begin;
  int64_t step;  // at most a cache line
};

SOMNUS_INLINE int64_t DistanceOf(int64_t all, int) { return all; }
template <int kVectors>
SOMNUS_INLINE int64_t DistanceOf(const int64_t (&each)[kVectors], int v) {
  return each[v];
}

// acc[r][v] += sum over steps of a[r] * b[v]. Row r of a starts at a + r * a_stride; step s of column vector
// v at b_begin[v] + s * b_stride. Three rows share one pointer, so that 14 rows fit the address registers.
// kPrefetch: each step also prefetches the bytes that lie `ahead` further, or what comes next of PacedBytes.
// Each vector has a distance of its own where there are several.
template <typename P, int kRows, int kVectors, Prefetch kPrefetch = Prefetch::kNone, typename Ahead = int64_t>
SOMNUS_INLINE void Tile(const char* a, int64_t a_stride, const char* const (&b_begin)[kVectors],
                        int64_t b_stride, int64_t steps, VF (&acc)[kRows][kVectors],
                        const Ahead& ahead = {}) {
  constexpr bool kPaced = __is_same(Ahead, PacedBytes);
  constexpr int kBases = (kRows + 2) / 3;
  const char* base[kBases];
  const char* b[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) b[v] = b_begin[v];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_stride;
  PacedBytes paced = {};
  if constexpr (kPaced) paced = ahead;
#pragma GCC unroll 4
  for (int64_t s = 0; s < steps; ++s) {
    typename P::B w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = P::LoadB(b[v]);
    if constexpr (kPaced) {
      __builtin_prefetch(paced.begin, 0, static_cast<int>(kPrefetch));
      paced.begin += paced.step;
    } else if constexpr (kPrefetch != Prefetch::kNone) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; v += kPrefetchVectors<P, __is_same(Ahead, int64_t)>)
        __builtin_prefetch(b[v] + DistanceOf(ahead, v), 0, static_cast<int>(kPrefetch));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename P::A x = P::LoadA(base[r / 3] + (r % 3) * a_stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = P::Step(acc[r][v], x, w[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) b[v] += b_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) base[i] += P::kABytes;
  }
}

// A step in which only the first value of each pair counts, or only the second: the pair's other value lies
// beyond the end or before the beginning, and may be anything.
template <typename P, int kRows, int kVectors, bool kSecond = false>
SOMNUS_INLINE void TileHalfStep(const char* a, int64_t a_stride, const char* const (&b)[kVectors],
                                VF (&acc)[kRows][kVectors]) {
  using Type = typename P::ActElement::Type;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Type pair[2] = {};
    constexpr size_t kAt = kSecond ? sizeof(Type) : 0;
    __builtin_memcpy(pair + kSecond, a + r * a_stride + kAt, sizeof(Type));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const typename P::B w = kSecond ? P::SecondOfPair(P::LoadB(b[v])) : P::FirstOfPair(P::LoadB(b[v]));
      acc[r][v] = P::Step(acc[r][v], P::LoadA(reinterpret_cast<const char*>(pair)), w);
    }
  }
}

// Calls fn.template operator()<kRows>() for the run-time value rows in [1, kMax].
template <int kMax = kMaxRows, int kRows = 1, typename Fn>
SOMNUS_INLINE void WithRows(int64_t rows, const Fn& fn) {
  if constexpr (kRows < kMax) {
    if (rows != kRows) return WithRows<kMax, kRows + 1>(rows, fn);
  }
  fn.template operator()<kRows>();
}

// How many bytes ahead of its use a weight is prefetched, chosen by measurement: far enough to cover memory's
// latency, near enough to be cached still. Crosses into the next panel, which follows in memory.
constexpr int64_t AheadBytes(int64_t rows) { return rows <= 8 ? 6144 : 12288; }

// acc = y for a tile, as far as there are columns.
template <int kRows, int kVectors>
SOMNUS_INLINE void LoadTile(const LinearArgs& args, int64_t row, int64_t column, VF (&acc)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t n = column + v * kW;
    const int64_t count = Min(args.n - n, kW);
    if (count <= 0) return;
    const float* y = args.y + row * args.y_stride + n;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      acc[r][v] = count == kW ? Load(y + r * args.y_stride) : LoadPart(y + r * args.y_stride, count);
  }
}

// y = acc + bias for a tile, as far as there are columns.
template <int kRows, int kVectors>
SOMNUS_INLINE void StoreTile(const LinearArgs& args, int64_t row, int64_t column,
                             const VF (&acc)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t n = column + v * kW;
    const int64_t count = Min(args.n - n, kW);
    if (count <= 0) return;
    const VF bias = args.bias == nullptr ? VF{} : LoadPart(args.bias + n, count);
    float* y = args.y + row * args.y_stride + n;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (count == kW) {
        Store(y + r * args.y_stride, acc[r][v] + bias);
      } else {
        StorePart(y + r * args.y_stride, acc[r][v] + bias, count);
      }
    }
  }
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
