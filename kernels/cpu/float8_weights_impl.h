// Numbers of fp8 (e4m3) weights as operands of multiply-adds. Part of kernels_*.cc.
//
// The numbers have the layout of bf16 weights, pairs of k side by side. No number is NaN, and each is exact
// in f32 and in bf16. A kind of product is a kind of tile (tile_impl.h) that expands the numbers in
// registers; `Expanded` is the tile that multiplies numbers that Expand has written, to the same bits.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

typedef int16_t VHsu __attribute__((vector_size(kW * 2), may_alias, aligned(2)));

// With activations of f32. A number is read as an f16 of the same bits, which is a 256th of the number
// (kUnit).
struct F8TimesF32 {
  using Expanded = TileF32;
  static constexpr float kUnit = kF8Unit;
  static constexpr int kStepK = 2;
  static constexpr int kABytes = 8;
  static constexpr int kBBytes = kW * 2;
  struct A {
    const float* x;
  };
  struct B {
    VF low;
    VF high;
  };
  static SOMNUS_INLINE A LoadA(const char* p) { return {reinterpret_cast<const float*>(p)}; }
  static SOMNUS_INLINE B LoadB(const char* p) {
    const VHs pair = *reinterpret_cast<const VHsu*>(p);
    // The shift to the right leaves the sign twice, then exponent and mantissa at their places.
    const VHs even = (pair << 8) >> 1, odd = pair >> 1;
    return {FromF16((VH)even & 0xbf80), FromF16((VH)odd & 0xbf80)};
  }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) {
    return Fma(Set(a.x[1]), b.high, Fma(Set(a.x[0]), b.low, acc));
  }
  // A step of one vector of columns; `out` is the vector's place in the first of two rows of a panel of f32.
  static SOMNUS_INLINE void Expand(const char* p, char* out) {
    const B b = LoadB(p);
    Store(reinterpret_cast<float*>(out), b.low);
    Store(reinterpret_cast<float*>(out) + kPanelWidth, b.high);
  }
};

#if defined(__AVX512BF16__)
// The bits of bf16 for 0 to 7 times 2^-9: subnormal numbers have no exponent that could simply be shifted.
alignas(64) constexpr uint16_t kSmallF8AsBf16[32] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                     0x3c00, 0x3c20, 0x3c40, 0x3c60};

// With activations of bf16.
struct F8TimesBf16 {
  using Expanded = TileBF16;
  static constexpr float kUnit = 1;
  static constexpr int kStepK = 2;
  static constexpr int kABytes = 4;
  static constexpr int kBBytes = kW * 2;
  using A = TileBF16::A;
  using B = TileBF16::B;
  static SOMNUS_INLINE A LoadA(const char* p) { return TileBF16::LoadA(p); }
  static SOMNUS_INLINE B LoadB(const char* p) {
    const __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(x, 4), _mm512_set1_epi16(0x07f0));
    const __m512i normal = _mm512_add_epi16(shifted, _mm512_set1_epi16(120 << 7));
    const __mmask32 small = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x78));
    const __m512i magnitude =
        _mm512_mask_permutexvar_epi16(normal, small, x, _mm512_load_si512(kSmallF8AsBf16));
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    return {
        _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(x, 8), _mm512_set1_epi16(-0x8000), kOrAnd)};
  }
  static SOMNUS_INLINE VF Step(VF acc, A a, B b) { return TileBF16::Step(acc, a, b); }
  static SOMNUS_INLINE void Expand(const char* p, char* out) { _mm512_storeu_si512(out, LoadB(p).w); }
};
#endif

// Bytes of two values of k of a panel, as numbers and expanded.
constexpr int64_t kF8PairBytes = 2 * kPanelWidth;
template <typename P>
constexpr int64_t kExpandedPairBytes = 2 / P::Expanded::kStepK*(kPanelWidth / kW) * P::Expanded::kBBytes;

// Writes `count` values of k of a panel, in the layout of a panel of P::Expanded. Prefetches as many bytes
// from `ahead` bytes further on.
template <typename P>
SOMNUS_INLINE void ExpandF8(const char* numbers, int64_t count, int64_t ahead, char* out) {
  for (int64_t i = 0; i < count; i += 2, numbers += kF8PairBytes, out += kExpandedPairBytes<P>) {
    __builtin_prefetch(numbers + ahead, 0, 2);
#pragma GCC unroll 8
    for (int v = 0; v < kPanelWidth / kW; ++v)
      P::Expand(numbers + v * P::kBBytes, out + v * P::Expanded::kBBytes);
  }
}

// A run of values of k, in whole blocks of 32, that have one scale beside the columns' scales, or a part of
// such a run.
struct F8Piece {
  int64_t begin;
  int64_t end;
  bool first;  // of its run
  bool last;
  float scale;  // of the run

  int64_t count() const { return end - begin; }
};

// Where the numbers and the scales of a panel are.
struct F8PanelView {
  explicit F8PanelView(const LinearArgs& args, int64_t panel)
      : columns(reinterpret_cast<const float*>(args.w + panel * PanelBytes(DataType::kF8E4M3, args.k))),
        scales(columns + kPanelWidth),
        numbers(reinterpret_cast<const char*>(columns) + F8NumbersAt(args.k)),
        k(args.k) {}

  // The end of the run that begins at `begin`.
  int64_t RunEnd(int64_t begin) const {
    int64_t block = begin / kQuantBlock + 1;
    while (block * kQuantBlock < k &&
           __builtin_memcmp(scales + block, scales + begin / kQuantBlock, sizeof(float)) == 0)
      ++block;
    return block * kQuantBlock;
  }

  // Calls fn(piece) for all of k in ascending order, at most `most` values at a time.
  template <typename Fn>
  SOMNUS_INLINE void ForEachPiece(int64_t most, const Fn& fn) const {
    for (int64_t run = 0; run < k;) {
      const int64_t run_end = RunEnd(run);
      for (int64_t begin = run; begin < run_end; begin += most) {
        const int64_t end = Min(begin + most, run_end);
        fn(F8Piece{begin, end, begin == run, end == run_end, scales[run / kQuantBlock]});
      }
      run = run_end;
    }
  }

  const float* columns;
  const float* scales;
  const char* numbers;
  int64_t k;
};

// y = total * the columns' scales + bias for one row of a panel. The total is of P's numbers.
template <typename P>
SOMNUS_INLINE void StoreF8Row(const LinearArgs& args, const F8PanelView& w, int64_t panel, int64_t row,
                              const float* total) {
  VF acc[1][kPanelWidth / kW];
#pragma GCC unroll 8
  for (int v = 0; v < kPanelWidth / kW; ++v)
    acc[0][v] = Load(total + v * kW) * P::kUnit * Load(w.columns + v * kW);
  StoreTile<1, kPanelWidth / kW>(args, row, panel * kPanelWidth, acc);
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
