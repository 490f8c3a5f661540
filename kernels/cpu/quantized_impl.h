// Linear with quantized weights: products are integer sums over 32 values, or over 16 where 16 share a scale,
// and f32 sums of these integers. Part of kernels_*.cc.
//
// Integer sums are exact, so their order is free. The f32 sum of an output element is one chain over the
// parts of k in ascending order, for each part the products, then the minimum, for any shape of the tile:
// that makes results independent of the batch.
//
// A few rows are multiplied with the weights directly from memory. For more rows a piece of a panel is
// expanded once, into bytes and f32 scales that stay in the L1 cache, and then serves all rows.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// The properties of a type that the loops over products need.
struct DotShape {
  int parts;       // parts of 32 values, with a scale each
  bool minimum;    // beside each scale
  bool offset;     // integer sums start with the activations' word
  bool is_signed;  // weights' bytes have signs
  int at_once;     // groups whose products of bytes can be added up in 16 bits
};

template <DataType kType>
constexpr DotShape ShapeOf() {
  constexpr QuantLayout kLayout = LayoutOf(kType);
  constexpr int kPerPart = static_cast<int>(kQuantGroups) / kLayout.parts;
  int at_once = kPerPart;
#if defined(__AVX2__) && !SOMNUS_DOT_BYTES
  const int largest = TakenAsSigned(kType)        ? 128
                      : kType == DataType::kMXFP4 ? 24
                                                  : (1 << (kLayout.low_bits + kLayout.high_bits)) - 1;
  while (at_once > 1 && at_once * 2 * 127 * largest > 32767) at_once /= 2;
#endif
  return {kLayout.parts, kLayout.minimum, OffsetHere(kType) != 0, TakenAsSigned(kType), at_once};
}

// ---- Products of bytes

#if defined(__AVX2__) && !SOMNUS_DOT_BYTES
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

// Adds up pairs of a group's products in 16 bits.
template <DotShape kShape>
SOMNUS_INLINE VU PairProducts(VU w, VU a) {
  if constexpr (kShape.is_signed) return PairsOfBytes(AbsBytes(w), Negate(a, w));
  return PairsOfBytes(w, a);
}
#endif

#if defined(__AVX512VNNI__)
SOMNUS_INLINE VI DotBytes(VI sum, VU w, VU a) {
  return (VI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
}
#elif defined(__AVXVNNI__)
SOMNUS_INLINE VI DotBytes(VI sum, VU w, VU a) {
  return (VI)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)a);
}
#elif defined(__ARM_FEATURE_DOTPROD)
SOMNUS_INLINE VI DotBytes(VI sum, VU w, VU a) {
  return (VI)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)a);
}
#elif SOMNUS_NEON
// Sums of two products fit 16 bits: at most 2 * 127 * 128.
SOMNUS_INLINE VI DotBytes(VI sum, VU w, VU a) {
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)a));
  const int16x8_t high = vmull_high_s8((int8x16_t)w, (int8x16_t)a);
  return (VI)vpadalq_s16((int32x4_t)sum, vpaddq_s16(low, high));
}
#endif

// Four activations of a row, in each lane.
SOMNUS_INLINE VU FourValues(const char* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return SetU(four);
}

// sums[r][v] += the products of groups [kBegin, kBegin + kShape.at_once). x: row 0's values.
template <DotShape kShape, int kBegin, int kRows, int kVectors, typename Weights>
SOMNUS_INLINE void DotGroups(const Weights& weights, const char* x, int64_t x_stride,
                             VI (&sums)[kRows][kVectors]) {
#if defined(__AVX2__) && !SOMNUS_DOT_BYTES
  VU pairs[kRows][kVectors] = {};
#endif
#pragma GCC unroll 8
  for (int g = kBegin; g < kBegin + kShape.at_once; ++g) {
    VU w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) w[v] = weights.Group(v, g);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const char* const row = x + r * x_stride + g * 4 * kParts;
#if SOMNUS_DOT_BYTES
      const VU a = FourValues(row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = DotBytes(sums[r][v], w[v], a);
#elif defined(__AVX2__)
      const VU a = FourValues(row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) pairs[r][v] = AddHalves(pairs[r][v], PairProducts<kShape>(w[v], a));
#else
      const __m128i even = (__m128i)FourValues(row), odd = (__m128i)FourValues(row + 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] += (VI)_mm_madd_epi16((__m128i)(w[v] & 0x00ff00ffu), even);
        sums[r][v] += (VI)_mm_madd_epi16((__m128i)((w[v] >> 8) & 0x00ff00ffu), odd);
      }
#endif
    }
  }
#if defined(__AVX2__) && !SOMNUS_DOT_BYTES
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] += SumsOfPairs(pairs[r][v]);
  }
#endif
  constexpr int kNext = kBegin + kShape.at_once, kPerPart = static_cast<int>(kQuantGroups) / kShape.parts;
  if constexpr (kNext % kPerPart != 0) DotGroups<kShape, kNext>(weights, x, x_stride, sums);
}

// acc[r][v] += row r of a block of activations at `x` times the columns of vector v of a sub-block.
template <DotShape kShape, int kRows, int kVectors, typename Weights, int kPart = 0>
SOMNUS_INLINE void DotBlock(const Weights& weights, const char* x, int64_t x_stride,
                            VF (&acc)[kRows][kVectors]) {
  VI sums[kRows][kVectors] = {};
  if constexpr (kShape.offset) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const VI start = (VI)FourValues(x + r * x_stride + 4 + 4 * kPart);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = start;
    }
  }
  constexpr int kBegin = kPart * static_cast<int>(kQuantGroups) / kShape.parts;
  DotGroups<kShape, kBegin>(weights, x + kActHeaderBytes, x_stride, sums);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const VF scale = weights.Scale(v, kPart);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const VF d = (VF)FourValues(x + r * x_stride);
      acc[r][v] = Fma(__builtin_convertvector(sums[r][v], VF), scale * d, acc[r][v]);
    }
    if constexpr (kShape.minimum) {
      const VF minimum = weights.Minimum(v, kPart);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        acc[r][v] = Fma(minimum, (VF)FourValues(x + r * x_stride + 4 + 4 * kPart), acc[r][v]);
    }
  }
  if constexpr (kPart + 1 < kShape.parts)
    DotBlock<kShape, kRows, kVectors, Weights, kPart + 1>(weights, x, x_stride, acc);
}

SOMNUS_INLINE void PrefetchBytes(const char* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// ---- A few rows, with weights from memory

constexpr int kMaxStoredRows = kSizes.max_stored_rows;
constexpr int QuantVectors(int rows) { return kSizes.stored_vectors[rows < 4 ? rows - 1 : 3]; }

// How part of a panel comes into a cache.
enum class Fetch {
  kNone,      // an earlier tile has read the panel
  kPrefetch,  // by prefetches
  kUnaided,   // as LinearArgs::reads_ahead says
};

// Whether StoredWeights reads a block in the order of addresses, but for a line of scales: there are no high
// bits beside the low ones, no scales of sub-blocks, and no minima.
template <DataType kType>
constexpr bool kReadsInOrder = LayoutOf(kType).high_bits == 0 && !LayoutOf(kType).minimum &&
                               LayoutOf(kType).scales == PackedScales::kNone;

// Fetches kBytes at `p`, which are read next.
template <DataType kType, Fetch kFetch, int64_t kBytes>
SOMNUS_INLINE void FetchPart(const char* p, int64_t ahead) {
  if constexpr (kFetch == Fetch::kPrefetch) PrefetchBytes(p + ahead, kBytes);
  if constexpr (kFetch == Fetch::kUnaided && !kReadsInOrder<kType>) {
    // A word of each cache line, so that lines are asked for in order.
#pragma GCC unroll 64
    for (int64_t i = 0; i < kBytes; i += 64) {
      uint32_t word;
      __builtin_memcpy(&word, p + i, 4);
      asm volatile("" : : "r"(word));
    }
  }
}

template <DataType kType, int kRows, int kVectors, Fetch kFetch>
inline __attribute__((noinline)) void StoredTile(const LinearArgs& args, const char* panel, int64_t row,
                                                 int64_t column) {
  constexpr int64_t kAhead = AheadBytes(kRows);
  VF acc[kRows][kVectors] = {};
  const char* x = args.x + row * args.x_stride;
  const int64_t in_panel = column % kPanelWidth;
  const char* const end = panel + PanelBytes(kType, args.k);
  for (const char* block = panel; block < end; block += PanelBlockBytes(kType)) {
    FetchPart<kType, kFetch, SubBlocksAt(kType)>(block, kAhead);
    for (int64_t sub = 0; sub < SubBlocks(kType); ++sub, x += kActBlockBytes) {
      const char* const part = block + SubBlocksAt(kType) + sub * SubBlockBytes(kType);
      FetchPart<kType, kFetch, SubBlockBytes(kType)>(part, kAhead);
      DotBlock<ShapeOf<kType>(), kRows, kVectors>(StoredWeights<kType>{block, sub, in_panel}, x,
                                                  args.x_stride, acc);
    }
  }
  StoreTile<kRows, kVectors>(args, row, column, acc);
}

// Whether tiles of so many rows leave prefetches to a CPU that reads ahead. Weights of 8 bits pass so fast
// that small matrices end before the CPU has come ahead.
template <DataType kType, int kRows>
constexpr bool kUnaidedStored = kRows <= kSizes.unaided_rows[1] && LayoutOf(kType).low_bits < 8;

// The tile that brings the panel from memory.
template <DataType kType, int kRows, int kVectors>
SOMNUS_INLINE void FirstTile(const LinearArgs& args, const char* panel, int64_t row, int64_t column) {
  if constexpr (kUnaidedStored<kType, kRows>) {
    if (args.reads_ahead)
      return StoredTile<kType, kRows, kVectors, Fetch::kUnaided>(args, panel, row, column);
  }
  StoredTile<kType, kRows, kVectors, Fetch::kPrefetch>(args, panel, row, column);
}

template <DataType kType>
void StoredRows(const LinearArgs& args, int64_t row_begin, int64_t rows, int64_t panel_begin,
                int64_t panel_end) {
  WithRows<kMaxStoredRows>(rows, [&]<int kRows>() {
    constexpr int kVectors = QuantVectors(kRows);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const char* const w = args.w + panel * PanelBytes(kType, args.k);
      const int64_t column = panel * kPanelWidth;
      FirstTile<kType, kRows, kVectors>(args, w, row_begin, column);
      for (int64_t c = kVectors * kW; c < kPanelWidth; c += kVectors * kW)
        StoredTile<kType, kRows, kVectors, Fetch::kNone>(args, w, row_begin, column + c);
    }
  });
}

// ---- More rows, with weights that are expanded first

// Sub-blocks that are expanded together: a block of a K type.
constexpr int64_t kExpandedBlocks = 8;

struct alignas(64) ExpandedBlock {
  VU groups[kQuantGroups][kPanelWidth / kW];
  VF scales[2][kPanelWidth / kW];
  VF minima[2][kPanelWidth / kW];
};

// Column vectors [first, first + ...) of an expanded sub-block, as StoredWeights.
struct ExpandedWeights {
  const ExpandedBlock& block;
  int64_t first;
  SOMNUS_INLINE VU Group(int v, int g) const { return block.groups[g][first + v]; }
  SOMNUS_INLINE VF Scale(int v, int part) const { return block.scales[part][first + v]; }
  SOMNUS_INLINE VF Minimum(int v, int part) const { return block.minima[part][first + v]; }
};

template <DataType kType>
SOMNUS_INLINE void ExpandBlock(const char* block, int64_t sub, ExpandedBlock* out) {
  constexpr DotShape kShape = ShapeOf<kType>();
  for (int v = 0; v < kPanelWidth / kW; ++v) {
    const StoredWeights<kType> weights{block, sub, v * kW};
#pragma GCC unroll 8
    for (int g = 0; g < kQuantGroups; ++g) out->groups[g][v] = weights.Group(0, g);
#pragma GCC unroll 2
    for (int part = 0; part < kShape.parts; ++part) {
      out->scales[part][v] = weights.Scale(0, part);
      if constexpr (kShape.minimum) out->minima[part][v] = weights.Minimum(0, part);
    }
  }
}

// Sums of up to kMaxExpandedRows rows and a panel, between successive pieces of k.
constexpr int64_t kMaxExpandedRows = 128;
using PartialSums = float[kMaxExpandedRows][kPanelWidth];

constexpr int kExpandedTileRows = kSizes.max_expanded_rows, kExpandedVectors = kSizes.expanded_vectors;
constexpr int64_t kExpandedPasses = kPanelWidth / kW / kExpandedVectors;

// Adds up rows of x, which start at `x`, over `count` expanded sub-blocks. Each vector's pass over them, or
// the first pass alone where passes are not paced, prefetches `ahead_bytes` a sub-block, from `ahead` on.
template <DotShape kShape, int kRows>
inline __attribute__((noinline)) void ExpandedTile(const ExpandedBlock* blocks, int64_t count, const char* x,
                                                   int64_t x_stride, float (*sums)[kPanelWidth],
                                                   const char* ahead, int64_t ahead_bytes, bool paced) {
  for (int64_t first = 0; first < kPanelWidth / kW; first += kExpandedVectors) {
    VF acc[kRows][kExpandedVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kExpandedVectors; ++v) acc[r][v] = Load(sums[r] + (first + v) * kW);
    }
    for (int64_t b = 0; b < count; ++b) {
      if (paced || first == 0) {
        PrefetchBytes(ahead, ahead_bytes);
        ahead += ahead_bytes;
      }
      DotBlock<kShape, kRows, kExpandedVectors>(ExpandedWeights{blocks[b], first}, x + b * kActBlockBytes,
                                                x_stride, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kExpandedVectors; ++v) Store(sums[r] + (first + v) * kW, acc[r][v]);
    }
  }
}

// One panel for rows [row, row + rows).
template <DataType kType>
void ExpandedPanel(const LinearArgs& args, int64_t panel, int64_t row, int64_t rows) {
  alignas(64) ExpandedBlock blocks[kExpandedBlocks];
  alignas(64) PartialSums sums;
  __builtin_memset(sums, 0, static_cast<size_t>(rows) * sizeof(sums[0]));
  const int64_t tiles = (rows + kExpandedTileRows - 1) / kExpandedTileRows;
  const char* const w = args.w + panel * PanelBytes(kType, args.k);
  const int64_t total = args.k / kQuantBlock;
  constexpr int64_t kPieceBytes = kExpandedBlocks / SubBlocks(kType) * PanelBlockBytes(kType);
  // A few tiles share the prefetches of the next piece, as the tiles of PacedPanel share the next panel.
  const bool paced = tiles <= kSizes.paced_tiles;
  const int64_t ahead_bytes = kPieceBytes / (kExpandedBlocks * (paced ? tiles * kExpandedPasses : 1));
  for (int64_t begin = 0; begin < total; begin += kExpandedBlocks) {
    const int64_t count = Min(kExpandedBlocks, total - begin);
    const char* const piece = w + begin / SubBlocks(kType) * PanelBlockBytes(kType);
    for (int64_t b = 0; b < count; ++b)
      ExpandBlock<kType>(piece + b / SubBlocks(kType) * PanelBlockBytes(kType), b % SubBlocks(kType),
                         &blocks[b]);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = rows * tile / tiles;
      WithRows<kExpandedTileRows>(rows * (tile + 1) / tiles - first, [&]<int kRows>() {
        ExpandedTile<ShapeOf<kType>(), kRows>(
            blocks, count, args.x + (row + first) * args.x_stride + begin * kActBlockBytes, args.x_stride,
            sums + first, piece + kPieceBytes + kPieceBytes * tile / tiles,
            paced || tile == 0 ? ahead_bytes : 0, paced);
      });
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    VF acc[1][kPanelWidth / kW];
    for (int v = 0; v < kPanelWidth / kW; ++v) acc[0][v] = Load(sums[r] + v * kW);
    StoreTile<1, kPanelWidth / kW>(args, row + r, panel * kPanelWidth, acc);
  }
}

template <DataType kType>
void QuantizedRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                    int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  if (rows <= kMaxStoredRows) return StoredRows<kType>(args, row_begin, rows, panel_begin, panel_end);
  const int64_t parts = (rows + kMaxExpandedRows - 1) / kMaxExpandedRows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t row = row_begin + rows * part / parts, end = row_begin + rows * (part + 1) / parts;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel)
      ExpandedPanel<kType>(args, panel, row, end - row);
  }
}

constexpr void SetQuantized(KernelTable& table) {
  ForEachQuantType([&]<DataType kType>() { table.linear[static_cast<int>(kType)] = QuantizedRange<kType>; });
  table.quantized_bytes = kActBlockBytes;
  table.quantize_row = QuantizeRowAny;
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
