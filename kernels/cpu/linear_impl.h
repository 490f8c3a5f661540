// Linear and the packing of its weights. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

// Into L1 where a row or two of bf16 compute faster than weights come from L2. With more rows L1 holds
// activations; with this prefetch f16 got slower with avx2, and f32 did not gain (docs/measured).
template <typename P, int kRows>
constexpr Prefetch kWeightPrefetch =
    P::E::kType == DataType::kBF16&& kRows >= kSizes.l1_rows[0] && kRows <= kSizes.l1_rows[1] ? Prefetch::kL1
                                                                                              : Prefetch::kL2;

// Whether such a tile needs no prefetch where LinearArgs::reads_ahead is set.
template <typename P, int kRows>
constexpr bool kUnaided = P::E::kType == DataType::kBF16&& kRows <= kSizes.unaided_rows[0];

// Columns [column, column + kVectors * kW) of rows [row, row + kRows). ahead: a distance, 0 for no
// prefetches, or PacedBytes.
template <typename P, int kRows, int kVectors, typename Ahead>
inline __attribute__((noinline)) void LinearTile(const LinearArgs& args, const char* panel, int64_t row,
                                                 int64_t column, Ahead ahead) {
  constexpr int64_t kBStride = kPanelWidth / kW * P::kBBytes;
  VF acc[kRows][kVectors] = {};
  const char* a = args.x + row * args.x_stride;
  const int64_t steps = args.k / P::kStepK;
  const char* b[kVectors];
  for (int v = 0; v < kVectors; ++v) b[v] = panel + (column % kPanelWidth / kW + v) * P::kBBytes;
  if constexpr (__is_same(Ahead, PacedBytes)) {
    Tile<P, kRows, kVectors, Prefetch::kL2>(a, args.x_stride, b, kBStride, steps, acc, ahead);
  } else if (ahead != 0 && !(kUnaided<P, kRows> && args.reads_ahead)) {
    Tile<P, kRows, kVectors, kWeightPrefetch<P, kRows>>(a, args.x_stride, b, kBStride, steps, acc, ahead);
  } else {
    Tile<P, kRows, kVectors>(a, args.x_stride, b, kBStride, steps, acc);
  }
  if constexpr (P::kStepK == 2) {
    if (args.k % 2 != 0) {
      for (const char*& p : b) p += steps * kBStride;
      TileHalfStep<P, kRows, kVectors>(a + steps * P::kABytes, args.x_stride, b, acc);
    }
  }
  StoreTile<kRows, kVectors>(args, row, column, acc);
}

// One vector wide tiles of up to kMaxTallRows rows: somewhat slower arithmetic than two tiles of half as many
// rows, but memory is then read at an even pace.
constexpr int kMaxTallRows = kSizes.max_tall_rows;

// Rows [row, row + kRows) of one panel.
template <typename P, int kRows, int kVectors>
SOMNUS_INLINE void LinearPanel(const LinearArgs& args, const char* panel, int64_t row, int64_t first_column,
                               int64_t ahead) {
  for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW) {
    LinearTile<P, kRows, kVectors>(args, panel, row, first_column + c, ahead);
  }
}

template <typename P, int kRows = kMaxRows + 1>
SOMNUS_INLINE void TallPanel(int64_t rows, const LinearArgs& args, const char* panel, int64_t row,
                             int64_t first_column) {
  if constexpr (kRows <= kMaxTallRows) {
    if (rows != kRows) return TallPanel<P, kRows + 1>(rows, args, panel, row, first_column);
    LinearPanel<P, kRows, 1>(args, panel, row, first_column, AheadBytes(rows));
  }
}

// Rows [row_begin, row_begin + rows) of one panel, which `tiles` tiles use in turn. Each prefetches a share
// of the next panel, if there is one, in proportion to its work: prefetches of one tile alone would wait for
// memory, which would then idle while the other tiles compute.
template <typename P>
SOMNUS_INLINE void PacedPanel(const LinearArgs& args, const char* panel, int64_t row_begin, int64_t rows,
                              int64_t tiles, int64_t first_column, bool has_next) {
  const int64_t step_bytes = has_next ? kPanelWidth / kW * P::kBBytes : 0, steps = args.k / P::kStepK;
  const char* next = panel + PanelBytes(P::E::kType, args.k);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = rows * tile / tiles;
    WithRows(rows * (tile + 1) / tiles - row, [&]<int kRows>() {
      constexpr int kVectors = TileVectors(kRows);
      const int64_t step = step_bytes * kRows * kVectors / (rows * (kPanelWidth / kW));
      for (int64_t c = 0; c < kPanelWidth; c += kVectors * kW, next += step * steps)
        LinearTile<P, kRows, kVectors>(args, panel, row_begin + row, first_column + c,
                                       PacedBytes{next, step});
    });
  }
}

template <typename P>
void LinearRange(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                 int64_t panel_end) {
  const int64_t rows = row_end - row_begin;
  if constexpr (kExpands<P>) {
    if (args.expands && rows >= kSizes.min_f32_rows)
      return ExpandedLinearRange<P>(args, row_begin, row_end, panel_begin, panel_end);
  }
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t panel_bytes = PanelBytes(P::E::kType, args.k);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const char* w = args.w + panel * panel_bytes;
    if (tiles == 2 && rows <= kMaxTallRows) {
      TallPanel<P>(rows, args, w, row_begin, panel * kPanelWidth);
      continue;
    }
    if constexpr (kSizes.paced_tiles > 0) {
      if (tiles > 1 && tiles <= kSizes.paced_tiles) {
        PacedPanel<P>(args, w, row_begin, rows, tiles, panel * kPanelWidth, panel + 1 < panel_end);
        continue;
      }
    }
    // The last rows that use a panel prefetch the next panel meanwhile, so that memory does not idle during
    // their computation.
    const int64_t next = panel + 1 < panel_end ? panel_bytes : 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = row_begin + rows * tile / tiles;
      const int64_t ahead = tiles == 1 ? AheadBytes(rows) : tile == tiles - 1 ? next : 0;
      WithRows(row_begin + rows * (tile + 1) / tiles - row, [&]<int kRows>() {
        LinearPanel<P, kRows, TileVectors(kRows)>(args, w, row, panel * kPanelWidth, ahead);
      });
    }
  }
}

// Columns [k_begin, k) of one row, element by element. out: the row's place in step 0 of its panel.
template <typename E>
void PackRow(const float* row, int64_t k_begin, int64_t k, typename E::Type* out) {
  using Type = typename E::Type;
  constexpr int64_t kPair = E::kType == DataType::kBF16 ? 2 : 1;
  for (int64_t i = k_begin; i < k; i += kW) {
    const int64_t count = Min(k - i, kW);
    Type part[kW];
    E::PutExact(part, count == kW ? Load(row + i) : LoadPart(row + i, count));
    for (int64_t j = 0; j < count; ++j)
      out[(i + j) / kPair * kPair * kPanelWidth + (i + j) % kPair] = part[j];
  }
  if (k % kPair != 0) out[k / kPair * kPair * kPanelWidth + 1] = 0;
}

SOMNUS_INLINE void Transpose(VU (&m)[kW]) {
#pragma GCC unroll 4
  for (int step = 1; step < kW; step *= 2) {
    VI low, high;
#pragma GCC unroll 16
    for (int lane = 0; lane < kW; ++lane) {
      low[lane] = lane & step ? lane - step + kW : lane;
      high[lane] = lane & step ? lane + kW : lane + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kW; ++i) {
      if (i & step) continue;
      const VU a = m[i], b = m[i + step];
      m[i] = __builtin_shuffle(a, b, low);
      m[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}

// kW rows at once as far as whole vectors of 32-bit steps go (pairs of bf16, or f32); returns the first
// column left.
template <typename E>
int64_t PackRowBlock(const float* rows, int64_t k, typename E::Type* out) {
  constexpr int64_t kColumns = E::kType == DataType::kBF16 ? 2 * kW : kW;
  char* to = reinterpret_cast<char*>(out);
  int64_t i = 0;
  for (; i + kColumns <= k; i += kColumns) {
    VU m[kW];
#pragma GCC unroll 16
    for (int r = 0; r < kW; ++r) {
      typename E::Type part[kColumns];
      for (int64_t c = 0; c < kColumns; c += kW) E::PutExact(part + c, Load(rows + r * k + i + c));
      m[r] = LoadU(part);
    }
    Transpose(m);
#pragma GCC unroll 16
    for (int s = 0; s < kW; ++s, to += kPanelWidth * 4) __builtin_memcpy(to, &m[s], sizeof(VU));
  }
  return i;
}

template <typename E>
void PackRows(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const float* rows) {
  using Type = typename E::Type;
  constexpr int64_t kPair = E::kType == DataType::kBF16 ? 2 : 1;
  const int64_t k = weight.k;
  for (int64_t i = 0; i < num_rows;) {
    const int64_t n = row_begin + i;
    char* panel = static_cast<char*>(weight.data) + n / kPanelWidth * PanelBytes(E::kType, k);
    Type* out = reinterpret_cast<Type*>(panel) + n % kPanelWidth * kPair;
    const bool block = E::kType != DataType::kF16 && n % kW == 0 && num_rows - i >= kW;
    const int64_t count = block ? kW : 1;
    int64_t done = 0;
    if constexpr (E::kType != DataType::kF16) {
      if (block) done = PackRowBlock<E>(rows + i * k, k, out);
    }
    for (int64_t r = 0; r < count; ++r) PackRow<E>(rows + (i + r) * k, done, k, out + r * kPair);
    i += count;
  }
}

template <typename E>
void UnpackRow(const LinearWeight& weight, int64_t row, float* out) {
  using Type = typename E::Type;
  constexpr int64_t kPair = E::kType == DataType::kBF16 ? 2 : 1;
  const Type* w = reinterpret_cast<const Type*>(static_cast<const char*>(weight.data) +
                                                row / kPanelWidth * PanelBytes(E::kType, weight.k)) +
                  row % kPanelWidth * kPair;
  for (int64_t k = 0; k < weight.k; k += kW) {
    const int64_t count = Min(weight.k - k, kW);
    Type part[kW] = {};
    for (int64_t j = 0; j < count; ++j) part[j] = w[(k + j) / kPair * kPair * kPanelWidth + (k + j) % kPair];
    if (count == kW) {
      Store(out + k, E::Get(part));
    } else {
      StorePart(out + k, E::Get(part), count);
    }
  }
}

void PackRowsAny(const LinearWeight& weight, int64_t row_begin, int64_t num_rows, const float* rows) {
  WithElement(weight.dtype, [&](auto e) { PackRows<decltype(e)>(weight, row_begin, num_rows, rows); });
}

void UnpackRowAny(const LinearWeight& weight, int64_t row, float* out) {
  WithElement(weight.dtype, [&](auto e) { UnpackRow<decltype(e)>(weight, row, out); });
}

void ToFloat(const char* x, DataType type, int64_t n, float* out) {
  WithElement(type, [&](auto e) {
    using E = decltype(e);
    const auto* p = reinterpret_cast<const typename E::Type*>(x);
    for (int64_t i = 0; i < n; i += kW) Put<F32>(out + i, Get<E>(p + i, n - i), n - i);
  });
}

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
